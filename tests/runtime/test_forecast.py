"""The forecast against what ONNX Runtime's allocator handed out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import capsedge
from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.runtime.backends.backend import ProfiledBackend
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.onnx_file.forecast import forecast
from capsedge.runtime.profiling.operator_times import arena_peak
from tests.conftest import ROOT
from tests.exports import Exports

ZOO = ROOT / "capsedge/zoo"


def measured(path: Path, batch: int) -> int | None:
    session = capsedge.load(path, threads=1)
    sizes = (int(d) for d in session.inputs[0].shape[1:])
    x = np.zeros((batch, *sizes), np.float32)
    assert isinstance(session.backend, ProfiledBackend)
    with session.backend.profiled_runs({session.inputs[0].name: x}) as runs:
        runs.profiled()
        return arena_peak(runs.finish().runs)


def check(path: Path, batch: int) -> None:
    found = measured(path, batch)
    if found is None:
        pytest.skip("this ONNX Runtime does not state its allocator's bytes")
    assert forecast(path, batch).peak == pytest.approx(found, rel=0.1)


@pytest.mark.skipif(find_library() is None, reason="the operator library is not installed")
@pytest.mark.parametrize("batch", [1, 8])
def test_the_digit_model(batch: int):
    check(ZOO / "digits-dynamic.onnx", batch)


@pytest.mark.parametrize("routing", ["em", "attention"])
@pytest.mark.parametrize("ops", ["auto", pytest.param("portable", marks=pytest.mark.thorough)])
def test_the_other_zoo_models(routing: str, ops: str, exported: Exports):
    if ops == "auto" and find_library() is None:
        pytest.skip("the operator library is not installed")
    pytest.importorskip("torch")
    from capsedge.models.checkpoint import load_checkpoint

    model = load_checkpoint(ZOO / f"digits-{routing}.safetensors")
    check(exported(model, ops=ops).path if ops == "portable" else ZOO / f"digits-{routing}.onnx", 4)


def test_by_hand(tmp_path: Path):
    """x [N, 8] -> a, b [N, 16] -> a + b over a -> y [N, 4]: a and b live together, then the sum and y."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["x", "w"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])
    weights = [
        helper.make_tensor(n, TensorProto.FLOAT, d, np.ones(d, np.float32).ravel())
        for n, d in (("w", (8, 16)), ("v", (16, 4)))
    ]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights)), path)
    f = forecast(path, 10, "orin-nano-8gb")
    assert f.weights == 4 * (8 * 16 + 16 * 4)
    assert f.peak == 4 * 10 * (16 + 16)
    assert f.planned == 4 * 10 * (16 + 16) + 4 * 10 * 4
    assert f.inputs == 4 * 10 * 8
    assert f.operations == 10 * (2 * 2 * 8 * 16 + 16 + 2 * 16 * 4)
    assert f.device is not None
    assert f.device.fits
    small = forecast(path, f.device.largest_batch, "orin-nano-8gb")
    large = forecast(path, f.device.largest_batch + 1, "orin-nano-8gb")
    assert small.device is not None
    assert large.device is not None
    assert small.device.fits
    assert not large.device.fits


def test_nodes_out_of_order(tmp_path: Path):
    """A converter's file, whose nodes are not sorted, needs what the sorted one needs."""
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8]) for n in "xy")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8]) for n in "ab"]
    nodes = [helper.make_node("Exp", [a], [b]) for a, b in ("xa", "ab", "by")]
    found = []
    for order in (nodes, nodes[::-1]):
        graph = helper.make_graph(order, "g", [given], [made], value_info=values)
        onnx.save(helper.make_model(graph), tmp_path / "file.onnx")
        found.append(forecast(tmp_path / "file.onnx"))
    assert found[0] == found[1]


def test_errors(tmp_path: Path):
    with pytest.raises(UsageError, match="Unknown device"):
        forecast(ZOO / "digits-dynamic.onnx", 1, "toaster")
    with pytest.raises(UsageError):
        forecast(ZOO / "digits-dynamic.onnx", 0)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in "xy")
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"]),
        helper.make_node("Cast", ["i"], ["y"], to=1),
    ]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y])), path)
    with pytest.raises(UnsupportedModelError, match="does not state"):
        forecast(path)


def test_the_command():
    command = [sys.executable, "-m", "capsedge", "inspect", str(ZOO / "digits-dynamic.onnx")]
    command += ["--forecast", "--batch", "8", "--device", "orin-nano-8gb"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "activations, peak" in done.stdout
    assert "orin-nano-8gb" in done.stdout
