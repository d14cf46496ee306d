"""Body of ``capsedge::QuantizedConv``."""

from __future__ import annotations

from onnx import helper

from capsedge.graph.bodies._builder import Body


def build(b: Body) -> None:
    """Write the body: ONNX's own operator."""
    node = helper.make_node(
        "QLinearConv",
        [b.formal(name) for name in b.shapes],
        [b.formal("y")],
        kernel_shape=[int(d or 0) for d in b.shapes["weight"][2:]],
        **b.attributes,
    )
    b.nodes.append(node)
