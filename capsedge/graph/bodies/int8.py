"""Bodies of the operators with INT8 weights: dequantize, then the body of the float operator."""

from __future__ import annotations

from onnx import helper

from capsedge.graph.bodies import attention, dynamic, em, uniform
from capsedge.graph.bodies._builder import Body


def _dequantize(b: Body, *shape: int) -> None:
    """``weight · weight_scale`` in place of the weight; ``shape`` brings the scale to the weight's axes."""
    scale = b.reshape(b.input("weight_scale"), *shape)
    b.compute_input("weight", b.op("Mul", b.input("weight"), scale))


def _dequantize_windows(b: Body) -> None:
    """``[Kh, Kw, C, M, K, L]`` with a scale ``[M, L]``."""
    *_, m, _, columns = (int(d or 0) for d in b.shapes["weight"])
    _dequantize(b, 1, 1, 1, m, 1, columns)


def build_dynamic(b: Body) -> None:
    """Body of ``capsedge::QuantizedDynamicRouting``: weights ``[I, J, Pout, Pin]``, scale ``[J, Pout]``."""
    _, j, out, _ = (int(d or 0) for d in b.shapes["weight"])
    _dequantize(b, 1, j, out, 1)
    dynamic.build(b)


def build_em(b: Body) -> None:
    """Body of ``capsedge::QuantizedEMRouting``."""
    _dequantize_windows(b)
    em.build(b)


def build_attention(b: Body) -> None:
    """Body of ``capsedge::QuantizedAttentionRouting``."""
    _dequantize_windows(b)
    attention.build(b)


def build_uniform(b: Body) -> None:
    """Body of ``capsedge::QuantizedUniformRouting``."""
    _dequantize_windows(b)
    uniform.build(b)


def build_conv(b: Body) -> None:
    """Body of ``capsedge::QuantizedConv``: ONNX's own operator."""
    node = helper.make_node(
        "QLinearConv",
        [b.formal(name) for name in b.shapes],
        [b.formal("y")],
        kernel_shape=[int(d or 0) for d in b.shapes["weight"][2:]],
        **b.attributes,
    )
    b.nodes.append(node)
