"""Votes in the layout that routes fastest: ``[N·S, M, I, P]``, parents before children.

``S`` output positions, ``I`` children of a window, ``M`` parents, ``P = R·L`` elements of a pose of
``R`` rows. With the children next to the pose, the weighted sum and the agreement of a parent are one
matrix product each that reads the votes once and writes nothing of their size.
"""

from __future__ import annotations

import numpy as np

from capsedge.graph.bodies._builder import Body

MANY = 16  # positions from which one product for each parent is faster than one for all


def grid(
    height: int, width: int, kernel: tuple[int, int], strides: tuple[int, int]
) -> tuple[int, int]:
    """Output grid of a capsule convolution without padding."""
    return (height - kernel[0]) // strides[0] + 1, (width - kernel[1]) // strides[1] + 1


def window_index(
    height: int, width: int, kernel: tuple[int, int], strides: tuple[int, int]
) -> np.ndarray:
    """Which cell of the flattened grid is the k-th of each window: ``[S, Kh*Kw]``."""
    h, w = grid(height, width, kernel, strides)
    rows = (np.arange(h) * strides[0])[:, None] + np.arange(kernel[0])
    columns = (np.arange(w) * strides[1])[:, None] + np.arange(kernel[1])
    cells = rows[:, None, :, None] * width + columns[None, :, None, :]
    return cells.reshape(h * w, kernel[0] * kernel[1])


def windows(b: Body, x: str, height: int, width: int, cell: int, index: np.ndarray) -> str:
    """Children of each output position: ``[N, S*Kh*Kw, cell]`` from ``[N, height, width, ...]``.

    Args:
        cell: elements in one cell of the grid.
        index: of ``window_index``.
    """
    flat = b.reshape(x, b.batched(), height * width, cell)
    order = index.reshape(-1)
    if np.array_equal(order, np.arange(height * width)):
        return flat  # one window over the whole grid, or 1x1 windows over all of it
    return b.op("Gather", flat, b.ints(order.tolist()), axis=1)


def votes(
    b: Body, children: str, weight: str, positions: int, sizes: tuple[int, int, int, int, int]
) -> str:
    """Votes ``[N·S, M, I, R·L]``.

    Args:
        children: ``[N, S*I*R*K]`` in this order, in any shape.
        weight: ``[I, K, M*L]``.
        positions: S.
        sizes: I, R, K, M, L.
    """
    i, r, k, m, out = sizes
    places, lines = b.batched(positions), b.batched(positions * r)
    x = b.transpose(b.reshape(children, places, i, r * k), 1, 0, 2)
    if r > 1 and max(positions, places) >= MANY:
        per_parent = b.transpose(b.reshape(weight, i, k, m, out), 2, 0, 1, 3)
        v = b.op("MatMul", b.reshape(x, 1, i, lines, k), per_parent)  # [M, I, N·S·R, L]
        v = b.transpose(b.reshape(v, m * i, places, r * out), 1, 0, 2)
        return b.reshape(v, places, m, i, r * out)
    v = b.op("MatMul", b.reshape(x, i, lines, k), weight)  # [I, N·S·R, M·L]
    if r == 1 or places == 1:
        # At one place with its dimension: ONNX Runtime is 3 times slower without.
        v = b.transpose(b.reshape(v, i * r, places, m, out), 1, 2, 0, 3)
    else:
        v = b.transpose(b.reshape(v, i, places, r, m, out), 1, 3, 0, 2, 4)
    return v if r == 1 else b.reshape(v, places, m, i, r * out)


def weighted_sum(b: Body, couplings: str, v: str) -> str:
    """``Σ_i c_i V_i``: couplings ``[N·S or 1, M, 1, I]`` and votes give ``[N·S, M, 1, P]``."""
    return b.op("MatMul", couplings, v)


def row(b: Body, x: str) -> str:
    """``[N·S or 1, M, I]`` as ``[N·S or 1, M, 1, I]``."""
    return b.op("Unsqueeze", x, b.ints([2]))


def agreement(
    b: Body, v: str, parents: str, sizes: tuple[int, int, int, int], scale: float = 1.0
) -> str:
    """``scale · V_i · parent``: votes and parents (``N·S·M·P`` elements) give ``[N·S, M, I]``.

    Args:
        sizes: S, M, I, P.
    """
    s, m, i, p = sizes
    places = b.batched(s)
    column = b.reshape(parents, places, m, p, 1)
    if scale != 1.0:
        column = b.op("Mul", column, b.constant(scale))
    return b.reshape(b.op("MatMul", v, column), places, m, i)
