"""Bodies of the operators with INT8 weights: dequantize, then the body of the float operator."""

from __future__ import annotations

from capsedge.graph.bodies._builder import Body
from capsedge.schema.operators import OPERATORS


def dequantize(b: Body) -> None:
    """Write ``weight · weight_scale``, which the body that follows takes for its weight."""
    layout = OPERATORS[b.operator].layout
    assert layout is not None
    sizes = zip(layout.weight, b.shapes["weight"], strict=True)
    shape = [int(d or 0) if axis in layout.scale else 1 for axis, d in sizes]
    scale = b.reshape(b.input("weight_scale"), *shape)
    b.compute_input("weight", b.op("Mul", b.input("weight"), scale))
