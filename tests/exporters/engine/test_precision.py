"""Precision: what a graph says, what TensorRT says that it built, and the comparison of both."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from capsedge.errors import CapsedgeError, ParityError, UsageError
from capsedge.exporters.engine import precision
from tests.exporters.engine.test_lowering import quantized


def half() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        "h",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1, 4])],
        [numpy_helper.from_array(np.ones(4, np.float16), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_graphs() -> None:
    assert precision.of_model(half()) == "fp16"
    assert precision.of_model(quantized(np.int8(0))) == "int8"
    both = quantized(np.int8(0))
    both.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float16), "h"))
    assert precision.of_model(both) == "mixed"
    assert precision.resolve(None, both) == "mixed"
    assert precision.resolve("int8", both) == "int8"
    assert precision.resolve("fp16", half()) == "fp16"


@pytest.mark.parametrize("asked", ["int8", "fp32", "mixed", "fp8"])
def test_another_precision_than_the_files_is_refused(asked: str) -> None:
    with pytest.raises(UsageError) as caught:
        precision.resolve(asked, half())
    words = str(caught.value)
    if asked == "fp8":
        assert "Known" in words
    elif asked == "fp32":
        assert "capsedge export" in words
    else:
        assert f"capsedge quantize MODEL.onnx --precision {asked}" in words


# As TensorRT 10 and 11 write them.
TEN = {
    "LayerType": "CaskConvolution",
    "Inputs": [
        {"Name": "a", "Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format"}
    ],
    "Outputs": [{"Name": "b", "Format/Datatype": "Row major linear FP16 format"}],
}
ELEVEN = {
    "LayerType": "gemm",
    "Inputs": [{"Name": "FP32_in_a_name", "Format": "Row major linear", "Datatype": "Half"}],
    "Outputs": [{"Name": "b", "Format": "Row major linear", "Datatype": "Float"}],
}
MOVED = {
    "LayerType": "Reformat",
    "Inputs": [{"Format/Datatype": "Row major Int8 format"}],
    "Outputs": [],
}


def test_both_dialects_of_the_inspector() -> None:
    assert precision.types_of(TEN) == {"INT8", "FP16"}
    assert precision.types_of(ELEVEN) == {"FP16", "FP32"}
    found = precision.layers(json.dumps({"Layers": [TEN, ELEVEN, MOVED], "Bindings": []}))
    assert precision.count(found) == {"FP16": 2, "FP32": 1, "INT8": 1}


def test_reformats_prove_nothing() -> None:
    assert precision.count([MOVED]) == {}
    with pytest.raises(ParityError, match="no layer"):
        precision.compare("int8", precision.count([MOVED]))


def test_an_engine_without_details_is_an_error() -> None:
    for text in ('{"Layers": ["conv1", "conv2"]}', "nothing", "{}"):
        with pytest.raises(CapsedgeError):
            precision.layers(text)


@pytest.mark.parametrize(
    ("asked", "counts", "why"),
    [
        ("fp32", {"FP32": 5}, ""),
        ("fp32", {"FP32": 5, "FP16": 1}, "FP16 was not asked for"),
        ("fp16", {"FP32": 5, "FP16": 1}, ""),
        ("fp16", {"FP32": 5}, "none with FP16"),
        ("int8", {"FP32": 5, "FP16": 1}, "none with INT8"),
        ("int8", {"FP32": 5, "INT8": 2}, ""),
        ("mixed", {"FP32": 5, "INT8": 2}, "none with FP16"),
    ],
)
def test_comparison(asked: str, counts: dict[str, int], why: str) -> None:
    if not why:
        precision.compare(asked, counts)
        return
    with pytest.raises(ParityError, match=why):
        precision.compare(asked, counts)
