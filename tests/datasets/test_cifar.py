"""Batches of CIFAR-10: arrays of every protocol come back, nothing in a pickle is called."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from capsedge.datasets import cifar
from capsedge.errors import UsageError
from capsedge.runtime.files import sandbox
from capsedge.spec import limits


@pytest.mark.sample(1)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_cifar_batches_of_every_protocol(protocol: int, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    for keys in ((b"data", b"labels"), ("data", "labels")):
        for data in (rows, np.asfortranarray(rows)):
            batch = pickle.dumps({keys[0]: data, keys[1]: [3, 1, 2]}, protocol)
            (tmp_path / "data_batch_1").write_bytes(batch)
            images, labels = cifar.read(tmp_path / "data_batch_1")
            assert np.array_equal(images, rows.reshape(3, 3, 32, 32).transpose(0, 2, 3, 1))
            assert labels.tolist() == [3, 1, 2]


class _Trap:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_a_cifar_batch_is_called(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(_Trap(tmp_path / "trapped"), protocol))
    with pytest.raises(UsageError) as caught:
        cifar.read(path)
    assert re.fullmatch(r"It names (posix|nt)\.mkdir, which would run code\.", caught.value.why)
    assert list(tmp_path.iterdir()) == [path]


_REFUSED_BATCHES: dict[str, tuple[Any, str]] = {
    "a list": ([1], "not a dictionary"),
    "no data": ({b"labels": [1]}, "not an array of bytes"),
    "data that are bytes": ({b"data": bytes(3072), b"labels": [1]}, "not an array of bytes"),
    "floats": ({b"data": np.zeros((1, 3072), "f4"), b"labels": [1]}, "type is not bytes"),
    "objects": ({b"data": np.array([[{}]]), b"labels": [1]}, "type is not bytes"),
    "another shape": ({b"data": np.zeros((1, 3071), "u1"), b"labels": [1]}, "[1, 3071] for 1 labels"),
    "no axes": ({b"data": np.zeros(3072, "u1"), b"labels": [1]}, "do not fit its shape"),
    "fewer labels": ({b"data": np.zeros((2, 3072), "u1"), b"labels": [1]}, "for 1 labels"),
    "labels that are text": ({b"data": np.zeros((1, 3072), "u1"), b"labels": ["a"]}, "whole numbers"),
    "a label below 0": ({b"data": np.zeros((1, 3072), "u1"), b"labels": [-1]}, "not classes"),
    "a label of 2**40": ({b"data": np.zeros((1, 3072), "u1"), b"labels": [2**40]}, "not classes"),
    "a label of 2**70": ({b"data": np.zeros((1, 3072), "u1"), b"labels": [2**70]}, "OverflowError"),
}  # fmt: skip


@pytest.mark.thorough
def test_cifar_batches_that_are_refused(tmp_path: Path) -> None:
    failed = []
    for name, (batch, said) in _REFUSED_BATCHES.items():
        (tmp_path / "batch").write_bytes(pickle.dumps(batch, 2))
        with pytest.raises(UsageError) as caught:
            cifar.read(tmp_path / "batch")
        failed += [f"{name}: {caught.value.why}"] * (said not in caught.value.why)
    assert not failed


@pytest.mark.slow
def test_a_cifar_batch_with_a_wrong_byte(tmp_path: Path) -> None:
    """Every byte around the pixels: a batch, or an error in words."""
    rows = np.zeros((1, 3072), np.uint8)
    whole = pickle.dumps({b"data": rows, b"labels": [3], b"batch_label": b"x"}, 2)
    start = whole.index(bytes(3072))
    for at in (*range(start), *range(start + 3072, len(whole))):
        (tmp_path / "batch").write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        with contextlib.suppress(UsageError):
            images, _ = cifar.read(tmp_path / "batch")
            assert images.shape == (1, 32, 32, 3)


def test_a_cifar_batch_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CIFAR_SECONDS", 0)
    (tmp_path / "batch").write_bytes(b"N0" * 5_000_000 + b".")
    with pytest.raises(UsageError, match="over 0 s"):
        cifar.read(tmp_path / "batch")


@pytest.mark.thorough
def test_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on systems where a fork is of no use, and the memory of a process is not limited."""
    system = SimpleNamespace(platform="darwin", executable=sys.executable)
    monkeypatch.setattr(sandbox, "sys", system)
    monkeypatch.setattr(limits, "CIFAR_MEMORY", 1 << 40)
    path = tmp_path / "batch"
    for protocol in (2, 5):
        batch = {b"data": np.ones((2, 3072), np.uint8), b"labels": [1, 2]}
        path.write_bytes(pickle.dumps(batch, protocol))
        assert cifar.read(path)[1].tolist() == [1, 2]
    path.write_bytes(pickle.dumps(_Trap(tmp_path / "trapped"), 2))
    with pytest.raises(UsageError, match="would run code"):
        cifar.read(path)
