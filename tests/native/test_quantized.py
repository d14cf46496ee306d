"""Operators with INT8 weights, and QuantizedConv: sentences for mistakes and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capsedge.spec.operators import OPERATORS
from tests.conformance.native import fused_session

from .library import Array, NativeError, Operator, load
from .test_kernels import ATTENTION, DYNAMIC, EM, UNIFORM, zeros

pytestmark = pytest.mark.skipif(
    load() is None, reason="the native library is not built: pip install -e . with a C++ compiler"
)
Node = tuple[str, dict[str, Any], dict[str, Array]]


def _quantized(node: tuple[str, dict[str, Any], list[Array]]) -> Node:
    """A float operator's node with an INT8 weight of zeros and its scale."""
    inputs: dict[str, Array] = {}
    for name, x in zip(OPERATORS[node[0]].input_names, node[2], strict=False):
        if name != "weight":
            inputs[name] = x
            continue
        inputs[name] = np.zeros(x.shape, np.int8)
        axes = (1, 2) if x.ndim == 4 else (3, 5)
        inputs["weight_scale"] = np.ones([x.shape[axis] for axis in axes], np.float32)
    return f"Quantized{node[0]}", node[1], inputs


def _conv() -> Node:
    rng = np.random.default_rng(3)
    inputs: dict[str, Array] = {
        "x": rng.integers(0, 256, (2, 3, 7, 8)).astype(np.uint8),
        "x_scale": np.asarray(0.02, np.float32),
        "x_zero_point": np.asarray(3, np.uint8),
        "weight": rng.integers(-127, 128, (5, 3, 3, 2)).astype(np.int8),
        "weight_scale": rng.uniform(0.01, 0.02, 5).astype(np.float32),
        "weight_zero_point": np.zeros(5, np.int8),
        "y_scale": np.asarray(0.9, np.float32),
        "y_zero_point": np.asarray(128, np.uint8),
        "bias": rng.integers(-1000, 1000, 5).astype(np.int32),
    }
    attributes = {"strides": (2, 1), "pads": (1, 0, 0, 2), "dilations": (1, 2)}
    return "QuantizedConv", attributes, inputs


def _fails(node: Node, message: str, **changed: Array) -> None:
    inputs = {**node[2], **changed}
    with pytest.raises(NativeError, match=message):
        Operator(node[0], node[1]).run(
            list(inputs.values()), [zeros(1)] * (2 if "EM" in node[0] else 1)
        )


@pytest.mark.parametrize("operator", [DYNAMIC, EM, ATTENTION, UNIFORM], ids=lambda x: x[0])
def test_wrong_inputs_of_routing_are_named(
    operator: tuple[str, dict[str, Any], list[Array]],
) -> None:
    node = _quantized(operator)
    name, scale = node[0], node[2]["weight_scale"]
    wanted = rf"\[{scale.shape[0]}, {scale.shape[1]}\]"
    _fails(
        node,
        rf"{name}: input 'weight_scale' has shape \[4\]: wanted {wanted}",
        weight_scale=zeros(4),
    )
    short = node[2]["weight"][:, :, :1]
    _fails(
        node, rf"{name}: input 'weight' has shape \[", weight=np.ascontiguousarray(short[..., :-1])
    )
    with pytest.raises(
        NativeError, match=f"{name}: {len(node[2]) - 1} inputs: wanted {len(node[2])}"
    ):
        Operator(name, node[1]).run(list(node[2].values())[:-1], [zeros(1)])
    made, index = Operator(name, node[1]), list(node[2]).index("weight")
    with pytest.raises(NativeError, match=f"{name}: input 'weight' is float: wanted int8"):
        made.constant(index, node[2]["weight"].astype(np.float32))
    with pytest.raises(
        NativeError, match=rf"{name}: attribute 'epsilon' is 0\.0+: wanted a number"
    ):
        Operator(name, {**node[1], "epsilon": 0.0})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.zeros((2, 3, 7), np.uint8)}, r"'x' has shape \[2, 3, 7\]: wanted \[N, C, H, W\]"),
        ({"weight": np.zeros((5, 4, 3, 2), np.int8)}, r"'weight' has shape .*: wanted \[M, 3, Kh, Kw\]"),
        ({"weight": np.zeros((5, 3, 9, 2), np.int8)}, r"window of 9x3 is larger than the grid of 8x10"),
        ({"x_scale": zeros(1)}, r"input 'x_scale' has shape \[1\]: wanted \[\]"),
        ({"weight_scale": zeros(4)}, r"input 'weight_scale' has shape \[4\]: wanted \[5\]"),
        ({"weight_zero_point": np.ones(5, np.int8)}, r"'weight_zero_point' is not zero: weights are"),
        ({"bias": np.zeros(4, np.int32)}, r"input 'bias' has shape \[4\]: wanted \[5\]"),
    ],
)  # fmt: skip
def test_wrong_inputs_of_a_convolution_are_named(changed: dict[str, Array], message: str) -> None:
    name, attributes, inputs = _conv()
    given = {**inputs, **changed}
    output = np.zeros((2, 5, 3, 8), np.uint8)
    with pytest.raises(NativeError, match=f"QuantizedConv: .*{message}"):
        Operator(name, attributes).run(list(given.values()), [output])


def test_a_wrong_type_is_named() -> None:
    name, attributes, inputs = _conv()
    given = {**inputs, "bias": inputs["bias"].astype(np.float32)}
    with pytest.raises(NativeError, match="QuantizedConv: input 'bias' is float: wanted int32"):
        Operator(name, attributes).run(list(given.values()), [np.zeros((2, 5, 3, 8), np.uint8)])


def test_sums_that_may_not_fit_are_refused() -> None:
    name, attributes, inputs = _conv()
    given = {
        **inputs,
        "x": np.zeros((1, 4000, 7, 8), np.uint8),
        "weight": np.zeros((5, 4000, 6, 3), np.int8),
    }
    with pytest.raises(NativeError, match="a sum of more than 65000 products may not fit 32 bits"):
        Operator(name, attributes).run(list(given.values()), [np.zeros(1, np.uint8)])


@pytest.mark.parametrize("pads", [(0, 2**31 - 1, 0, 0), (2**31 - 1, 2**31 - 1) * 2])
def test_too_much_padding_is_refused(pads: tuple[int, ...]) -> None:
    name, attributes, inputs = _conv()
    with pytest.raises(NativeError, match=r"'x' of shape .* is too large: .* its padding"):
        Operator(name, {**attributes, "pads": pads}).run(list(inputs.values()), [zeros(1)])


@pytest.mark.parametrize("shape", [(0, 3, 3, 2), (5, 0, 3, 2), (5, 3, 0, 2)])
def test_a_constant_weight_without_elements_is_named(shape: tuple[int, ...]) -> None:
    name, attributes, inputs = _conv()
    given = {**inputs, "weight": np.zeros(shape, np.int8)}
    made = Operator(name, attributes)
    made.constant(list(given).index("weight"), given["weight"])
    with pytest.raises(NativeError, match=r"input 'weight' has shape .*: wanted \[M, 3, Kh, Kw\]"):
        made.run(list(given.values()), [np.zeros((2, 5, 3, 8), np.uint8)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pads": (1, 1)}, r"attribute 'pads' is \[1, 1\]: wanted 4 numbers of 0 or more"),
        ({"dilations": (0, 1)}, r"attribute 'dilations' is \[0, 1\]: wanted 2 numbers of 1 or more"),
        ({"dilations": (1, 2**62)}, r"attribute 'dilations' is .*: wanted 2 numbers .*at most 2147483647"),
        ({"strides": (1, -1)}, r"attribute 'strides' is \[1, -1\]: wanted 2 numbers of 1 or more"),
    ],
)  # fmt: skip
def test_wrong_attributes_of_a_convolution_are_named(change: dict[str, Any], message: str) -> None:
    name, attributes, _ = _conv()
    with pytest.raises(NativeError, match=f"QuantizedConv: {message}"):
        Operator(name, {**attributes, **change})


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        (DYNAMIC, [["N", 3, 4]]),
        (EM, [["N", 2, 2, 5, 16], ["N", 2, 2, 5]]),
        (ATTENTION, [["N", 2, 2, 5, 16]]),
        (UNIFORM, [["N", 2, 2, 5, 16]]),
    ],
    ids=lambda x: x[0] if isinstance(x, tuple) else "",
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_shapes_of_routing_are_inferred(
    operator: tuple[str, dict[str, Any], list[Array]], shapes: list[Any], dtype: str
) -> None:
    """In a float16 node all but the weight and its scale is float16."""
    pytest.importorskip("onnx")
    name, attributes, inputs = _quantized(operator)
    kept = ("weight", "weight_scale")
    inputs = {k: x if k in kept else x.astype(dtype) for k, x in inputs.items()}
    session = fused_session(name, attributes, inputs)
    assert [x.shape for x in session.get_outputs()] == shapes
    expected = "tensor(float)" if dtype == "float32" else "tensor(float16)"
    assert {x.type for x in session.get_outputs()} == {expected}


def test_the_shape_of_a_convolution_is_inferred() -> None:
    pytest.importorskip("onnx")
    name, attributes, inputs = _conv()
    (output,) = fused_session(name, attributes, inputs).get_outputs()
    assert (output.shape, output.type) == (["N", 5, 3, 8], "tensor(uint8)")


def test_a_scale_that_is_not_constant() -> None:
    """Weights are then packed in every run, to the same numbers."""
    pytest.importorskip("onnx")
    rng = np.random.default_rng(4)
    name, attributes, inputs = _quantized(DYNAMIC)
    inputs["weight"] = rng.integers(-127, 128, inputs["weight"].shape).astype(np.int8)
    inputs["weight_scale"] = rng.uniform(0.5e-2, 1e-2, (3, 4)).astype(np.float32)
    inputs["u"] = rng.standard_normal(inputs["u"].shape).astype(np.float32)
    found = []
    for constants in (("weight", "weight_scale"), ("weight",), ("weight_scale",), ()):
        session = fused_session(name, attributes, inputs, constants=constants)
        feed = {x.name: inputs[x.name] for x in session.get_inputs()}
        found.append(session.run(None, feed)[0])
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    assert np.abs(found[0]).max() > 0.01
