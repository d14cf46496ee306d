"""Small ONNX files as other tools write them: opset 8 to 21, and what this package's own never have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, NDArray[Any]]
SAMPLES = 40
FLOAT, DOUBLE, INT64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64


@dataclass(frozen=True)
class File:
    """A file and arrays ``[SAMPLES, ...]`` for its inputs.

    Attributes:
        model: the file.
        data: by the name of the input.
        refused: what `quantize` says if it refuses the file; empty if it quantizes it.
    """

    model: onnx.ModelProto
    data: Arrays
    refused: str = ""


def _random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _weights(dtype: Any = np.float32) -> dict[str, NDArray[Any]]:
    values = {
        "k": 0.3 * _random(8, 1, 3, 3), "b": 0.1 * _random(8, seed=1),
        "w": 0.2 * _random(8 * 36, 5, seed=2), "c": 0.1 * _random(5, seed=3),
    }  # fmt: skip
    return {name: value.astype(dtype) for name, value in values.items()}


def _layers(x: str = "x", y: str = "y") -> list[onnx.NodeProto]:
    return [
        helper.make_node("Conv", [x, "k", "b"], ["conv"], name="conv"),
        helper.make_node("Relu", ["conv"], ["relu"], name="relu"),
        helper.make_node("Flatten", ["relu"], ["flat"], name="flat", axis=1),
        helper.make_node("Gemm", ["flat", "w", "c"], [y], name="gemm"),
    ]


def _value(name: str, shape: list[Any] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, NDArray[Any]],
    opset: int = 17,
    ir: int = 8,
    **more: Any,
) -> onnx.ModelProto:
    stored = [numpy_helper.from_array(v, k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "foreign", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", opset), *more.pop("opsets", [])]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=ir, producer_name="other", **more
    )


IMAGES = {"x": _random(SAMPLES, 1, 8, 8, seed=9)}
_X, _Y = ["n", 1, 8, 8], ["n", 5]


def _opset(number: int) -> File:
    ir = {8: 3, 9: 4}.get(number, 8 if number < 19 else 10)
    weights, inputs = _weights(), [_value("x", _X)]
    if ir == 3:  # weights are inputs, too
        inputs += [_value(k, list(v.shape)) for k, v in weights.items()]
    refused = "opset" if number < 10 else ""
    return File(_model(_layers(), inputs, [_value("y", _Y)], weights, number, ir), IMAGES, refused)


def double_input() -> File:
    """Takes FP64 and computes in FP32."""
    nodes = [helper.make_node("Cast", ["x"], ["x32"], to=FLOAT), *_layers("x32")]
    model = _model(nodes, [_value("x", _X, DOUBLE)], [_value("y", _Y)], _weights())
    return File(model, {"x": IMAGES["x"].astype(np.float64)})


def double() -> File:
    """FP64 throughout."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "m"], ["y"])
    ]  # fmt: skip
    weights = {"m": _random(64, 5).astype(np.float64)}
    model = _model(nodes, [_value("x", _X, DOUBLE)], [_value("y", _Y, DOUBLE)], weights)
    return File(model, {"x": IMAGES["x"].astype(np.float64)}, "Its weights are DOUBLE, not FP32")


def half() -> File:
    """FP16 throughout."""
    f16 = TensorProto.FLOAT16
    model = _model(_layers(), [_value("x", _X, f16)], [_value("y", _Y, f16)], _weights(np.float16))
    return File(model, {"x": IMAGES["x"].astype(np.float16)}, "no layer that can be quantized")


def two_inputs_and_outputs() -> File:
    """An image and a vector, two outputs, one of them whole numbers."""
    nodes = [
        *_layers(y="scores"), helper.make_node("MatMul", ["pose", "m"], ["turned"]),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
    ]  # fmt: skip
    model = _model(
        nodes,
        [_value("x", _X), _value("pose", ["n", 20])],
        [_value("turned", ["n", 16]), _value("best", ["n"], INT64)],
        _weights() | {"m": _random(20, 16, seed=4)},
    )
    return File(model, IMAGES | {"pose": _random(SAMPLES, 20, seed=5)})


def no_batch() -> File:
    """One sample as it is: no axis counts them; the output is a vector."""
    nodes = [
        helper.make_node("MatMul", ["x", "m"], ["a"]),
        helper.make_node("Tanh", ["a"], ["t"]),
        helper.make_node("ReduceMean", ["t"], ["y"], axes=[0], keepdims=0),
    ]
    model = _model(nodes, [_value("x", [6, 24])], [_value("y", [32])], {"m": _random(24, 32)})
    return File(model, {"x": _random(SAMPLES, 6, 24, seed=6)})


def fixed_batch() -> File:
    """Four at a time, and an output that mixes them."""
    nodes = [*_layers(), helper.make_node("Transpose", ["y"], ["turned"], perm=[1, 0])]
    model = _model(nodes, [_value("x", [4, 1, 8, 8])], [_value("turned", [5, 4])], _weights())
    return File(model, IMAGES)


def scalar_output() -> File:
    """A single number of unknown shape for the whole batch."""
    nodes = [*_layers(), helper.make_node("ReduceMean", ["y"], ["mean"], keepdims=0)]
    return File(_model(nodes, [_value("x", _X)], [_value("mean", None)], _weights()), IMAGES)


def pixels() -> File:
    """Takes uint8 [N, H, W, C] and prepares it in the graph."""
    nodes = [
        helper.make_node("Cast", ["x"], ["floats"], to=FLOAT),
        helper.make_node("Div", ["floats", "range"], ["small"]),
        helper.make_node("Transpose", ["small"], ["nchw"], perm=[0, 3, 1, 2]), *_layers("nchw"),
    ]  # fmt: skip
    x = np.random.default_rng(0).integers(0, 256, (SAMPLES, 8, 8, 1), dtype=np.uint8)
    value = _value("x", ["n", 8, 8, 1], TensorProto.UINT8)
    model = _model(
        nodes, [value], [_value("y", _Y)], _weights() | {"range": np.float32(255.0).reshape(1)}
    )
    return File(model, {"x": x})


def loop() -> File:
    """A Loop whose body reads a tensor from outside and multiplies by a weight."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["carried", "square"], ["product"], name="inner"),
            helper.make_node("Add", ["product", "y0"], ["next"]),
            helper.make_node("Identity", ["going"], ["goes"]),
        ],
        "body",
        [
            _value("i", [], INT64),
            _value("going", [], TensorProto.BOOL),
            _value("carried", ["n", 5]),
        ],
        [_value("goes", [], TensorProto.BOOL), _value("next", ["n", 5])],
    )
    nodes = [*_layers(y="y0"), helper.make_node("Loop", ["trips", "", "y0"], ["y"], body=body)]
    weights = _weights() | {"square": 0.2 * _random(5, 5), "trips": np.array(3, np.int64)}
    return File(_model(nodes, [_value("x", _X)], [_value("y", _Y)], weights), IMAGES)


def branch() -> File:
    """An If with the convolution's result in both branches only."""

    def one(op: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node(op, ["relu"], [f"of_{op}"])], op, [], [_value(f"of_{op}", None)]
        )

    nodes = [
        *_layers()[:2],
        helper.make_node("If", ["yes"], ["z"], then_branch=one("Tanh"), else_branch=one("Neg")),
        helper.make_node("Flatten", ["z"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["y"]),
    ]  # fmt: skip
    return File(
        _model(nodes, [_value("x", _X)], [_value("y", None)], _weights() | {"yes": np.array(True)}),
        IMAGES,
    )


def optional_outputs() -> File:
    """Outputs that are left out by an empty name, and one without a name for its batch."""
    nodes = [
        *_layers()[:2],
        helper.make_node("MaxPool", ["relu"], ["pooled", ""], kernel_shape=[1, 1]),
        helper.make_node("Dropout", ["pooled"], ["kept", ""]),
        helper.make_node("Flatten", ["kept"], ["flat"]), helper.make_node("Gemm", ["flat", "w", "c"], ["y"]),
    ]  # fmt: skip
    return File(
        _model(nodes, [_value("x", [None, 1, 8, 8])], [_value("y", [None, 5])], _weights()), IMAGES
    )


def constants() -> File:
    """Weights in Constant nodes, made by an old tracer."""
    stored = [
        helper.make_node("Constant", [], [k], value=numpy_helper.from_array(v, k))
        for k, v in _weights().items()
    ]
    return File(
        _model([*stored, *_layers()], [_value("x", _X)], [_value("y", _Y)], {}, opset=13), IMAGES
    )


def functions() -> File:
    """A function of another domain that holds the layers."""
    function = helper.make_function(
        "pkg.other",
        "Net",
        ["x", "k", "b", "w", "c"],
        ["y"],
        _layers(),
        [helper.make_opsetid("", 17)],
    )
    call = helper.make_node("Net", ["x", "k", "b", "w", "c"], ["y"], domain="pkg.other")
    model = _model(
        [call], [_value("x", _X)], [_value("y", _Y)], _weights(), functions=[function],
        opsets=[helper.make_opsetid("pkg.other", 1)],
    )  # fmt: skip
    return File(model, IMAGES)


def nothing() -> File:
    """No weights."""
    model = _model(
        [helper.make_node("Relu", ["x"], ["y"])], [_value("x", _X)], [_value("y", _X)], {}
    )
    return File(model, IMAGES, "no layer that can be quantized")


def sizes_by_value() -> File:
    """An output whose size depends on the values."""
    nodes = [*_layers(), helper.make_node("NonZero", ["relu"], ["where"])]
    model = _model(
        nodes, [_value("x", _X)], [_value("y", _Y), _value("where", [4, "m"], INT64)], _weights()
    )
    return File(model, IMAGES, "cannot be compared")


def named_dimensions() -> File:
    """Height and width are free."""
    nodes = [
        *_layers()[:2], helper.make_node("GlobalAveragePool", ["relu"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Resize", ["relu", "", "scales"], ["large"], mode="nearest"),
    ]  # fmt: skip
    weights = {k: v for k, v in _weights().items() if k in "kb"}
    model = _model(
        nodes, [_value("x", ["n", 1, "height", "width"])],
        [_value("flat", ["n", 8]), _value("large", ["n", 8, "h2", "w2"])],
        weights | {"scales": np.array([1, 1, 2, 2], np.float32)},
    )  # fmt: skip
    return File(model, IMAGES)


def words() -> File:
    """A second output of strings."""
    nodes = [
        *_layers(), helper.make_node("ArgMax", ["y"], ["best"], axis=1, keepdims=0),
        helper.make_node(
            "LabelEncoder", ["best"], ["word"], domain="ai.onnx.ml", keys_int64s=list(range(5)),
            values_strings=list("abcde"),
        ),
    ]  # fmt: skip
    outputs = [_value("y", _Y), _value("word", ["n"], TensorProto.STRING)]
    opsets = [helper.make_opsetid("ai.onnx.ml", 3)]
    return File(_model(nodes, [_value("x", _X)], outputs, _weights(), opsets=opsets), IMAGES)


def masked() -> File:
    """Scores masked by minus infinity before a softmax."""
    nodes = [
        *_layers(y="raw"), helper.make_node("Add", ["raw", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["y"], axis=1),
    ]  # fmt: skip
    mask = np.array([0, 0, -np.inf, 0, -np.inf], np.float32)
    return File(
        _model(nodes, [_value("x", _X)], [_value("y", _Y)], _weights() | {"mask": mask}), IMAGES
    )


def types_between() -> File:
    """FP32 made of whole numbers, by Cast and ConstantOfShape."""
    half_ = numpy_helper.from_array(np.array([0.5], np.float32))
    nodes = [
        *_layers(y="y0"), helper.make_node("Shape", ["y0"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["full"], value=half_),
        helper.make_node("Cast", ["five"], ["fives"], to=FLOAT),
        helper.make_node("Mul", ["y0", "full"], ["a"]), helper.make_node("Add", ["a", "fives"], ["y"]),
    ]  # fmt: skip
    weights = _weights() | {"five": np.arange(5)}
    return File(_model(nodes, [_value("x", _X)], [_value("y", _Y)], weights), IMAGES)


def sequence() -> File:
    """An output that is no tensor."""
    nodes = [*_layers(), helper.make_node("SplitToSequence", ["y"], ["parts"], axis=1)]
    parts = helper.make_tensor_sequence_value_info("parts", FLOAT, None)
    return File(_model(nodes, [_value("x", _X)], [_value("y", _Y), parts], _weights()), IMAGES)


MADE: dict[str, Callable[[], File]] = {
    f.__name__: f
    for f in (
        double_input, double, half, two_inputs_and_outputs, no_batch, fixed_batch, scalar_output,
        pixels, loop, branch, optional_outputs, constants, functions, nothing, sizes_by_value,
        named_dimensions, words, masked, types_between, sequence,
    )
} | {f"opset{n}": (lambda n=n: _opset(n)) for n in (8, 9, 11, 13, 17, 18, 21)}  # fmt: skip
