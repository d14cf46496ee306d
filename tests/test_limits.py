"""The limits stand in docs/reference/limits.md as they stand in the code."""

from __future__ import annotations

import re

from capsedge.runtime.files import limits
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


def _number(said: str) -> int:
    amount, _, unit = said.strip().partition(" ")
    if "^" in amount:
        base, _, power = amount.partition("^")
        exact = int(base) ** int(power.removesuffix("-1")) - (1 if power.endswith("-1") else 0)
    else:
        exact = int(amount.replace(",", ""))
    return exact * {"KiB": limits.KIB, "MiB": limits.MIB, "GiB": limits.GIB}.get(unit, 1)
