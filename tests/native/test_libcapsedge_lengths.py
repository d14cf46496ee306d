"""Engines with a free length in libcapsedge, over the stand-ins: every length of the profile, no other."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capsedge
from capsedge.runtime.metadata.engine_metadata import metadata_path
from tests.tensorrt.test_lengths import LONGEST, given, history_file, wanted

from . import libcapsedge
from .libcapsedge import ARTEFACT, USAGE, Failed, Session
from .stand_ins import Machine
from .test_libcapsedge_tensorrt import OnGpu

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.thorough  # the first of them compiles the library for stand-ins


@pytest.fixture
def path(engine: Any, tmp_path: Path) -> Path:
    return engine(history_file(tmp_path / "history.onnx"), (1, 2, 4))


def check(native: Session, length: int, batch: int = 2) -> None:
    feeds = given(length, batch)
    found = native.run(feeds)
    for name, right in wanted(feeds).items():
        np.testing.assert_allclose(found[name], right, rtol=1e-5, err_msg=f"{name} of {length}")


def test_every_length_of_the_profile(path: Path, machine: Machine) -> None:
    native = Session(path)
    assert native.ports("input")["hist"] == ("int64", [-1, -1])
    assert native.ports("output")["both"] == ("float32", [-1, -1])
    for _ in range(3):  # plain, captured, launched
        for length in (1, 7, 50, LONGEST):
            check(native, length)
    check(native, 50, 3)
    with pytest.raises(Failed, match="'hist' is too long for the network") as refused:
        native.run(given(LONGEST + 1))
    assert refused.value.code == USAGE
    with pytest.raises(Failed, match=r"'each' has no room.\nIt takes 400 bytes; given: 399"):
        native.run(given(50), {"each": 399})
    check(native, 50)
    assert machine.counts("undefined") == {"undefined": 0}
    native.close()


def test_graphs_of_each_length_are_kept(path: Path, machine: Machine) -> None:
    """Each with the context that it was captured from; the one used longest ago gives its context away."""
    native = Session(path)
    names = ("plain", "captured")
    before = machine.counts(*names)
    for _ in range(3):
        for length in (7, 50):
            check(native, length)
    assert [machine.counts(n)[n] - before[n] for n in names] == [2, 2]
    for length in range(1, 12):
        for _ in range(3):
            check(native, length)
    assert machine.cudart.fake_count(3) == machine.counts("contexts")["contexts"] == 8
    assert machine.counts("undefined") == {"undefined": 0}
    native.close()


def test_lengths_that_an_engine_was_not_built_for(
    engine: Any, machine: Machine, tmp_path: Path
) -> None:
    """In the words of Python."""
    path = engine(history_file(tmp_path / "endless.onnx", 0), (1, 2, 4), length=(3, 5, 20))
    native = Session(path)
    with capsedge.load(path) as python:
        for length, batch in ((2, 2), (21, 2), (5, 5)):
            with pytest.raises(Failed) as ours:
                native.run(given(length, batch))
            with pytest.raises(capsedge.CapsedgeError) as theirs:
                python.run(given(length, batch))
            assert ours.value.code == USAGE
            said = theirs.value
            assert str(ours.value).split("\n") == [said.what, said.why, said.fix]
    with pytest.raises(Failed, match="The inputs have lengths of 5 and 6"):
        native.run(given(5) | {"weights": given(6)["weights"]})
    check(native, 20)
    native.close()


def test_on_a_stream(path: Path, machine: Machine) -> None:
    native = Session(path, outputs=["both"])
    for length in (50, 7):
        feeds = given(length)
        right = wanted(feeds)["both"]
        inputs = [OnGpu(machine, feeds[name]) for name in native.ports("input")]
        found = OnGpu(machine, np.zeros_like(right))
        given_tensors = (libcapsedge.Tensor * 2)(*(x.tensor() for x in inputs))
        output = found.tensor()
        libcapsedge.call(
            "capsedge_run_on_stream", native.handle, given_tensors, ctypes.c_size_t(2),
            ctypes.byref(output), ctypes.c_size_t(1), ctypes.c_void_p(None),
        )  # fmt: skip
        machine.cudart.cudaDeviceSynchronize()
        np.testing.assert_allclose(found.values(), right, rtol=1e-5)
        assert list(output.shape[:2]) == [2, 2 * length]
    native.close()


def test_what_the_metadata_file_states(path: Path, machine: Machine) -> None:
    stands = json.loads(metadata_path(path).read_text())
    for length, words in (
        ([], "only the batch size may vary"),
        ([1, 5], "'length' has 2 sizes"),
        ([3, 2, 4], "'length' is not smallest, best and largest"),
        ("5", "length"),
    ):
        metadata_path(path).write_text(json.dumps({**stands, "length": length}))
        with pytest.raises(Failed, match=words) as refused:
            Session(path)
        assert refused.value.code == ARTEFACT
    metadata_path(path).write_text(json.dumps({**stands, "engine_bytes": 1}))
    with pytest.raises(Failed, match="--batch 1:2:4 --length 1:120:120"):
        Session(path)
