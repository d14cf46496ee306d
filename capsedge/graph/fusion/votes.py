"""Find the source of votes by probing, and determine their weight.

``votes[n,j,i,p] = Σ_q W[j,i,p,q] · u[cell(n,i), q]``. The tensors that all votes pass through are tried
from the votes upwards, as long as votes depend on them linearly. For each layout in which such a tensor may
hold cells of ``q`` elements, one probe with equal cells and one with numbered cells show which cell each
child is; ``q`` unit vectors, applied to all cells at once, yield W; and a random input confirms it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.layouts import Layout, squeezed
from capsedge.graph.fusion.values import Array, Function, Values

_MAX_LAYOUTS = 12  # maximum number of tensors tried
_MISSED = 4  # tensors without cells that are tolerated after one with cells
_HYPOTHESES = 40  # maximum number of hypotheses per tensor
_LONGEST = 256  # maximum number of elements in a cell
_PIECE = 1 << 21  # number of vote elements compared at once
_ROWS = 64  # children on which a hypothesis is tried first
_LINEAR, _PROVEN, _WHOLE = 1e-5, 1e-5, 1e-3


@dataclass(frozen=True)
class VoteSource:
    """The source of the votes.

    Attributes:
        tensor: name of the tensor in the graph.
        layout: its layout, with the roles image, cells and elements of a cell.
        index: the cell of each child ``[positions, i]``.
        weight: the weight ``[j, i, p, q]``, the same at every position, with FP32 values.
        constant: the votes when all cells are zero, ``[positions, j, i, p]``; None for zero.
    """

    tensor: str
    layout: Layout
    index: Array
    weight: Array
    constant: Array | None

    @property
    def cells(self) -> int:
        """The number of cells in an image."""
        return self.layout.sizes[1]

    @property
    def depth(self) -> int:
        """The number of elements in a cell."""
        return self.layout.sizes[2]


def linear_vote_source(
    graph: Values,
    votes: str,
    roles: Layout,
    depth: int | None = None,
    suits: Callable[[Array], bool] = lambda _: True,
    probes: dict[str, VoteProbe] | None = None,
) -> VoteSource:
    """The source with the fewest elements, then the most cell axes, then the nearest.

    Args:
        roles: layout of the votes, ``[n, j, i, p]``.
        depth: number of elements in a cell, if known.
        suits: whether a weight has the required structure.
        probes: existing probes of these votes, by tensor; new ones are added.

    Raises:
        NoMatch: the votes are not a linear map of cells.
    """
    best: tuple[tuple[int, int, int, int], VoteSource] | None = None
    missed = 0
    for tensor in graph.dominators(votes)[:_MAX_LAYOUTS]:
        if tensor not in graph.floats:
            break
        probe = None if probes is None else probes.get(tensor)
        if probe is None:
            known = None if best is None else best[1]
            probe = VoteProbe(graph, tensor, votes, roles, known, kept=probes is not None)
            if probes is not None:
                probes[tensor] = probe
        if not probe.linear:
            break
        missed += 1
        for layout in cell_layouts(graph, tensor, roles.sizes[3], depth):
            index = probe.index(layout)
            if index is None:
                continue
            rank = _rank(layout, index, -graph.order[tensor])
            if best is not None and rank >= best[0]:
                missed = 0
                continue
            source = probe.source(layout, index)
            if source is not None and suits(source.weight):
                best, missed = (rank, source), 0
        if best is not None and missed > _MISSED:
            break
    if best is None:
        raise NoMatch("the votes are not the product of a constant weight and capsules")
    return best[1]


def _rank(layout: Layout, index: Array, order: int) -> tuple[int, int, int, int]:
    """Sort key, smallest for the best source: elements used, depth, cell axes (negated), distance."""
    depth = layout.sizes[2]
    return len(np.unique(index)) * depth, depth, -len(layout.part(1)), order


def dynamic_vote_source(graph: Values, votes: str, roles: Layout) -> VoteSource:
    """``linear_vote_source`` for votes with the same constant part at every position.

    Raises:
        NoMatch: the votes are not a linear map of cells, or only the elements of cells in another
            order, or each position has a constant of its own.
    """
    source = linear_vote_source(graph, votes, roles, suits=lambda w: not is_selection(w))
    if source.constant is not None and (source.constant != source.constant[:1]).any():
        raise NoMatch("the votes of each position have their own constant")
    return source


def is_selection(weight: Array) -> bool:
    """Whether each element of a vote is an element of its cell, and none is used twice."""
    once = bool(((weight == 0) | (weight == 1)).all()) and bool((weight.sum(3) == 1).all())
    return once and bool((weight.sum((0, 2)) <= 1).all())


def cell_layouts(graph: Values, tensor: str, pose: int, depth: int | None) -> Iterator[Layout]:
    """Layouts in which a tensor may be ``[image, cells, q]``."""
    shape, batch = graph.shapes[tensor], graph.batch
    views = [squeezed(shape)]
    if batch > 1 and shape and shape[0] % batch == 0 and shape[0] > batch:
        views.append((batch, shape[0] // batch, *squeezed(shape[1:])))
    tried = 0
    seen = set()
    for view, start in ((v, s) for v in views for s in _starts(v, batch)):
        for split, q in _elements(view, start, pose, depth):
            at = [k for k in range(len(split)) if k not in q]
            first = None
            if start is not None:
                first = (
                    start
                    if start < min(q, default=0) or len(split) == len(view)
                    else start + len(split) - len(view)
                )
                at.remove(first)
            order = ([] if first is None else [first]) + at + list(q)
            layout = Layout(
                shape, split, tuple(order), (int(first is not None), len(at), len(q)), first
            )
            if layout in seen or tried >= _HYPOTHESES:
                continue
            seen.add(layout)
            tried += 1
            yield layout


def _starts(view: tuple[int, ...], batch: int) -> list[int | None]:
    return [k for k, d in enumerate(view) if d == batch] if batch > 1 else [None]


def _elements(
    view: tuple[int, ...], start: int | None, pose: int, depth: int | None
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The axes of a view that may count a cell's elements: single axes, neighbours, parts of one axis."""
    axes = [k for k in range(len(view)) if k != start]
    if depth == 1:
        yield view, ()
        return
    for k in reversed(axes):
        if view[k] <= _LONGEST and depth in (None, view[k]):
            yield view, (k,)
    for k in axes:
        if k + 1 in axes and view[k] * view[k + 1] == (depth or pose):
            yield view, (k, k + 1)
    for k in reversed(axes):
        for q in (depth,) if depth else _divisors(view[k], pose):
            if q and view[k] % q == 0 and 1 < q < view[k]:
                yield (*view[:k], view[k] // q, q, *view[k + 1 :]), (k + 1,)
                yield (*view[:k], q, view[k] // q, *view[k + 1 :]), (k,)


def _divisors(size: int, pose: int) -> list[int]:
    """Likely numbers of elements per cell."""
    return [q for q in dict.fromkeys((pose, 8, 16, 4)) if size % q == 0]


class VoteProbe:
    """The votes as a function of a tensor.

    A hypothesis is tried on a few children first and, if it passes, on all. No hypothesis is tried twice.

    Args:
        known: a source that all votes pass through on their way from the tensor; a few votes are then
            computed as its weight times its cells, without the product over all children.
        kept: whether it is kept along with other probes; none may then hold memory between runs.

    Attributes:
        linear: whether the votes depend on the tensor linearly, apart from a constant part.
    """

    def __init__(
        self,
        graph: Values,
        tensor: str,
        votes: str,
        roles: Layout,
        known: VoteSource | None = None,
        kept: bool = False,
    ) -> None:
        self.tensor, self.shape, self.batch = tensor, graph.shapes[tensor], graph.batch
        self.graph, self.votes, self.roles = graph, votes, roles
        self.rng = np.random.default_rng(2)
        self.known, self.arena = known, not kept
        # What all votes pass through: the votes themselves, or cells known to determine them.
        self.through = (
            self.function if known is None else graph.function([tensor], [known.tensor], self.arena)
        )
        n, _, i, _ = roles.sizes
        self.few = self.rng.integers(n, size=_ROWS), self.rng.integers(i, size=_ROWS)
        at_zero = self.through(np.zeros(self.shape))[0]
        self.at_zero = self._few(at_zero)
        self.through_zero = at_zero if known is not None else np.zeros(())  # only a few numbers
        self.x = self.rng.standard_normal(self.shape)
        self.at_x = np.empty((0, 0))
        self.indices: dict[Layout, Array | None] = {}
        self.sources: dict[Layout, VoteSource | None] = {}
        self.linear = self._is_linear(at_zero)

    @cached_property
    def function(self) -> Function:
        """The votes as computed by the graph."""
        return self.graph.function([self.tensor], [self.votes], self.arena)

    @cached_property
    def zero(self) -> Array:
        """The votes when the tensor is zero; a single zero if they are all zero."""
        if self.known is not None and self.known.constant is None and not self.through_zero.any():
            return np.zeros(())  # the cells are zero
        zero = self._run(np.zeros(self.shape))
        return zero if np.any(zero) else np.zeros(())

    def _run(self, x: Array) -> Array:
        return self.function(x)[0]

    def _is_linear(self, at_zero: Array) -> bool:
        """Whether f(a + 2b) - f(a) - 2f(b) + 2f(0) vanishes.

        If the votes are known to be linear in some cells, it is tested on those cells.
        """
        a, b = self.x, self.rng.standard_normal(self.shape)
        at_a = self.through(a)[0]
        self.at_x = self._few(at_a) - self.at_zero
        off = self.through(a + 2 * b)[0]
        off -= at_a
        twice = self.through(b)[0]
        twice -= at_zero
        twice *= 2
        off -= twice
        size = np.abs(at_a).max()
        return bool(size > 0 and np.abs(off).max() <= _LINEAR * size)  # False for NaN

    def index(self, layout: Layout) -> Array | None:
        """The cell of each child ``[positions, i]``, if the tensor can hold cells in this layout."""
        if layout not in self.indices:
            self.indices[layout] = self._index(layout)
        return self.indices[layout]

    def source(self, layout: Layout, index: Array) -> VoteSource | None:
        """The source, if the votes are a weight times these cells."""
        if layout not in self.sources:
            self.sources[layout] = self._source(layout, index)
        return self.sources[layout]

    def _index(self, layout: Layout) -> Array | None:
        n, _, i, _ = self.roles.sizes
        images, cells, q = self._sizes(layout)
        if n % images or cells < 1 or not self._may_hold(layout):
            return None
        vector = 0.5 + self.rng.random(q)
        probes = [self._probe(layout, f, vector) for f in (np.ones(cells), 1.0 + np.arange(cells))]
        if self.known is not None and self._sizes(self.known.layout)[0] == images:
            index = self._index_of_known(self.known, probes[0], probes[1], cells)
            if index is not None:
                return index
        few = [self._few(self.through(x)[0]) - self.at_zero for x in probes]
        if _numbers(few[0], few[1], cells) is None:
            return None
        equal, numbered = (self._run(x) - self.zero for x in probes)
        found: list[Array] = []
        pieces = (self.roles.pieces(v, _PIECE) for v in (equal, numbered))
        for one, other in zip(*pieces, strict=True):
            number = _numbers(one, other, cells)
            if number is None:
                return None
            found.append(number)
        index = np.concatenate(found).reshape(images, n // images, i) - 1
        return index[0] if (index == index[:1]).all() else None

    def _index_of_known(
        self, known: VoteSource, equal: Array, numbered: Array, cells: int
    ) -> Array | None:
        """The index, if every known cell of the votes is itself computed from one cell.

        Votes that are multiples of others then follow from their cells, which have fewer elements. None
        settles nothing: a weight may hide other dependences of the cells.
        """
        images, count, q = self._sizes(known.layout)
        used = np.unique(known.index)

        def rows(x: Array) -> Array:
            made = known.layout.read(self.through(x)[0] - self.through_zero)
            return made.reshape(images, count, q)[:, used].reshape(-1, q)

        number = _numbers(rows(equal), rows(numbered), cells)
        if number is None:
            return None
        number = number.reshape(images, len(used))
        if (number != number[:1]).any():
            return None
        return np.asarray(number[0][np.searchsorted(used, known.index)] - 1)

    def _may_hold(self, layout: Layout) -> bool:
        """Whether, with half of the cells zeroed, the votes of some children are unchanged or zero."""
        kept = layout.along(1, self.rng.integers(0, 2, layout.sizes[1]).astype(np.float64))
        votes = self._few(self.through(self.x.reshape(layout.view) * kept)[0]) - self.at_zero
        near = _WHOLE * np.abs(self.at_x).max(1)
        same = np.abs(votes - self.at_x).max(1) <= near
        gone = np.abs(votes).max(1) <= near
        return bool((same | gone).all())

    def _few(self, through: Array) -> Array:
        """A few of the votes, from the result of ``through``."""
        if self.known is None:
            return self.roles.rows(through, self.few)
        source, n = self.known, self.roles.sizes[0]
        images, cells, q = self._sizes(source.layout)
        image, position = np.divmod(self.few[0], n // images)
        cell = source.index[position, self.few[1]]
        u = source.layout.read(through).reshape(images, cells, q)[image, cell]
        weight = source.weight[:, self.few[1]].astype(np.float64)
        votes = np.einsum("jrpq,rq->rjp", weight, u).reshape(len(u), -1)
        if source.constant is not None:
            votes += source.constant[position, :, self.few[1]].reshape(len(votes), -1)
        return np.asarray(votes)

    def _source(self, layout: Layout, index: Array) -> VoteSource | None:
        n, j, i, p = self.roles.sizes
        images, cells, q = self._sizes(layout)
        read = self._weight(layout, index)
        if read is None:
            return None
        weight = read.astype(np.float32)
        x = self.rng.standard_normal(self.shape)
        u = layout.read(x).reshape(images, cells, q)[:, index].reshape(n, i, q)
        wanted = self.roles.rows(self._run(x) - self.zero).reshape(n, i, j * p).transpose(1, 0, 2)
        found = u.transpose(1, 0, 2) @ weight.astype(np.float64).transpose(0, 2, 1)
        if not np.abs(found - wanted).max() <= _PROVEN * np.abs(wanted).max():
            return None
        by_role = np.ascontiguousarray(weight.reshape(i, j, p, q).transpose(1, 0, 2, 3))
        constant = self.roles.read(self.zero)[: n // images] if np.any(self.zero) else None
        return VoteSource(self.tensor, layout, index, by_role, constant)

    def _weight(self, layout: Layout, index: Array) -> Array | None:
        """The weight ``[i, j·p, q]``; None if it differs between positions."""
        weight = self._weight_of_known(layout, index)
        if weight is None:
            weight = self._columns(layout, index, self._less_zero, self.roles.rows, self.few)
        return weight

    def _less_zero(self, x: Array) -> Array:
        return self._run(x) - self.zero

    def _weight_of_known(self, layout: Layout, index: Array) -> Array | None:
        """The weight, if the known cells of the votes only select elements of these cells."""
        known = self.known
        images = self._sizes(layout)[0]
        if (
            known is None
            or self._sizes(known.layout)[0] != images
            or len(known.index) != len(index)
        ):
            return None
        sizes = self._sizes(known.layout)
        used, first, back = np.unique(known.index, return_index=True, return_inverse=True)
        of_used = index.reshape(-1)[first]
        if (of_used[back.reshape(index.shape)] != index).any():
            return None

        def rows(made: Array, at: tuple[Array, Array]) -> Array:
            return np.asarray(made[at[0], used[at[1]]])

        few = self.rng.integers(images, size=_ROWS), self.rng.integers(len(used), size=_ROWS)
        chosen = self._columns(
            layout,
            of_used[None],
            lambda x: known.layout.read(self.through(x)[0] - self.through_zero).reshape(sizes),
            rows,
            few,
        )
        if chosen is None or not ((chosen == 0) | (chosen == 1)).all() or (chosen.sum(2) > 1).any():
            return None
        i = index.shape[1]
        weight = known.weight.transpose(1, 0, 2, 3).reshape(i, -1, sizes[2]).astype(np.float64)
        of_child = chosen[back.reshape(index.shape)[0]]
        return np.asarray(weight @ of_child)

    def _columns(
        self,
        layout: Layout,
        index: Array,
        run: Callable[[Array], Array],
        rows: Callable[[Array, tuple[Array, Array]], Array],
        few: tuple[Array, Array],
    ) -> Array | None:
        """A linear map of cells, column by column ``[i, rows, q]``; None if positions differ.

        A unit vector in a cell yields one column for each child of that cell. The next run has the next unit
        vector in every cell; most children have all their columns long before the last run.

        Args:
            index: the cell of each child ``[positions, i]``.
            run: applies the map to the tensor.
            rows: selects the results for some positions and children.
            few: positions and children compared with the columns read from others.
        """
        images, cells, q = self._sizes(layout)
        n, i = images * len(index), index.shape[1]
        start = self.rng.integers(q, size=cells) + (q // images) * np.arange(images)[:, None]
        begin = start[:, index].reshape(n, i)
        weight: Array | None = None
        unseen = np.ones((i, q), bool)
        for turn in range(q):
            made = run(layout.write(np.eye(q)[(start + turn) % q]))
            column = (begin + turn) % q
            pair, first = np.unique(np.arange(i) * q + column, return_index=True)
            place, child = np.divmod(first[unseen.reshape(-1)[pair]], i)
            some = rows(made, few)
            if weight is None:
                weight = np.empty((i, some.shape[1], q))
            weight[child, :, column[place, child]] = rows(made, (place, child))
            unseen[child, column[place, child]] = False
            again = weight[few[1], :, column[few]]
            off = np.abs(some - again).max()
            if off > _PROVEN * max(np.abs(again).max(), 1e-30):
                return None
            if not unseen.any():
                break
        return weight

    def _sizes(self, layout: Layout) -> tuple[int, int, int]:
        """The numbers of images, cells per image, and elements per cell."""
        _, cells, q = layout.sizes
        return self.batch if layout.batch is not None else 1, cells, q

    def _probe(self, layout: Layout, factors: Array, vector: Array) -> Array:
        """The tensor with cells that are multiples of one vector."""
        cells = layout.along(1, factors) * layout.along(2, vector)
        return np.broadcast_to(cells, layout.view).reshape(layout.shape)


def _numbers(one: Array, other: Array, cells: int) -> Array | None:
    """The integer factors between rows and others; None if there are none or they name no cell."""
    at = np.abs(one).argmax(1)
    rows = np.arange(len(one))
    with np.errstate(all="ignore"):
        ratio = other[rows, at] / one[rows, at]
        number = np.rint(ratio)
        if not np.isfinite(ratio).all() or np.abs(ratio - number).max() > _WHOLE:
            return None
    if number.min() < 1 or number.max() > cells:
        return None
    if np.abs(other - number[:, None] * one).max() > _LINEAR * np.abs(other).max():
        return None
    return np.asarray(number.astype(int))


def order_of(index: Array) -> Array | None:
    """The child of each cell, if every cell is exactly one child; otherwise None."""
    if len(index) != 1 or sorted(index[0].tolist()) != list(range(index.shape[1])):
        return None
    return np.argsort(index[0])


def cell_axes(vote_source: VoteSource) -> tuple[tuple[int, ...], Array]:
    """Sizes of the cell axes, and the position of each child on them ``[positions, i, axes]``."""
    sizes = vote_source.layout.part(1)
    if not sizes:
        return (), np.zeros((*vote_source.index.shape, 0), int)
    return sizes, np.stack(np.unravel_index(vote_source.index, sizes), -1)
