"""Write the bodies of the convolutions: ONNX's own operators."""

from __future__ import annotations

from onnx import TensorProto, helper

from capsedge.graph.bodies.body import Body


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
