"""Poses, activations and parents of the operators over grids, made of the tensors of a graph."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from capsedge.graph.recognize.edit import Edit
from capsedge.graph.recognize.layouts import Layout
from capsedge.graph.recognize.source import Source
from capsedge.graph.recognize.values import Array
from capsedge.graph.recognize.windows import Windows


@dataclass(frozen=True)
class Children:
    """The children of a routing operator over a grid.

    Attributes:
        source: where the votes come from.
        windows: over its cells.
        weight: ``[Kh, Kw, C, M, K, L]``.
        matrix: whether poses are matrices.
        transposed: whether the file's poses are the transposes of the operator's.
    """

    source: Source
    windows: Windows
    weight: Array
    matrix: bool
    transposed: bool

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.windows.grid


def children_of(
    source: Source, windows: Windows, matrix: tuple[Array, bool] | None, shared: bool = False
) -> Children:
    """The children and their weight.

    Args:
        matrix: of ``windows.matrices``; None for vector poses.
        shared: whether all places have the weights of the first.
    """
    weight = source.weight.transpose(0, 1, 3, 2) if matrix is None else matrix[0]  # [j, i, K, L]
    if matrix is not None and matrix[1]:
        weight = weight.transpose(0, 1, 3, 2)  # (W·pose)ᵀ = poseᵀ·Wᵀ
    rows, columns = windows.kernel
    count = windows.grid[2]
    chosen = windows.children[: rows * columns * count] if not shared else windows.children[:count]
    ordered = weight[:, chosen].transpose(1, 0, 2, 3)
    shape = (rows, columns, count, *ordered.shape[1:])
    transposed = matrix is not None and matrix[1]
    return Children(source, windows, ordered.reshape(shape), matrix is not None, transposed)


def read_poses(edit: Edit, children: Children) -> str:
    """``[N, H, W, C, P]``."""
    source, windows = children.source, children.windows
    layout = source.layout
    if windows.axes:
        ahead, cells = layout.groups[0], layout.groups[1]
        order = layout.order
        permuted = tuple(order[ahead + a] for a in windows.axes)
        layout = replace(layout, order=(*order[:ahead], *permuted, *order[ahead + cells :]))
    shape = (edit.graph.batch, *windows.grid, source.depth)
    x = edit.read(source.tensor, layout, shape)
    return turned(edit, x, shape) if children.transposed else x


def turned(edit: Edit, x: str, shape: tuple[int, ...]) -> str:
    """Matrix poses transposed, in a tensor whose last axis counts their elements."""
    side = math.isqrt(shape[-1])
    count = len(shape) - 1
    x = edit.reshape(x, (*shape[:-1], side, side), 0)
    x = edit.transpose(x, (*range(count), count + 1, count))
    return edit.describe(edit.reshape(x, shape, 0), shape)


def read_activations(edit: Edit, acting: Source, children: Children) -> str:
    """``[N, H, W, C]``, the activation of the cell that holds a child's pose in the place of that pose."""
    windows = children.windows
    grid = windows.grid
    number = np.ravel_multi_index(tuple(np.moveaxis(windows.coordinates, -1, 0)), grid)
    held = np.zeros(math.prod(grid), int)
    held[number.reshape(-1)] = acting.index.reshape(-1)
    x = edit.read(acting.tensor, acting.layout, (edit.graph.batch, acting.cells))
    if len(held) != acting.cells or (held != np.arange(len(held))).any():
        x = edit.op("Gather", [x, edit.constant(held, "acting")], axis=1)
    shape = (edit.graph.batch, *grid)
    return edit.describe(edit.reshape(x, shape, 0), shape)


def agree(acting: Source, children: Children) -> bool:
    """Whether every cell with a pose has one activation in all windows."""
    number = np.ravel_multi_index(
        tuple(np.moveaxis(children.windows.coordinates, -1, 0)), children.windows.grid
    )
    if number.shape != acting.index.shape:
        return False
    pairs = np.unique(np.stack([number.reshape(-1), acting.index.reshape(-1)]), axis=1)
    return bool(len(np.unique(pairs[0])) == pairs.shape[1])


def read_parents(
    edit: Edit, name: str, layout: Layout, children: Children, parents: int, pose: int
) -> str:
    """``[N, H', W', M, P]`` of a tensor ``[n, j, p]``."""
    shape = (edit.graph.batch, *children.windows.places, parents, pose)
    x = edit.read(name, layout, shape)
    return turned(edit, x, shape) if children.transposed else x


def write_parents(
    edit: Edit, x: str, layout: Layout, result: str, children: Children, parents: int, pose: int
) -> None:
    """Make a tensor ``[n, j, p]`` of ``[N, H', W', M, P]``."""
    shape = (edit.graph.batch, *children.windows.places, parents, pose)
    edit.describe(x, shape)
    edit.write(turned(edit, x, shape) if children.transposed else x, layout, result)
