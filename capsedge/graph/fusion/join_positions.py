"""Join EM routing that a file writes once for each position, in Python loops: one convolutional operator.

The parts have equal weights and parameters, and their children are windows of one map, cut out by nodes that
only move values. Such nodes are run on numbered values, which shows the element of the map that each child's
element is, and where the file puts each result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.emit_em import EMEdit, EMSources, write_em
from capsedge.graph.fusion.equal_pieces import hypothesis_key
from capsedge.graph.fusion.grids import (
    Children,
    Windows,
    activations_agree,
    cell_coordinates,
    children_of,
    matrices,
    read_activations,
    read_poses,
    transposed_poses,
    windows_along,
)
from capsedge.graph.fusion.layouts import Layout, layouts
from capsedge.graph.fusion.values import Array, Values
from capsedge.graph.fusion.votes import VoteSource, cell_axes, cell_layouts

# Nodes that only move elements of what they read.
_RESHAPE = ("Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_SELECT = ("Concat", "Gather", "GatherND", "Pad", "ScatterElements", "ScatterND", "Slice", "Split")
_MOVES = frozenset((*_RESHAPE, *_SELECT))
_WHOLES = 4  # tensors with all results that are tried
_MOST_IDLE = 1.5  # positions computed for each position used
_LARGEST = 1 << 24  # number of elements that FP32 can number

# --- Parts with equal weights ---


def equal_routing(graph: Values, edits: Sequence[EMEdit]) -> Iterator[list[EMEdit]]:
    """Groups of at least two edits that may differ in the places of their children only."""
    groups: dict[object, list[EMEdit]] = {}
    for edit in edits:
        votes, acting = edit.routing.votes, edit.routing.acting
        maps = tuple(_movers(graph, source.tensor)[-1] for source in (votes, acting))
        weight = votes.weight.shape, votes.weight.tobytes()
        key = (maps, hypothesis_key(edit.routing.match.kind), weight, votes.constant is None)
        groups.setdefault(key, []).append(edit)
    yield from (group for group in groups.values() if len(group) > 1)


def _movers(graph: Values, tensor: str) -> list[str]:
    """A tensor, and the tensors that it is computed from by moving values only, nearest first."""
    found = [tensor]
    for each in graph.dominators(tensor):
        nodes, _ = graph.between([each], [found[-1]])
        if each not in graph.floats or any(node.op_type not in _MOVES for node in nodes):
            break
        found.append(each)
    return found


# --- Children on a common map ---


def _on_maps(graph: Values, sources: Sequence[VoteSource]) -> Iterator[VoteSource]:
    """The sources as one with all their positions, in each layout of the maps that they have in common."""
    chains = [_movers(graph, source.tensor) for source in sources]
    first = sources[0]
    constants = [s.constant for s in sources if s.constant is not None]
    for tensor in chains[0]:
        if any(tensor not in chain for chain in chains) or graph.sizes[tensor] >= _LARGEST:
            continue
        elements = [_elements(graph, tensor, source) for source in sources]
        for layout in cell_layouts(graph, tensor, first.depth, first.depth):
            cells = [_cells(graph, layout, each) for each in elements]
            if all(c is not None for c in cells):
                index = np.concatenate([c for c in cells if c is not None])
                constant = np.concatenate(constants) if constants else None
                yield VoteSource(tensor, layout, index, first.weight, constant)


def _elements(graph: Values, tensor: str, source: VoteSource) -> Array:
    """The number of the element of a tensor that each child's elements are ``[images, positions, i, q]``."""
    number = 1.0 + np.arange(graph.sizes[tensor])
    if tensor == source.tensor:
        moved = number.reshape(graph.shapes[tensor])
    else:
        moved = graph.function([tensor], [source.tensor])(number)[0]
    return np.rint(source.layout.read(moved)[:, source.index]).astype(int)


def _cells(graph: Values, layout: Layout, elements: Array) -> Array | None:
    """The cell of each child ``[positions, i]``; None if they are no cells, or not of their own image."""
    images, cells, _ = layout.sizes
    if images != len(elements) or elements.min() < 1:
        return None
    number = layout.read(1 + np.arange(math.prod(layout.shape)))
    cell = np.zeros(1 + number.size, int)
    cell[number.reshape(-1)] = np.broadcast_to(
        np.arange(cells)[None, :, None], number.shape
    ).reshape(-1)
    index = cell[elements[0, ..., 0]]
    return index if (number[:, index] == elements).all() else None


# --- A regular grid of windows ---


@dataclass(frozen=True)
class _WindowGrid:
    """The positions of the parts in a grid of windows over a part of a map.

    Attributes:
        windows: the windows, over that part of the map.
        full: rows, columns and types of the whole map.
        begin: its first row and column that a window has.
        index: the cell of each child ``[positions of the grid, i]``, in the whole map.
        slots: for each position of the parts, in order, its position in the grid.
    """

    windows: Windows
    full: tuple[int, int, int]
    begin: tuple[int, int]
    index: Array
    slots: Array


def _window_grids(source: VoteSource) -> Iterator[_WindowGrid]:
    """All grids in which the children of a source may be windows."""
    sizes, at = cell_axes(source)
    axes = range(len(sizes))
    varying = [a for a in axes if np.ptp(at[..., a], axis=0).any()]
    for rows in axes:
        for columns in axes:
            if rows != columns and {rows, columns} >= set(varying):
                found = _window_grid(sizes, at, (rows, columns))
                if found is not None:
                    yield found


def _window_grid(sizes: tuple[int, ...], at: Array, along: tuple[int, int]) -> _WindowGrid | None:
    place = at[..., list(along)]  # [positions, i, 2]
    corner = place.min(1)
    begin, last = corner.min(0), corner.max(0)
    steps = [max(1, int(np.gcd.reduce(c - b))) for c, b in zip(corner.T, begin, strict=True)]
    count = tuple((last - begin) // steps + 1)
    if math.prod(count) > _MOST_IDLE * len(np.unique(corner, axis=0)):
        return None
    extent = _extent(place, begin, [sizes[a] for a in along], steps)
    starts = np.indices(count).reshape(2, -1).T * steps
    every = np.repeat(at[:1], len(starts), 0)  # [positions of the grid, i, axes]
    every[..., list(along)] += starts[:, None] - corner[0]
    slots = np.ravel_multi_index(tuple(((corner - begin) // steps).T), count)
    aligned = at.copy()
    aligned[..., list(along)] -= begin
    if (every[slots] != aligned).any():
        return None
    cut = list(sizes)
    whole = every.copy()
    for k, axis in enumerate(along):
        cut[axis] = int(extent[k])
        whole[..., axis] += begin[k]
    rest = tuple(a for a in range(len(sizes)) if a not in along)
    windows = windows_along(tuple(cut), every, (*along, *rest))
    if windows is None:
        return None
    full = (sizes[along[0]], sizes[along[1]], windows.grid[2])
    index = np.ravel_multi_index(tuple(np.moveaxis(whole, -1, 0)), sizes)
    return _WindowGrid(windows, full, (int(begin[0]), int(begin[1])), index, slots)


def _extent(place: Array, begin: Array, sizes: Sequence[int], steps: Sequence[int]) -> list[int]:
    """Rows and columns that windows have; all of them where the map has no further positions."""
    found = []
    for axis in (0, 1):
        end = int(place[..., axis].max()) + 1
        left = sizes[axis] - end
        found.append(
            (sizes[axis] if left < steps[axis] and not begin[axis] else end) - int(begin[axis])
        )
    return found


# --- The operator ---


def join(graph: Values, parts: Sequence[EMSources], tag: str) -> EMEdit:
    """One operator for parts with equal weights, or for one part whose windows do not cover its map.

    Raises:
        NoMatch: their children are not windows of one map.
    """
    acting = list(_on_maps(graph, [part.acting for part in parts]))
    for source in _on_maps(graph, [part.votes for part in parts]):
        for places in _window_grids(source):
            constant = _constant(source, places)
            coordinates = None
            if constant is not None:
                coordinates = cell_coordinates(constant, places.windows, parts[0].transposed)
                if coordinates is None:
                    continue
            children = children_of(
                replace(source, index=places.index, constant=constant),
                places.windows,
                matrices(source.weight),
            )
            for each in acting:
                found = _acting_of(each, places)
                if found is not None and activations_agree(found[0], children):
                    edit = EMEdit(graph, tag)
                    edit.routing = parts[0]
                    maps = _map_of(edit, children, places), _activations(edit, children, *found)
                    outputs = write_em(edit, parts[0].match.kind, maps, children, coordinates)
                    _write_results(edit, outputs, parts, places.slots)
                    return edit
    raise NoMatch(
        "their children are not windows of one stride over a map, or have other activations"
    )


def _constant(source: VoteSource, places: _WindowGrid) -> Array | None:
    """The constant part of the votes at all positions of the grid; None for zero.

    Raises:
        NoMatch: positions that no part has would need one of their own.
    """
    if source.constant is None:
        return None
    if len(np.unique(places.slots)) < math.prod(places.windows.positions):
        raise NoMatch("some positions are missing, and votes have a constant part")
    found = np.zeros((math.prod(places.windows.positions), *source.constant.shape[1:]))
    found[places.slots] = source.constant
    return found


def _acting_of(
    acting: VoteSource, places: _WindowGrid
) -> tuple[VoteSource, _WindowGrid | None] | None:
    """The activations at all positions of the grid, and their windows if they equal those of the poses."""
    for other in _window_grids(acting):
        same = other.full == places.full and other.begin == places.begin
        same &= np.array_equal(other.slots, places.slots)
        if same and np.array_equal(other.windows.coordinates, places.windows.coordinates):
            return replace(acting, index=other.index), other
    count = math.prod(places.windows.positions)
    if len(np.unique(places.slots)) < count:
        return None
    index = np.zeros((count, acting.index.shape[1]), int)
    index[places.slots] = acting.index
    return replace(acting, index=index), None


def _map_of(edit: EMEdit, children: Children, places: _WindowGrid) -> str:
    """The part of a map that has windows ``[N, H, W, C, P]``."""
    windows = places.windows
    x = read_poses(edit, replace(children, windows=replace(windows, grid=places.full)))
    if places.full == windows.grid:
        return x
    ends = [b + size for b, size in zip(places.begin, windows.grid[:2], strict=True)]
    bounds = {"begin": places.begin, "end": ends, "rows": (1, 2)}
    inputs = [edit.constant(np.array(value), name) for name, value in bounds.items()]
    shape = (edit.graph.batch, *windows.grid, children.vote_source.depth)
    return edit.describe(edit.op("Slice", [x, *inputs]), shape)


def _activations(
    edit: EMEdit, children: Children, acting: VoteSource, places: _WindowGrid | None
) -> str:
    """The activations ``[N, H, W, C]``, moved as the poses are if they have places of their own."""
    if places is None:
        return read_activations(edit, acting, children)
    own = replace(children, vote_source=acting, windows=places.windows, transposed=False)
    shape = (edit.graph.batch, *places.windows.grid)
    return edit.describe(edit.reshape(_map_of(edit, own, places), shape, 0), shape)


def _write_results(
    edit: EMEdit, outputs: Sequence[str], parts: Sequence[EMSources], slots: Array
) -> None:
    """Write the parents' poses and activations, each position's where the file has it."""
    children, matches = edit.children, [part.match for part in parts]
    _, j, _, p = edit.routing.match.roles.sizes
    shape = (edit.graph.batch, *children.windows.positions, j, p)
    pose = edit.describe(outputs[0], shape)
    if children.transposed:
        pose = edit.describe(transposed_poses(edit, pose, shape), shape)
    own = np.split(slots, np.cumsum([len(part.votes.index) for part in parts])[:-1])
    _write(edit, pose, shape, [(m.pose, m.pose_layout) for m in matches], own)
    _write(edit, outputs[1], shape[:-1], [(m.result, m.result_layout) for m in matches], own)


def _write(
    edit: EMEdit,
    x: str,
    shape: tuple[int, ...],
    results: Sequence[tuple[str, Layout]],
    slots: Sequence[Array],
) -> None:
    """Write what the file makes of all results, and each result that is used otherwise.

    Args:
        x: ``[N, H', W', M]`` or ``[N, H', W', M, P]``.
        results: results of the parts, and their layouts.
        slots: positions of each in the grid.
    """
    graph, names = edit.graph, [name for name, _ in results]
    numbers = 1.0 + np.arange(math.prod(shape)).reshape(shape[0], -1, *shape[3:])
    of_part = [layout.write(numbers[:, s]) for (_, layout), s in zip(results, slots, strict=True)]
    used = set(names)
    for whole in _put_together(graph, names):
        moved = graph.function(names, [whole])(*of_part)[0]
        for layout in _arrangements(graph.shapes[whole], shape):
            if np.array_equal(layout.read(moved).reshape(numbers.shape), numbers):
                edit.write(x, layout, whole)
                used = _used_otherwise(graph, names, whole)
                break
        if edit.results and edit.results[-1] == whole:
            break
    for name, layout, some in ((n, lay, s) for (n, lay), s in zip(results, slots, strict=True)):
        if name not in used:
            continue
        flat = edit.reshape(x, (shape[0], math.prod(shape[1:3]), *shape[3:]), 0)
        chosen = edit.op("Gather", [flat, edit.constant(some, f"at_{name}")], axis=1)
        edit.write(edit.describe(chosen, (shape[0], len(some), *shape[3:])), layout, name)


def _put_together(graph: Values, names: Sequence[str]) -> Iterator[str]:
    """The first tensors with all results and nothing else but constants."""
    held: dict[str, frozenset[str]] = {name: frozenset((name,)) for name in names}
    left = _WHOLES
    for name, sources in graph.sources.items():
        node = graph.producer(name)
        if name in held or node is None or node.op_type not in _MOVES:
            continue
        if sources and all(s in held for s in sources):
            held[name] = frozenset.union(*(held[s] for s in sources))
            if len(held[name]) == len(names) and left:
                left -= 1
                yield name


def _used_otherwise(graph: Values, names: Sequence[str], whole: str) -> set[str]:
    """The results that the graph needs for more than one tensor."""
    inside, _ = graph.between(names, [whole])
    within = {name for node in inside for name in node.output} - {whole}
    of: dict[str, set[str]] = {name: {name} for name in names}
    used: set[str] = set()
    for name in (*names, *(n for n in graph.sources if n in within)):
        of.setdefault(name, set()).update(*(of.get(s, ()) for s in graph.sources[name]))
        others = {o for node in graph.users(name) for o in node.output} - within - {whole}
        if others or name in graph.outputs:
            used |= of[name]
    return used


def _arrangements(wanted: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[Layout]:
    """Layouts of a tensor with the axes of another, the last possibly as a matrix."""
    ends = [shape[3:]]
    side = math.isqrt(shape[-1])
    if len(shape) == 5 and side * side == shape[-1]:
        ends.append((shape[3], side, side))
    for end in ends:
        yield from layouts(wanted, [(d,) for d in (*shape[:3], *end)], 0)
