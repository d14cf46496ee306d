"""Convolutions of large windows by Cook-Toom (Winograd) minimal filtering, in tiles of 2x2 outputs.

A window is cut into pieces of at most 5x5 taps that have the convolution's stride between them. Each piece is
a convolution of stride 1 over every ``stride``-th row and column: two outputs of r taps along an axis take
r + 1 products, one for each point. Pieces with the same points form a pass; they are summed like channels,
before the outputs are transformed back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from capsedge.exporters.c.program import Array

TILE = 2  # outputs of a tile along each axis
POINTS = (0.0, 1.0, -1.0, 2.0, -0.5)  # and infinity; kernels/fast_conv_f32.c has the same
BLOCK = 16  # output channels whose weights lie together
LEAST_WINDOW, MOST_WINDOW, MOST_STRIDE = 5, 16, 2
# What a value of a transform costs where it is computed from inputs, and where outputs are computed from it:
# multiply-adds that take as many instructions, on a Cortex-M7.
INPUT_COST, OUTPUT_COST = 8, 5
LEAST_GAIN = 2  # times fewer multiply-adds, or the convolution stays direct
MOST_WEIGHTS = 64 << 20  # bytes of transformed weights of a convolution


@dataclass(frozen=True)
class Taps:
    """A piece of a window along an axis: ``count`` taps from ``start`` on, a stride apart, and its points."""

    start: int
    count: int
    points: int


@dataclass(frozen=True)
class FilterPass:
    """Pieces with the same points, whose products are added before they are transformed."""

    pieces: tuple[tuple[Taps, Taps], ...]

    @property
    def points(self) -> tuple[int, int]:
        """Points of the rows and of the columns."""
        rows, columns = self.pieces[0]
        return rows.points, columns.points

    @property
    def positions(self) -> int:
        """Products of a tile, per piece and pair of channels."""
        return self.points[0] * self.points[1]


@dataclass(frozen=True)
class FastForm:
    """How a convolution is computed in tiles.

    Attributes:
        passes: the pieces of its window.
        cost: multiply-adds of an image, with the transforms.
        group: most tiles that are computed together.
    """

    passes: tuple[FilterPass, ...]
    cost: int
    group: int

    def values(self, channels: int) -> int:
        """Elements of scratch memory: a row of zeros, and the transformed inputs of a group of tiles."""
        most = max(each.positions * len(each.pieces) for each in self.passes)
        return channels * (1 + most * self.group)


def fast_form(
    channels: int,
    outputs: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    out: tuple[int, int],
) -> FastForm | None:
    """The cheapest form of a convolution without dilation and groups; None where the direct one is better.

    Args:
        channels, outputs: of the input and of the output.
        kernel: taps of the window, rows and columns.
        out: rows and columns of the output.
    """
    if min(kernel) < LEAST_WINDOW or max(kernel) > MOST_WINDOW or max(strides) > MOST_STRIDE:
        return None
    tiles = -(-out[0] // TILE) * -(-out[1] // TILE)
    groups = _groups(tiles)
    forms = []
    for most, equal in product((3, 4, 5), (False, True)):
        passes = _passes(kernel, strides, most, equal)
        weights = 4 * outputs * channels * sum(p.positions * len(p.pieces) for p in passes)
        if weights <= MOST_WEIGHTS:
            cost = _cost(passes, tiles, sum(groups), channels, outputs)
            forms.append(FastForm(passes, cost, max(groups)))
    best = min(forms, key=lambda form: form.cost, default=None)
    direct = kernel[0] * kernel[1] * channels * outputs * out[0] * out[1]
    return best if best is not None and LEAST_GAIN * best.cost <= direct else None


def _groups(tiles: int) -> list[int]:
    """Tiles that the kernel computes together: 4 or 3, so that few places of the last group stay empty."""
    groups = []
    while tiles > 0:
        groups.append(3 if tiles % 4 else 4)
        tiles -= groups[-1]
    return groups


def _cost(
    passes: Iterable[FilterPass], tiles: int, places: int, channels: int, outputs: int
) -> int:
    """Multiply-adds of an image, for so many tiles in so many places of their groups."""
    total = 0
    for each in passes:
        inputs = len(each.pieces) * channels
        total += each.positions * (
            places * outputs * (inputs + OUTPUT_COST) + tiles * inputs * INPUT_COST
        )
    return total


def _passes(
    kernel: Sequence[int], strides: Sequence[int], most: int, equal: bool
) -> tuple[FilterPass, ...]:
    rows, columns = (_cut(k, s, most, equal) for k, s in zip(kernel, strides, strict=True))
    found: dict[tuple[int, int], list[tuple[Taps, Taps]]] = {}
    for piece in product(rows, columns):
        found.setdefault((piece[0].points, piece[1].points), []).append(piece)
    return tuple(FilterPass(tuple(pieces)) for pieces in found.values())


def _cut(taps: int, stride: int, most: int, equal: bool) -> list[Taps]:
    """The pieces of an axis, of at most ``most`` taps; with equal points, so that there are fewer passes."""
    pieces = []
    for phase in range(stride):
        count = len(range(phase, taps, stride))
        parts = -(-count // most)
        bounds = [-(-count * k // parts) for k in range(parts + 1)]
        for first, last in pairwise(bounds):
            pieces.append(Taps(phase + stride * first, last - first, last - first + TILE - 1))
    points = max(piece.points for piece in pieces)
    return [Taps(p.start, p.count, points) for p in pieces] if equal else pieces


# --- Weights ---


def weight_matrix(points: int) -> NDArray[np.float64]:
    """The factors of an axis's taps, ``[points, taps]``: powers of each point, divided; infinity is last."""
    finite = np.array(POINTS[: points - 1])
    matrix = np.zeros((points, points - TILE + 1))
    for k, point in enumerate(finite):
        others = np.delete(finite, k)
        matrix[k] = point ** np.arange(matrix.shape[1]) / np.prod(point - others)
    matrix[-1, -1] = 1
    return matrix


def pack_transformed(weight: Array, strides: tuple[int, int], form: FastForm) -> Array:
    """``[M, C, Kh, Kw]`` as ``[passes][M/16][positions][pieces][C][16]``, flat, columns like `pack_float`."""
    m, inside = weight.shape[:2]
    parts = []
    for each in form.passes:
        matrices = [weight_matrix(points) for points in each.points]
        filters = np.zeros((each.positions, len(each.pieces), inside, m), np.float32)
        for k, piece in enumerate(each.pieces):
            own = weight
            for axis, (taps, step) in enumerate(zip(piece, strides, strict=True)):
                own = own.take(range(taps.start, taps.start + step * taps.count, step), axis + 2)
            rows, columns = (g[:, : taps.count] for g, taps in zip(matrices, piece, strict=True))
            # [points, points, C, M], rounded once
            made = np.einsum(
                "ir,mcrs,js->ijcm", rows, own.astype(np.float64), columns, optimize=True
            )
            filters[:, k] = made.reshape(each.positions, inside, m)
        for first in range(0, m, BLOCK):
            part = filters[..., first : first + BLOCK]
            wide = np.zeros((*part.shape[:3], BLOCK if part.shape[3] > 8 else 8), np.float32)
            wide[..., : part.shape[3]] = part
            parts.append(wide.reshape(-1))
    return np.concatenate(parts)
