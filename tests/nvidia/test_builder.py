"""What NVIDIA's builder does with limits, interrupts and caches, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from capsedge.runtime.zoo import default_model
from tests.nvidia.conftest import ROOT, Build, process

pytestmark = pytest.mark.tensorrt_rtx


def test_limits(build: Build) -> None:
    """A workspace in which there is no kernel is told apart from a model that cannot be built."""
    small, enough, hard = build(
        [
            (default_model(), {"workspace": 1 << 20, "batch": (1, 8, 32)}),
            (default_model(), {"workspace": 1 << 30, "batch": (1, 8, 32)}),
            (default_model(), {"optimization_level": 5}),
        ]
    )
    assert (small["error"], small["written"]) == ("UsageError", False), small
    assert "workspace" in small["what"]
    assert "--workspace" in small["fix"]
    for built in (enough, hard):
        assert "error" not in built, built


@pytest.mark.parametrize(
    "capabilities", [["8.6"], ["12.0"], ["8.0", "8.6", "8.9", "12.0", "12.1"]], ids=",".join
)
def test_compute_capabilities(build: Build, capabilities: list[str]) -> None:
    (built,) = build([(default_model(), {"compute_capabilities": capabilities})])
    assert built["compute_capabilities"] == capabilities, built


def test_gpus_that_it_does_not_build_for(build: Build) -> None:
    turing, jetson, unknown, twice = build(
        [
            (default_model(), {"compute_capabilities": [*capabilities]})
            for capabilities in (["7.5"], ["8.7"], ["9.9"], ["8.6", "8.6"])
        ]
    )
    assert turing["error"] == "UnsupportedModelError"
    assert "Turing" in turing["what"]
    assert "7.5" in turing["fix"]
    assert jetson["error"] == unknown["error"] == twice["error"] == "UsageError"
    assert "Orin" in jetson["what"]
    assert "8.6, 8.9" in unknown["why"]
    assert not any(refused["written"] for refused in (turing, jetson, unknown, twice))


def test_timing_caches(environment: Mapping[str, str]) -> None:
    """Whatever TensorRT makes of them, there is a cache to build with."""
    (line,) = process("tests.nvidia.caches", None, environment)
    found = json.loads(line)
    assert found.keys() == {"empty", "own", "garbage", "foreign", "cut"}
    assert all(row["bytes"] > 0 for row in found.values())
    assert found["empty"]["warnings"] == found["own"]["warnings"] == []


INTERRUPTED = """
import sys
from capsedge.exporters.build_options import BuildOptions
from capsedge.exporters.tensorrt.write_engine import write_engine as build
def report(share, phase, left):
    if share > 0.3:
        raise KeyboardInterrupt
try:
    build(sys.argv[1], sys.argv[2], BuildOptions(target="tensorrt-rtx"), report)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_ends_the_build(environment: Mapping[str, str], tmp_path: Path) -> None:
    target = tmp_path / "none.engine"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(default_model()), str(target)],
        capture_output=True, text=True, check=False, env=dict(environment),
    )  # fmt: skip
    assert done.stdout == "interrupted\n", done.stderr
    assert not target.exists()


def only_quantized(path: Path) -> Path:
    """A file that quantizes, and whose convolution computes in FP32: INT8 by its types alone."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((16, 8, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            helper.make_node("Sigmoid", ["d"], ["r"]),
            helper.make_node("Conv", ["r", "W"], ["y"], pads=[1, 1, 1, 1]),
        ],
        "only-quantized",
        [helper.make_tensor_value_info("x", T.FLOAT, [1, 8, 16, 16])],
        [
            helper.make_tensor_value_info("y", T.FLOAT, [1, 16, 16, 16]),
            helper.make_tensor_value_info("q", T.INT8, [1, 8, 16, 16]),
        ],
        [
            numpy_helper.from_array(weight, "W"),
            numpy_helper.from_array(np.float32(0.1), "s"),
            numpy_helper.from_array(np.int8(0), "z"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path)
    return path


def test_a_quantizer_without_an_integer_convolution_is_not_int8(
    build: Build, tmp_path: Path
) -> None:
    """TensorRT fuses the quantizer into a kernel with INT8 data, and computes in FP32."""
    (refused,) = build([(only_quantized(tmp_path / "q.onnx"), {"precision": "int8"})])
    assert (refused.get("error"), refused.get("written")) == ("ParityError", False), refused
    assert "none with INT8 inputs" in refused["why"]


def determinants(path: Path) -> Path:
    """A network with an operator that ONNX Runtime has and the parser lacks."""
    graph = helper.make_graph(
        [helper.make_node("Det", ["x"], ["y"])],
        "determinants",
        [helper.make_tensor_value_info("x", T.FLOAT, [1, 4, 4])],
        [helper.make_tensor_value_info("y", T.FLOAT, [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path)
    return path


def test_an_operator_that_the_parser_lacks_is_refused(build: Build, tmp_path: Path) -> None:
    (refused,) = build([(determinants(tmp_path / "det.onnx"), {})])
    assert (refused.get("error"), refused.get("written")) == ("UnsupportedModelError", False), (
        refused
    )
    assert "Det" in refused["why"]


def test_the_command(environment: Mapping[str, str], tmp_path: Path) -> None:
    """As a person runs it, without a GPU; and plugins where the parser would end the process."""
    target = tmp_path / "digits.engine"
    words = [sys.executable, "-m", "capsedge", "build", str(default_model()), "-o", str(target)]
    rtx = ["--target", "tensorrt-rtx", "--compute-capability", "8.9,12.0"]
    done = subprocess.run(
        [*words, *rtx, "--batch", "1:8:32"],
        capture_output=True, text=True, check=False, env=dict(environment), cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "RTX GPUs of compute capability 8.9, 12.0" in done.stdout
    assert "untested: no TensorRT-RTX engine" in done.stderr
    engine_info = json.loads(target.with_name("digits.engine.json").read_text())
    assert engine_info["target"] == "tensorrt-rtx"
    assert engine_info["compute_capabilities"] == ["8.9", "12.0"]
    shown = subprocess.run(
        [sys.executable, "-m", "capsedge", "inspect", str(target), "--json"],
        capture_output=True, text=True, check=False, env=dict(environment), cwd=ROOT,
    )  # fmt: skip
    assert json.loads(shown.stdout)["engine_metadata"]["products"]["FP32"] > 0
    library = tmp_path / "plugin.so"
    library.write_bytes(b"")
    plain = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    refused = subprocess.run(
        [*words, *rtx, "--plugin", "fused"],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**plain, "CAPSEDGE_TENSORRT_PLUGIN": str(library)},
    )  # fmt: skip
    assert refused.returncode == 3, refused.stderr
    assert "libtensorrt_rtx.so" in refused.stderr
