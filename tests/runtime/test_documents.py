"""JSON from files: within the limits, typed by the annotations of a class, or refused in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from capsedge.errors import UsageError
from capsedge.runtime.files.documents import MalformedJson, check_plain_values, decode, parse, read
from capsedge.spec import limits


@dataclass(frozen=True)
class Inner:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("a size below 0")


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    pair: tuple[int, float]
    kind: int | str = 1
    maybe: Inner | None = None
    several: tuple[Inner, ...] | Inner = ()
    more: Mapping[str, list[int]] = field(default_factory=dict)
    anything: Any = None
    flag: bool = False


GOOD: dict[str, Any] = {"name": "a", "inner": {"size": 1}, "pair": [1, 2]}


def test_a_class_from_its_values() -> None:
    found = decode(
        Outer,
        {**GOOD, "kind": "same", "several": [{"size": 2}], "more": {"x": [1, 2]}, "flag": True},
    )
    assert found.inner == Inner(1)
    assert found.pair == (1, 2.0)
    assert type(found.pair[1]) is float
    assert (found.kind, found.several, found.more) == ("same", (Inner(2),), {"x": [1, 2]})
    assert decode(Outer, {**GOOD, "several": {"size": 3}}).several == Inner(3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": 1}, "name is a whole number, wanted a string"),
        ({"inner": {"size": True}}, "inner.size is true or false"),
        ({"inner": {"size": 1.5}}, "inner.size is a number, wanted a whole number"),
        ({"inner": {"size": -1}}, "inner: a size below 0"),
        ({"inner": {"size": 1, "x": 1}}, "unknown: inner.x"),
        ({"inner": {}}, "missing: inner.size"),
        ({"inner": None}, "inner is null"),
        ({"pair": [1]}, "pair has 1 values, wanted 2"),
        ({"pair": {"a": 1}}, "pair is an object, wanted a list"),
        ({"kind": []}, "kind is a list, wanted a whole number or a string"),
        ({"maybe": 1}, "maybe is a whole number"),
        ({"several": [1]}, r"several\[0\] is a whole number"),
        ({"more": {"x": ["1"]}}, r"more.x\[0\] is a string"),
        ({"flag": 1}, "flag is a whole number, wanted true or false"),
        ({"self": 1}, "unknown: self"),
    ],
)
def test_other_types_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(MalformedJson, match=words):
        decode(Outer, {**GOOD, **changes})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "nested"),
        ('{"a":' * 40 + "1" + "}" * 40, "nested"),
        ("9" * 400, "64 bits"),
        ("-" + "9" * 19, "64 bits"),
        ("1e999", "1e999"),
        ("[NaN]", "NaN"),
        ("-Infinity", "Infinity"),
        ('{"a": 1, "a": 2}', "'a' twice"),
        ('"\\ud800"', "surrogate"),
        ("[" + "0," * limits.JSON_VALUES + "0]", "values"),
        (" " * (limits.JSON_BYTES + 1), "32 MiB"),
    ],
)
def test_documents_beyond_the_limits(text: str, words: str) -> None:
    with pytest.raises(MalformedJson, match=words):
        parse(text)


def test_documents_within_the_limits() -> None:
    assert parse(
        b'{"a": [18446744073709551615, -1.5, "\xc3\xbc", "\\ud83d\\ude00", null, true]}'
    ) == {"a": [2**64 - 1, -1.5, "ü", "😀", None, True]}
    assert parse("[NaN, 1e999]", nan="null") == [None, None]
    kept = parse("[NaN, Infinity]", nan="keep")
    assert kept[0] != kept[0]
    with pytest.raises(MalformedJson, match="UTF-8"):
        parse(b'"\xff"')


def test_values_of_other_sources() -> None:
    loop: list[Any] = []
    loop.append(loop)
    doubled: Any = "x"
    for _ in range(limits.JSON_DEPTH - 2):
        doubled = [doubled, doubled]
    for values, words in (
        (loop, "nested"),
        (doubled, "values"),
        ({1: 2}, "not a string"),
        ({"a": {1}}, "type set"),
        ([float("nan")], "finite"),
        ([10**400], "64 bits"),
    ):
        with pytest.raises(MalformedJson, match=words):
            check_plain_values(values)
    assert check_plain_values({"a": (1, [2.5])}) == {"a": (1, [2.5])}


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[1]")
    assert read(tmp_path / "a") == [1]
    with pytest.raises(UsageError, match="no such file"):
        read(tmp_path / "b")
