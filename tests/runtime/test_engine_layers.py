"""What TensorRT says of an engine's layers: the dialects of its inspector and of its verbose log."""

from __future__ import annotations

import json

import pytest

from capsedge.errors import CapsedgeError
from capsedge.runtime.backends import engine_layers
from capsedge.runtime.backends.engine_layers import EngineLayer

# As TensorRT 10 and 11 write them.
TEN = {
    "Name": "conv",
    "LayerType": "CaskConvolution",
    "Inputs": [
        {"Name": "a", "Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format"}
    ],
    "Outputs": [{"Name": "b", "Format/Datatype": "Row major linear FP16 format"}],
    "ParameterType": "Convolution",
    "Weights": {"Type": "Int8", "Count": 9408},
}
ELEVEN = {
    "Name": "product",
    "LayerType": "gemm",
    "Inputs": [{"Name": "FP32_in_a_name", "Format": "Row major linear", "Datatype": "Half"}],
    "Outputs": [{"Name": "b", "Format": "Row major linear", "Datatype": "Float"}],
}
MOVED = {
    "Name": "moved",
    "LayerType": "Reformat",
    "Inputs": [{"Format/Datatype": "Row major Int8 format"}],
    "Outputs": [],
}
NOT_TOLD = "N/A due to dynamic shapes"


def test_both_dialects_of_the_inspector() -> None:
    text = json.dumps({"Layers": [TEN, ELEVEN, MOVED], "Bindings": []})
    ten, eleven, moved = engine_layers.from_inspector(text)
    assert (ten.inputs, ten.outputs, ten.weights) == (("INT8",), ("FP16",), ("INT8",))
    assert eleven == EngineLayer("product", "gemm", ("FP16",), ("FP32",))
    assert [layer.is_product for layer in (ten, eleven, moved)] == [True, True, False]
    assert list(engine_layers.arithmetic_layers([ten, moved])) == [ten]


@pytest.mark.parametrize("key", ["Format/Datatype", "Datatype"])
def test_what_is_not_told_is_unknown_and_weights_tell(key: str) -> None:
    layer = {**TEN, "Inputs": [{key: NOT_TOLD}], "Outputs": [{key: NOT_TOLD}]}
    (found,) = engine_layers.from_inspector(json.dumps({"Layers": [layer]}))
    assert (found.inputs, found.outputs) == (("",), ("",))
    assert found.types == found.input_types == {"INT8"}
    del layer["Weights"]
    (found,) = engine_layers.from_inspector(json.dumps({"Layers": [layer]}))
    assert found.types == set()


def test_an_engine_without_details_is_an_error() -> None:
    for text in ('{"Layers": ["conv1", "conv2"]}', "nothing", "{}", '{"Layers": 1}'):
        with pytest.raises(CapsedgeError):
            engine_layers.from_inspector(text)


# As TensorRT-RTX 1.7 writes them, shortened.
RTX = """Layers:
Name: __mye0, LayerType: shape_call, Inputs: [], Constants: [], Outputs: [], TacticName: , StreamId: 0
Name: conv, LayerType: correlation, \
Inputs: [ { Name: q, Dimensions: [1,32,14,14], Datatype: Int8, Format: (NHWC) Channel major format }], \
Constants: [ { Name: w, Dimensions: [1], Datatype: Int8, Format: (Linear) Row major linear format }, \
{ Name: s, Dimensions: [1], Datatype: Float }], \
Outputs: [ { Name: y, Dimensions: [-1,32], Datatype: Half, Format: (Linear) Row major linear format }], \
TacticName: __myelin_CASK_STUB, StreamId: 0, Metadata: [ONNX Layer: node_Conv_12][ONNX Layer: node_relu]"""
# As TensorRT 8 to 10 write them.
ARROWS = """[V] [TRT] Engine Layer Information:
Layer(Reformat): quantize, Tactic: 0x00000000000003ea, images[Float(1,3,640,960)] -> q[Int8(1,3,640,960)]
Layer(CaskConvolution): conv + relu, Tactic: 0x4727434768e46395, q[Int8(-1,3,8,8)], \
Half[Float(1)] -> y[Half(-1,96,5,5)]
Layer(Myelin): {ForeignNode[a...b]}, Tactic: 0, q (Half[1,8:4,8,8]) -> lengths (Float[1,10])"""


def test_the_log_of_tensorrt_rtx() -> None:
    shapes, conv = engine_layers.from_log([RTX])
    assert shapes.moves
    assert conv.kernel == "__myelin_CASK_STUB"
    assert conv == EngineLayer("conv", "correlation", ("INT8",), ("FP16",), ("INT8", "FP32"))


def test_the_log_of_tensorrt() -> None:
    quantize, conv, myelin = engine_layers.from_log(["nothing of it", ARROWS])
    assert quantize.moves
    assert conv == EngineLayer("conv + relu", "CaskConvolution", ("INT8", "FP32"), ("FP16",))
    assert conv.is_product
    assert myelin == EngineLayer("{ForeignNode[a...b]}", "Myelin", ("FP16",), ("FP32",))


def test_what_one_source_does_not_tell_the_other_does() -> None:
    untold = EngineLayer("conv + relu", "CaskConvolution", ("", ""), ("",))
    told = EngineLayer("told", "gemm", ("FP32",), ("FP32",))
    log = engine_layers.from_log([ARROWS])
    filled = engine_layers.fill([untold, told], log)
    assert filled[0].input_types == {"INT8", "FP32"}
    assert filled[1] == told
    assert engine_layers.fill([untold], []) == [untold]
    assert engine_layers.fill([], log) == log
