"""Body of ``capsedge::Squash``."""

from __future__ import annotations

from capsedge.exporters.bodies._builder import Body


def squash(b: Body, x: str, axis: int, epsilon: float) -> str:
    """``x · n²/(1 + n²) / sqrt(n² + epsilon)`` along one axis (Sabour et al. 2017, equation 1)."""
    n2 = b.reduce_sum(b.op("Mul", x, x), axis)
    share = b.op("Div", n2, b.op("Add", n2, b.constant(1.0)))
    root = b.op("Sqrt", b.op("Add", n2, b.constant(epsilon)))
    return b.op("Mul", x, b.op("Div", share, root))


def build(b: Body) -> None:
    """Write the body."""
    y = squash(b, b.input("x"), b.attributes["axis"], b.attributes["epsilon"])
    b.result("y", y)
