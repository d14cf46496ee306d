"""Recognize children as windows over a grid, and arrange operators' inputs and outputs by them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.edit import Edit
from capsedge.graph.fusion.layouts import Layout
from capsedge.graph.fusion.values import Array
from capsedge.graph.fusion.votes import VoteSource, cell_axes

# --- Cells and windows, ordered as in docs/reference/operators.md: row, column, type ---

_ALIKE = 1e-6  # tolerance for numbers that FP32 may have rounded differently


@dataclass(frozen=True)
class Windows:
    """Windows over ``[height, width, types]``.

    Attributes:
        axes: the source's cell axes in this order; empty if all cells are types at one position.
        grid: its height, width and number of types.
        kernel, strides: each in rows and columns.
        positions: output positions in rows and columns.
        children: for each place k in a window, the index of the child in the file.
        coordinates: row, column and type of every child of the file ``[positions, i, 3]``.
    """

    axes: tuple[int, ...]
    grid: tuple[int, int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    positions: tuple[int, int]
    children: Array
    coordinates: Array


def windows_of(vote_source: VoteSource) -> Windows:
    """The windows of a source.

    Raises:
        NoMatch: its children are not windows with one stride.
    """
    sizes, at = cell_axes(vote_source)
    if len(at) == 1:
        return _one_window(vote_source, sizes, at)
    varying = [a for a in range(len(sizes)) if np.ptp(at[..., a], axis=0).any()]
    rest = tuple(a for a in range(len(sizes)) if a not in varying)
    if len(varying) == 2:
        for rows, columns in itertools.permutations(varying):
            found = windows_along(sizes, at, (rows, columns, *rest))
            if found is not None:
                return found
    raise NoMatch(
        "children that are not windows of one stride over a grid: no operator supports this"
    )


def _one_window(vote_source: VoteSource, sizes: tuple[int, ...], at: Array) -> Windows:
    """A single window over all cells, or over the types at one position if there is no grid.

    ``shared_grids`` finds weights that are shared over a grid.
    """
    if sorted(vote_source.index[0].tolist()) != list(range(vote_source.cells)):
        raise NoMatch(
            "children that are not all cells of a layer, each once: no operator supports this"
        )
    whole = windows_along(sizes, at, (0, 1, 2)) if len(sizes) == 3 else None
    if whole is not None:
        return whole
    at = np.zeros((1, vote_source.cells, 3), int)
    at[..., 2] = vote_source.index
    return Windows(
        (), (1, 1, vote_source.cells), (1, 1), (1, 1), (1, 1), np.argsort(vote_source.index[0]), at
    )


def windows_along(sizes: tuple[int, ...], at: Array, axes: tuple[int, ...]) -> Windows | None:
    """The windows with rows and columns along the first two of some axes; None if there are none.

    Args:
        sizes, at: as returned by ``votes.cell_axes``.
    """
    rows, columns, *types = axes
    count = math.prod(sizes[a] for a in types)
    kind = np.zeros(at.shape[:2], int)
    for a in types:
        kind = kind * sizes[a] + at[..., a]
    place = np.stack([at[..., rows], at[..., columns], kind], -1)
    corner = place.min(1)  # [positions, 3]
    inside = place - corner[:, None] * (1, 1, 0)
    if (inside != inside[:1]).any():
        return None
    kernel = tuple(int(k) + 1 for k in inside[0].max(0)[:2])
    children = np.lexsort((inside[0, :, 2], inside[0, :, 1], inside[0, :, 0]))
    wanted = np.indices((*kernel, count)).reshape(3, -1).T
    if len(children) != len(wanted) or (inside[0][children] != wanted).any():
        return None
    height, width = sizes[rows], sizes[columns]
    strides = []
    for axis in (0, 1):
        starts = np.unique(corner[:, axis])
        step = int(starts[1] - starts[0]) if len(starts) > 1 else 1
        strides.append(step)
    places = (
        (height - kernel[0]) // strides[0] + 1,
        (width - kernel[1]) // strides[1] + 1,
    )
    grid = np.indices(places).reshape(2, -1).T * strides
    if len(grid) != len(corner) or (corner[:, :2] != grid).any():
        return None
    return Windows(
        axes,
        (height, width, count),
        (kernel[0], kernel[1]),
        (strides[0], strides[1]),
        places,
        children,
        place,
    )


def shared_grids(vote_source: VoteSource) -> list[Windows]:
    """Grids in which one window over all cells has the same weights at every position."""
    sizes, at = cell_axes(vote_source)
    found: list[Windows] = []
    if len(at) != 1 or sorted(vote_source.index[0].tolist()) != list(range(vote_source.cells)):
        return found
    by_cell = vote_source.weight[:, np.argsort(vote_source.index[0])]
    j, _, p, q = by_cell.shape
    spread = by_cell.reshape(j, *sizes, p, q)
    alike = [a for a in range(len(sizes)) if (spread == spread.take([0], axis=a + 1)).all()]
    # A grid of one row if a single axis counts the positions.
    for places in (*itertools.permutations(alike, 2), *((a,) for a in alike)):
        rest = tuple(a for a in range(len(sizes)) if a not in places)
        count = math.prod(sizes[a] for a in rest)
        kind = np.zeros(at.shape[:2], int)
        for a in rest:
            kind = kind * sizes[a] + at[..., a]
        rows = at[..., places[0]] if len(places) == 2 else np.zeros_like(kind)
        place = np.stack([rows, at[..., places[-1]], kind], -1)
        children = np.lexsort((kind[0], place[0, :, 1], place[0, :, 0]))
        height = sizes[places[0]] if len(places) == 2 else 1
        grid = (height, sizes[places[-1]], count)
        found.append(Windows((*places, *rest), grid, (1, 1), (1, 1), (1, 1), children, place))
    return found


def matrices(weight: Array) -> tuple[Array, bool] | None:
    """Weights of square matrix poses ``[j, i, √P, √P]`` with ``V = pose·W``; None if they are not.

    The second value says that it is ``V = W·pose``, in which case all poses are transposed.
    """
    j, i, p, q = weight.shape
    side = math.isqrt(p)
    if p != q or side * side != p or side == 1:
        return None
    split = weight.reshape(j, i, side, side, side, side)  # vote row, column, pose row, column
    eye = np.eye(side, dtype=weight.dtype)
    right = split[:, :, 0, :, 0, :]  # [j, i, l, a]
    if (np.einsum("jila,rs->jirlsa", right, eye) == split).all():
        return right.transpose(0, 1, 3, 2), False
    left = split[:, :, :, 0, :, 0]  # [j, i, r, a]
    if (np.einsum("jira,lm->jirlam", left, eye) == split).all():
        return left, True
    return None


def cell_coordinates(constant: Array, windows: Windows, transposed: bool = False) -> Array | None:
    """The values added to the votes of each cell ``[H, W, P]``, if the constant part consists of nothing
    else.

    Args:
        constant: part of the votes ``[positions, j, i, p]``.
        transposed: whether the file's poses are the transposes of the operator's.

    Returns:
        None if it depends on the parent or on the child's type.
    """
    size = constant.shape[-1]
    rows, columns = windows.coordinates[..., 0], windows.coordinates[..., 1]
    found = np.zeros((*windows.grid[:2], size))
    found[rows, columns] = constant[:, 0]
    if np.abs(constant - found[rows, columns][:, None]).max() > _ALIKE * np.abs(constant).max():
        return None
    side = math.isqrt(size)
    return (
        found.reshape(*found.shape[:2], side, side).swapaxes(2, 3).reshape(found.shape)
        if transposed
        else found
    )


def unfolded(windows: Windows, coordinates: Array) -> tuple[Windows, Array]:
    """The grid that a single row flattens, if coordinates ``[1, W, P]`` are the paper's on that grid."""
    height, width, types = windows.grid
    for rows in range(2, width if height == 1 else 0):
        if width % rows:
            continue
        spread = coordinates.reshape(rows, width // rows, -1)
        if is_coordinate_addition(spread):
            at = windows.coordinates.copy()
            at[..., 0], at[..., 1] = np.divmod(at[..., 1], width // rows)
            return replace(windows, grid=(rows, width // rows, types), coordinates=at), spread
    return windows, coordinates


def is_coordinate_addition(coordinates: Array) -> bool:
    """Whether coordinates ``[H, W, P]`` equal those of ``coordinate_addition``."""
    height, width, size = coordinates.shape
    side = math.isqrt(size)
    if side < 2:
        return False
    wanted = np.zeros_like(coordinates)
    wanted[..., side - 1] = ((np.arange(height) + 0.5) / height)[:, None]
    wanted[..., 2 * side - 1] = (np.arange(width) + 0.5) / width
    return bool(np.abs(coordinates - wanted).max() <= _ALIKE)


# --- The operators' poses, activations and parents from a graph's tensors ---


@dataclass(frozen=True)
class Children:
    """The children of a routing operator over a grid.

    Attributes:
        vote_source: where the votes come from.
        windows: windows over the cells of the source.
        weight: the weight ``[Kh, Kw, C, M, K, L]``.
        matrix: whether poses are matrices.
        transposed: whether the file's poses are the transposes of the operator's.
    """

    vote_source: VoteSource
    windows: Windows
    weight: Array
    matrix: bool
    transposed: bool

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.windows.grid


def children_of(
    vote_source: VoteSource,
    windows: Windows,
    matrix: tuple[Array, bool] | None,
    shared: bool = False,
) -> Children:
    """The children and their weight.

    Args:
        matrix: result of ``windows.matrices``; None for vector poses.
        shared: whether all positions use the weights of the first.
    """
    weight = (
        vote_source.weight.transpose(0, 1, 3, 2) if matrix is None else matrix[0]
    )  # [j, i, K, L]
    if matrix is not None and matrix[1]:
        weight = weight.transpose(0, 1, 3, 2)  # (W·pose)ᵀ = poseᵀ·Wᵀ
    rows, columns = windows.kernel
    count = windows.grid[2]
    chosen = windows.children[: rows * columns * count] if not shared else windows.children[:count]
    ordered = weight[:, chosen].transpose(1, 0, 2, 3)
    shape = (rows, columns, count, *ordered.shape[1:])
    transposed = matrix is not None and matrix[1]
    return Children(vote_source, windows, ordered.reshape(shape), matrix is not None, transposed)


def read_poses(edit: Edit, children: Children) -> str:
    """The poses ``[N, H, W, C, P]``."""
    source, windows = children.vote_source, children.windows
    layout = source.layout
    if windows.axes:
        ahead, cells = layout.groups[0], layout.groups[1]
        order = layout.order
        permuted = tuple(order[ahead + a] for a in windows.axes)
        layout = replace(layout, order=(*order[:ahead], *permuted, *order[ahead + cells :]))
    shape = (edit.graph.batch, *windows.grid, source.depth)
    x = edit.read(source.tensor, layout, shape)
    return transposed_poses(edit, x, shape) if children.transposed else x


def transposed_poses(edit: Edit, x: str, shape: tuple[int, ...]) -> str:
    """Transpose the matrix poses of a tensor whose last axis counts their elements."""
    side = math.isqrt(shape[-1])
    count = len(shape) - 1
    x = edit.reshape(x, (*shape[:-1], side, side), 0)
    x = edit.transpose(x, (*range(count), count + 1, count))
    return edit.describe(edit.reshape(x, shape, 0), shape)


def read_activations(edit: Edit, acting: VoteSource, children: Children) -> str:
    """Activations ``[N, H, W, C]``, each child's at the position of its pose."""
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


def activations_agree(acting: VoteSource, children: Children) -> bool:
    """Whether every cell with a pose has the same activation in all windows."""
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
    """Arrange a tensor ``[n, j, p]`` as ``[N, H', W', M, P]``."""
    shape = (edit.graph.batch, *children.windows.positions, parents, pose)
    x = edit.read(name, layout, shape)
    return transposed_poses(edit, x, shape) if children.transposed else x


def write_parents(
    edit: Edit, x: str, layout: Layout, result: str, children: Children, parents: int, pose: int
) -> None:
    """Arrange a tensor ``[N, H', W', M, P]`` as ``[n, j, p]``."""
    shape = (edit.graph.batch, *children.windows.positions, parents, pose)
    edit.describe(x, shape)
    edit.write(transposed_poses(edit, x, shape) if children.transposed else x, layout, result)
