"""Bodies of the operators that do not route: squashes, convolutions, and those with INT8 weights."""

from __future__ import annotations

import math

from onnx import TensorProto, helper

from capsedge.graph.bodies.body import Body
from capsedge.spec.operators import OPERATORS

# --- Squash ---


def squash_elements(b: Body, x: str, epsilon: float) -> str:
    """Each element as a pose of its own."""
    return _scaled(b, x, b.op("Mul", x, x), epsilon)


def squash(b: Body, x: str, size: int, epsilon: float, *, last: bool = True) -> str:
    """``x · n²/(1 + n²) / sqrt(n² + epsilon)`` (Sabour et al. 2017, equation 1).

    Args:
        x: poses of ``size`` elements along the last axis or, without ``last``, the second to last.
    """
    square = b.op("Mul", x, x)
    n2 = b.sum_last(square, size) if last else b.sum_second_to_last(square, size)
    return _scaled(b, x, n2, epsilon)


def _scaled(b: Body, x: str, n2: str, epsilon: float) -> str:
    """Poses scaled to the length given by their squared norms."""
    share = b.op("Div", n2, b.op("Add", n2, b.constant(1.0)))
    root = b.op("Sqrt", b.op("Add", n2, b.constant(epsilon)))
    return b.op("Mul", x, b.op("Div", share, root))


def exponential_squash(b: Body, x: str, size: int, epsilon: float) -> str:
    """``(1 - exp(-n)) · x / (n + epsilon)`` along the last axis, of ``size`` elements."""
    n = b.op("Sqrt", b.sum_last(b.op("Mul", x, x), size))
    length = b.op("Sub", b.constant(1.0), b.op("Exp", b.op("Neg", n)))
    return b.op("Mul", x, b.op("Div", length, b.op("Add", n, b.constant(epsilon))))


def build_squash(b: Body) -> None:
    """Write the body: the axes before and after the pose are merged into one each, so that no rank exceeds 3.

    If the batch is not before that axis, sizes are unknown, and the axes are left unchanged.
    """
    shape = b.shapes["x"]
    axis = b.attributes["axis"] % len(shape)
    if None in shape[axis:] or shape.count(None) > 1:
        x = b.input("x")
        n2 = b.op("ReduceSum", b.op("Mul", x, x), b.ints([axis]), keepdims=1)
        b.result("y", _scaled(b, x, n2, b.attributes["epsilon"]))
        return
    size = int(shape[axis] or 0)
    after = math.prod(int(d or 0) for d in shape[axis + 1 :])
    last = axis == len(shape) - 1
    x = b.input("x")
    flat = (b.merged(shape[:axis]), size) if last else (b.merged(shape[:axis]), size, after)
    if len(shape) > len(flat):
        x = b.reshape(x, *flat)
    y = squash(b, x, size, b.attributes["epsilon"], last=last)
    if len(shape) > len(flat):
        y = b.reshape(y, *(-1 if d is None else d for d in shape))
    b.result("y", y)


# --- PoseNormalization ---


def normalize(b: Body, x: str) -> str:
    """ONNX's own layer normalization over the last axis."""
    return b.op(
        "LayerNormalization",
        x,
        b.input("scale"),
        b.input("bias"),
        axis=-1,
        epsilon=b.attributes["epsilon"],
    )


def build_normalization(b: Body) -> None:
    """Write the body of ``PoseNormalization``: layer normalization over the last axis."""
    shape = b.shapes["x"]
    x = b.input("x")
    if len(shape) > 4:
        x = b.reshape(x, b.merged(shape[:-1]), int(shape[-1] or 0))
    y = normalize(b, x)
    if len(shape) > 4:
        y = b.reshape(y, *(-1 if d is None else d for d in shape))
    b.result("y", y)


# --- Operators with INT8 weights: dequantize, then the body of the float operator ---


def dequantize(b: Body) -> None:
    """Write ``weight · weight_scale``, which the following body uses as its weight."""
    layout = OPERATORS[b.operator].layout
    assert layout is not None
    sizes = zip(layout.weight, b.shapes["weight"], strict=True)
    shape = [int(d or 0) if axis in layout.scale else 1 for axis, d in sizes]
    scale = b.reshape(b.input("weight_scale"), *shape)
    b.compute_input("weight", b.op("Mul", b.input("weight"), scale))


def build(b: Body) -> None:
    """Write the body of ``FastConv``: ONNX's ``Conv``."""
    names = [b.input(name) for name in b.shapes]
    kernel = [int(d or 0) for d in b.shapes["weight"][2:]]
    b.result("y", b.op("Conv", *names, kernel_shape=kernel, **b.attributes))


def build_quantized(b: Body) -> None:
    """Write the body of ``QuantizedConv``: ONNX's ``QLinearConv``.

    The weight's zero points, all zero, are computed from the bias, so that each node has its own tensor after
    ONNX Runtime has folded constants. Optimizers let convolutions share equal tensors, which ONNX Runtime
    cannot convert on x86 without VNNI (`multiply_exactly`).
    """
    whole = b.op("Cast", b.formal("weight_zero_point"), to=TensorProto.INT32)
    nothing = b.op("Sub", b.formal("bias"), b.formal("bias"))
    zeros = b.op("Cast", b.op("Add", whole, nothing), to=TensorProto.INT8)
    node = helper.make_node(
        "QLinearConv",
        [zeros if name == "weight_zero_point" else b.formal(name) for name in b.shapes],
        [b.formal("y")],
        kernel_shape=[int(d or 0) for d in b.shapes["weight"][2:]],
        **b.attributes,
    )
    b.nodes.append(node)
