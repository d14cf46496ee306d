"""The limits are the same in the code, on their page, and in the C++ library."""

from __future__ import annotations

import re

from capsedge.spec import limits
from tests.conftest import ROOT


def test_every_limit_is_documented_with_its_value() -> None:
    text = (ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| ([^|]+) \|", text, re.MULTILINE))
    constants = {
        name: value
        for name, value in vars(limits).items()
        if name.isupper() and name not in ("KIB", "MIB", "GIB")
    }
    assert {name: _number(said) for name, said in rows.items()} == constants


# Values of the C++ library that differ, for the reason beside them in the header.
SMALLER = {"JSON_VALUES": 500_000}


def test_the_limits_of_the_library_are_pythons() -> None:
    header = (ROOT / "capsedge/runtime/native/libcapsedge/src/size_limits.h").read_text()
    found = {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper(): eval(
            re.sub(r"int64_t\{(\d+)\}|u|'", r"\1", value)
        )
        for several in re.findall(r"^constexpr \w+ (k[^;]+);", header, re.MULTILINE)
        for name, value in re.findall(r"k(\w+) = ([^,]+)", several)
    }
    assert found == {name: getattr(limits, name) for name in found} | SMALLER


def _number(said: str) -> int:
    amount, _, unit = said.strip().partition(" ")
    if "^" in amount:
        base, _, power = amount.partition("^")
        exact = int(base) ** int(power.removesuffix("-1")) - (1 if power.endswith("-1") else 0)
    else:
        exact = int(amount.replace(",", ""))
    return exact * {"KiB": limits.KIB, "MiB": limits.MIB, "GiB": limits.GIB}.get(unit, 1)
