"""What is generated from capsedge/spec is up to date, and nothing states its facts a second time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from capsedge.spec import limits
from capsedge.spec.limits import DIFFERENCES, LIMITS, OPTIONS, limit_of
from tests.conftest import ROOT
from tools.spec.outputs import FILES, outputs
from tools.spec.pages import amount

NATIVE, WEB = ROOT / "capsedge/runtime/native", ROOT / "capsedge/runtime/web/src"


def test_what_is_generated_is_up_to_date() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in outputs().items()
        if path.read_bytes() != text.encode()
    ]
    assert not stale, f"run `python -m tools.spec`, which makes {', '.join(stale)}"


def test_limits_have_their_own_names() -> None:
    constants = {name: value for name, value in vars(limits).items() if type(value) is int}
    assert {name: each.value for name, each in LIMITS.items()} == {
        name: value for name, value in constants.items() if name not in ("KIB", "MIB", "GIB")
    }
    assert set(OPTIONS) < set(LIMITS)


def test_differences_are_smaller_and_say_why() -> None:
    for each in DIFFERENCES:
        assert 0 < each.value < LIMITS[each.limit].value
        assert each.reason
        assert limit_of(each.runtime, each.limit) == each.value
    assert limit_of("cuda", "WIDTH") == limits.WIDTH


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("JSON_BYTES", "32 MiB"),
        ("REQUEST_VALUES", "2^23"),
        ("WIDTH", "65,536"),
        ("FILE_BYTES", "2^31-1"),
    ],
)
def test_amounts_are_for_people(value: str, said: str) -> None:
    assert amount(LIMITS[value]) == said


# --- No fact twice ---


def sources() -> Iterator[tuple[Path, str]]:
    """Code in C, C++, CUDA and TypeScript that is written by hand."""
    generated = {ROOT / name for name in FILES}
    for folder, kinds in ((NATIVE, "h cpp cu"), (WEB, "ts")):
        for kind in kinds.split():
            for path in folder.rglob(f"*.{kind}"):
                if path not in generated and "mock" not in path.parts and "tests" not in path.parts:
                    yield path, path.read_text(encoding="utf-8")


def words(name: str) -> str:
    """A name in any style, without its style: `kJsonValues`, `JSON_VALUES` and `jsonValues` are one."""
    return re.sub(r"^k(?=[A-Z])", "", name).replace("_", "").lower()


_CONSTANT = re.compile(
    r"(?:constexpr|const|#define|static)\s[^;={(]*?\b(\w+)\s*(?:=|\s)\s*[-\d(\"'{\[]"
)


def test_no_limit_stands_in_code_by_hand() -> None:
    known = {words(name) for name in (*LIMITS, *(f"MOST_{name}" for name in LIMITS))}
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in sources()
        for name in _CONSTANT.findall(text)
        if words(name) in known
    ]
    assert not found
