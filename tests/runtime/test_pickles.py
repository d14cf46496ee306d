"""Pickles are interpreted: plain values come back, everything else is refused before it happens."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from capsedge.runtime.files.pickles import BadPickle, Format, Name, NotPlain, loads


def _call(name: Name, arguments: tuple[Any, ...]) -> Any:
    if (name.module, name.name) == ("_codecs", "encode") and arguments[1:] == ("latin1",):
        return str(arguments[0]).encode("latin-1", "replace")
    if name.name == "bytes" and not arguments:  # how protocol 2 writes none
        return b""
    raise NotPlain(f"it names {name}")


def _set_state(value: Any, state: Any) -> None:
    raise NotPlain("it has a state")


FORMAT = Format(_call, _set_state)
VALUES: Any = {
    "text": ["ü", "", "x" * 300],
    b"bytes": (b"", b"\xff" * 300),
    1: [0, -1, 255, 256, 2**31, -(2**40), 2**63, 1.5, float("inf"), True, False, None],
    "nested": [[], {}, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {"a": {"b": [1]}}],
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_come_back(protocol: int) -> None:
    values = {**VALUES, "again": VALUES["nested"]}
    assert loads(pickle.dumps(values, protocol), FORMAT) == values


class _Trap:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_called(protocol: int, tmp_path: Path) -> None:
    with pytest.raises(NotPlain, match="mkdir"):
        loads(pickle.dumps(_Trap(tmp_path / "trapped"), protocol), FORMAT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [b"", b".", b"N", b"0.", b"t.", b"]a.", b"Na.", b"NNs.", b"}]Ns.", b"g5\n.", b"N(R.", b"NNb.", b"Q.",
     b"\x80\x02\x8a\x09" + b"\x7f" * 9 + b".", b"L" + b"9" * 5000 + b"L\n.",
     pytest.param(b"(" * 600_000, id="depth", marks=pytest.mark.thorough)],
)  # fmt: skip
def test_damaged_pickles(data: bytes) -> None:
    with pytest.raises(BadPickle):
        loads(data, FORMAT)


def test_every_byte_may_be_wrong() -> None:
    whole = pickle.dumps(VALUES, 2)
    for at in range(len(whole)):
        for value in (0, 0xFF, whole[at] ^ 1):
            try:
                loads(whole[:at] + bytes((value,)) + whole[at + 1 :], FORMAT)
            except BadPickle:
                continue
