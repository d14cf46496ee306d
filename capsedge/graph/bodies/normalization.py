"""Body of ``capsedge::PoseNormalization``."""

from __future__ import annotations

from capsedge.graph.bodies._builder import Body


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


def build(b: Body) -> None:
    """Write the body."""
    shape = b.shapes["x"]
    x = b.input("x")
    if len(shape) > 4:
        x = b.reshape(x, b.merged(shape[:-1]), int(shape[-1] or 0))
    y = normalize(b, x)
    if len(shape) > 4:
        y = b.reshape(y, *(-1 if d is None else d for d in shape))
    b.result("y", y)
