"""Body of ``capsedge::PoseNormalization``."""

from __future__ import annotations

from capsedge.exporters.bodies._builder import Body


def build(b: Body) -> None:
    """Write the body: ONNX's own layer normalization over the last axis."""
    y = b.op(
        "LayerNormalization",
        b.input("x"),
        b.input("scale"),
        b.input("bias"),
        axis=-1,
        epsilon=b.attributes["epsilon"],
    )
    b.result("y", y)
