"""Precision: what a graph says, and the comparison with what was built."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from capsedge.errors import ParityError, UsageError
from capsedge.exporters.tensorrt import lowering
from capsedge.runtime.backends.engine_layers import EngineLayer
from tests.exporters.tensorrt.test_lowering import quantized


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
    assert lowering.precision_of_model(half()) == "fp16"
    assert lowering.precision_of_model(quantized(np.int8(0))) == "int8"
    both = quantized(np.int8(0))
    both.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float16), "h"))
    assert lowering.precision_of_model(both) == "mixed"
    assert lowering.resolve_precision(None, both) == "mixed"
    assert lowering.resolve_precision("int8", both) == "int8"
    assert lowering.resolve_precision("fp16", half()) == "fp16"


@pytest.mark.parametrize("asked", ["int8", "fp32", "mixed", "fp8"])
def test_another_precision_than_the_files_is_refused(asked: str) -> None:
    with pytest.raises(UsageError) as caught:
        lowering.resolve_precision(asked, half())
    words = str(caught.value)
    if asked == "fp8":
        assert "Choose" in words
    elif asked == "fp32":
        assert "capsedge export" in words
    else:
        assert f"capsedge quantize MODEL.onnx --precision {asked}" in words


def layers(*rows: tuple[str, str, str]) -> list[EngineLayer]:
    """Kind of layer, type of its input, type of its output."""
    return [EngineLayer(f"layer {k}", row[0], (row[1],), (row[2],)) for k, row in enumerate(rows)]


CONV = ("CaskConvolution", "FP32", "FP32")
HALF = ("kgen", "FP16", "FP16")
INT8 = ("correlation", "INT8", "FP32")
QUANTIZER = ("kgen", "FP32", "INT8")  # fused with what stands before it
REFORMAT = ("Reformat", "INT8", "FP16")
UNTOLD = ("Convolution", "", "")


def test_reformats_prove_nothing() -> None:
    assert lowering.count_by_precision(layers(REFORMAT)) == {}
    with pytest.raises(ParityError, match="no layer"):
        lowering.compare("int8", layers(REFORMAT))


def test_counts() -> None:
    found = layers(CONV, HALF, INT8, QUANTIZER, REFORMAT)
    assert lowering.count_by_precision(found) == {"FP16": 1, "FP32": 3, "INT8": 2}
    assert lowering.count_products(found) == {"FP32": 1, "INT8": 1}


@pytest.mark.parametrize(
    ("asked", "rows", "why"),
    [
        ("fp32", [CONV], ""),
        ("fp32", [CONV, HALF], "FP16 was not requested"),
        ("fp16", [CONV, HALF], ""),
        ("fp16", [CONV], "none with FP16"),
        ("int8", [CONV, HALF], "none with INT8 inputs among"),
        ("int8", [CONV, INT8], ""),
        ("int8", [CONV, QUANTIZER], "none with INT8 inputs among"),
        ("mixed", [HALF, QUANTIZER], "none with INT8 inputs among"),
        ("mixed", [CONV, INT8], "none with FP16"),
        ("mixed", [HALF, INT8], ""),
        ("fp32", [UNTOLD], "TensorRT does not report the types of 1 layers"),
    ],
)
def test_comparison(asked: str, rows: list[tuple[str, str, str]], why: str) -> None:
    if not why:
        lowering.compare(asked, layers(*rows))
        return
    with pytest.raises(ParityError, match=why):
        lowering.compare(asked, layers(*rows))
