"""Traces made by hand, for each routing: small, with numbers that a test can compute again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.session.routing_trace import Trace, TracedLayer


def _softmax(values: NDArray[Any], axis: int) -> NDArray[Any]:
    e = np.exp(values - values.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def squashed(s: NDArray[Any]) -> NDArray[Any]:
    n2 = (s**2).sum(axis=-1, keepdims=True)
    return s * n2 / (1 + n2) / np.sqrt(n2 + 1e-9)


def dynamic(
    images: int = 1, children: tuple[int, int, int] = (6, 6, 8), classes: int = 10, steps: int = 3,
    pose: int = 16, name: str = "classes",
) -> TracedLayer:  # fmt: skip
    """Dynamic routing (Sabour et al. 2017, procedure 1) of random votes on a grid of children."""
    rows, columns, types = children
    count = rows * columns * types
    votes = np.random.default_rng(3).normal(0, 0.3, (images, count, classes, pose))
    logits = np.zeros(votes.shape[:3])
    couplings, poses, agreement = [], [], []
    for _ in range(steps):
        c = _softmax(logits, -1)
        v = squashed((c[..., None] * votes).sum(axis=1))
        a = (votes * v[:, None]).sum(axis=-1)
        logits = logits + a
        couplings.append(c)
        poses.append(v)
        agreement.append(a)
    return TracedLayer(
        name, "dynamic", steps, *_stacked(couplings, poses, agreement),
        grid=(1, 1), child_grid=(rows, columns), kernel=(rows, columns), strides=(1, 1),
    )  # fmt: skip


def _stacked(*values: list[NDArray[Any]]) -> tuple[NDArray[np.float32], ...]:
    return tuple(np.stack(v, axis=1).astype(np.float32) for v in values)


def layer(
    routing: str, grid: tuple[int, int], kernel: tuple[int, int], stride: int, types: int,
    parents: int, *, images: int = 1, steps: int = 2, pose: int = 16, name: str = "capsules.0",
) -> TracedLayer:  # fmt: skip
    """A layer of any routing over windows of its children's map, with random values."""
    rng = np.random.default_rng(5)
    place = () if grid == (1, 1) else grid
    shape = (images, steps, *place, kernel[0] * kernel[1] * types, parents)
    couplings = _softmax(rng.normal(size=shape), -1).astype(np.float32)
    em = routing == "em"
    below = tuple((g - 1) * stride + k for g, k in zip(grid, kernel, strict=True))
    return TracedLayer(
        name, routing, steps, couplings,
        poses=rng.normal(size=(images, steps, *place, parents, pose)).astype(np.float32),
        agreement=couplings if em else rng.normal(size=shape).astype(np.float32),
        grid=grid, child_grid=(below[0], below[1]), kernel=kernel, strides=(stride, stride),
        distances=rng.gamma(2.0, size=shape).astype(np.float32) if em else None,
        activations=rng.random((images, steps, *place, parents)).astype(np.float32) if em else None,
        children=rng.random(shape[:-1]).astype(np.float32) if em else None,
    )  # fmt: skip


def trace(routing: str, images: int = 1) -> Trace:
    """A trace of one or two layers that ends with ten classes of sixteen dimensions."""
    if routing == "dynamic":
        return Trace((dynamic(images),))
    below = layer(routing, (3, 3), (3, 3), 2, 8, 6, images=images)
    above = layer(routing, (1, 1), (3, 3), 1, 6, 10, images=images, name="classes")
    return Trace((below, above))
