"""Write self-routing (Hahn et al. 2019) with fewer and larger matrix products, exactly.

Its couplings come from the children alone: a softmax of a linear map of each child, times its activation.
There is one pass, ``s[n,j] = Σ_i c[n,j,i] · W[j,i] · u[n,i]``. Files compute every vote ``W[j,i] · u[n,i]``,
a matrix-vector product for every child at every position, then weight and sum the votes. Here the children
are weighted first, ``x[j,n,(q,i)] = c[n,j,i] · u[n,i,q]``, so that one matrix product per parent over all
elements of all children, ``x[j] · W[j]``, yields the sums at all positions. Logits take one
matrix product per child over all positions. Windows are read by one Gather.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.candidates import Softmax
from capsedge.graph.fusion.edit import Edit
from capsedge.graph.fusion.formulas import relative_difference
from capsedge.graph.fusion.layouts import Layout, layouts, result_roles, squeezed, vote_layouts
from capsedge.graph.fusion.standard import LEAST_GAIN, NO_FASTER, estimated_gain
from capsedge.graph.fusion.values import Array, Values
from capsedge.graph.fusion.votes import (
    VoteProbe,
    VoteSource,
    linear_vote_source,
)

_NEAR = 1e-6
_ENDS = 8  # maximum number of tensors after the weighting tried as the sums
_CACHED = 1 << 20  # up to this many bytes of weighted children per image, one node weights them all


@dataclass(frozen=True)
class WeightedSum:
    """Self-routing's sums of votes, weighted by couplings that do not depend on the votes.

    Attributes:
        votes, couplings, result: names of tensors in the graph.
        roles: layout of the votes, ``[n, j, i, p]``.
        coupled: layout of the couplings, ``[n, j, i]``.
        layout: layout of the result, ``[n, j, p]``.
        source: source of the votes.
    """

    votes: str
    couplings: str
    result: str
    roles: Layout
    coupled: Layout
    layout: Layout
    source: VoteSource


@dataclass(frozen=True)
class Logits:
    """A linear map of each child.

    Attributes:
        name: name of the tensor in the graph.
        layout: its roles, ``[n, j, i]``.
        source: the children and the map, as for one-element votes.
    """

    name: str
    layout: Layout
    source: VoteSource


# --- Fitting ---


def fit_sum(graph: Values, softmax: Softmax, logits: Logits) -> WeightedSum:
    """Fit self-routing's weighted sum of linear votes to a softmax.

    Args:
        logits: logits of the softmax, computed from the same children as the votes.

    Raises:
        NoMatch: there is none.
    """
    for couplings, votes in _weighed(graph, softmax):
        for found in _sums(graph, couplings, votes, logits):
            return found
    raise NoMatch("it does not weight votes that are a linear map of capsules")


def _weighed(graph: Values, softmax: Softmax) -> Iterator[tuple[str, str]]:
    """Couplings and the tensor that a node multiplies by them, with several elements per coupling."""
    after = {softmax.name} | graph.after(softmax.name)
    size = graph.sizes[softmax.name]
    for node in graph.nodes:
        read = [i for i in dict.fromkeys(node.input) if i in graph.floats - graph.constant]
        made = [i for i in read if i in after and graph.sizes[i] == size]
        others = [i for i in read if i not in after]
        if len(read) == 2 and len(made) == len(others) == 1:
            votes = graph.sizes[others[0]]
            if votes > size and votes % size == 0:
                yield made[0], others[0]


def _sums(graph: Values, couplings: str, votes: str, logits: Logits) -> Iterator[WeightedSum]:
    size, batch = graph.sizes[votes], graph.batch
    pose = size // graph.sizes[couplings]
    ends = [
        t
        for t in graph.determined(votes, couplings)
        if t in graph.floats and graph.sizes[t] < size and graph.sizes[t] % pose == 0
    ][:_ENDS]
    rng = np.random.default_rng(1)
    x = rng.standard_normal(graph.shapes[votes]), rng.random(graph.shapes[couplings])
    for end in ends:
        made = graph.function([votes, couplings], [end])(*x)[0]
        shape = graph.shapes[votes]
        for roles in vote_layouts(shape, batch, pose, set(shape)):
            n, j, _, p = roles.sizes
            same = all(roles.part(k) == logits.layout.part(k) for k in range(3))
            if not same or n * j * p != graph.sizes[end]:
                continue
            parts, of_batch = result_roles(roles)
            u = roles.read(x[0])
            for coupled in _coupled(graph, couplings, roles):
                s = np.matmul(coupled.read(x[1])[:, :, None], u)[:, :, 0]
                for layout in layouts(graph.shapes[end], parts, of_batch):
                    if relative_difference(s, layout.read(made)) < _NEAR:
                        source = _source(graph, votes, roles, logits)
                        if source is not None:
                            yield WeightedSum(votes, couplings, end, roles, coupled, layout, source)


def _coupled(graph: Values, name: str, roles: Layout) -> Iterator[Layout]:
    """Layouts in which a tensor may hold couplings ``[n, j, i]``."""
    parts = [roles.part(k) for k in range(3)]
    yield from layouts(graph.shapes[name], parts, None if roles.batch is None else 0)


def _source(graph: Values, votes: str, roles: Layout, logits: Logits) -> VoteSource | None:
    """The votes in terms of the children of the logits."""
    known = logits.source
    probe = VoteProbe(graph, known.tensor, votes, roles)
    source = probe.source(known.layout, known.index) if probe.linear else None
    if source is None or source.constant is None:
        return source
    return source if (source.constant == source.constant[:1]).all() else None


def fit_logits(graph: Values, softmax: Softmax) -> Logits:
    """Fit self-routing's logits, which are a linear map of each child, to a softmax.

    Raises:
        NoMatch: they are not.
    """
    node = graph.producer(softmax.name)
    if node is None or node.op_type != "Softmax":
        raise NoMatch("a decomposed softmax")
    name = node.input[0]
    shape, batch = graph.shapes[name], graph.batch
    view = squeezed(shape)
    last = int(graph.attribute(node, "axis", -1)) % len(shape)
    j = len(squeezed(shape[:last]))
    start = 0 if batch > 1 and view[:1] == (batch,) else None
    rest = [k for k in range(len(view)) if k not in (start, j)]
    if shape[last] == 1 or not rest or j == start:
        raise NoMatch("a softmax over something other than parents")
    for count in reversed(range(len(rest))):  # position axes come before those of the children
        positions, children = rest[:count], rest[count:]
        n = ([] if start is None else [start]) + positions
        groups = len(n), 1, len(children), 0
        roles = Layout(shape, view, (*n, j, *children), groups, start)
        try:
            source = linear_vote_source(graph, name, roles, suits=_is_of_several)
        except NoMatch:
            continue
        if source.depth > 1:
            return Logits(name, Layout(shape, view, roles.order, groups[:3], start), source)
    raise NoMatch("its logits are not a linear map of capsules")


def _is_of_several(weight: Array) -> bool:
    """Whether a logit depends on several elements of a child; a mask is one element, perhaps scaled."""
    return bool((np.count_nonzero(weight, axis=3) > 1).any())


# --- Writing ---


def emit_self_routing(
    graph: Values, logits: Logits, weighted: WeightedSum | None, tag: str
) -> tuple[Edit, float]:
    """The nodes, and their estimated speedup over the file's nodes.

    Raises:
        NoMatch: they save too little.
    """
    edit = _written(graph, logits, weighted, tag, by_parent=False)
    gain = estimated_gain(graph, edit)
    if gain < LEAST_GAIN:
        raise NoMatch(NO_FASTER)
    if weighted is not None and _weighed_bytes(graph, weighted) > _CACHED:
        edit = _written(graph, logits, weighted, tag, by_parent=True)
    return edit, gain


def _written(
    graph: Values, logits: Logits, weighted: WeightedSum | None, tag: str, *, by_parent: bool
) -> Edit:
    edit = Edit(graph, tag)
    children = _Children(edit)
    _write_logits(edit, children, logits)
    if weighted is not None:
        (_write_sum_by_parent if by_parent else _write_sum)(edit, children, weighted)
    return edit


def _weighed_bytes(graph: Values, weighted: WeightedSum) -> int:
    """Bytes of the weighted children of one image, for all parents."""
    n, j, i, _ = weighted.roles.sizes
    return 4 * n // graph.batch * j * i * weighted.source.depth


class _Children:
    """Read the children ``[n, i, q]`` of a source once for all uses."""

    def __init__(self, edit: Edit) -> None:
        self.edit = edit
        self.read: list[tuple[VoteSource, str]] = []

    def of(self, source: VoteSource, n: int) -> str:
        for other, name in self.read:
            same = other.tensor == source.tensor and other.layout == source.layout
            if same and np.array_equal(other.index, source.index):
                return name
        edit, i, q = self.edit, source.index.shape[1], source.depth
        u = edit.read(source.tensor, source.layout, (edit.graph.batch, source.cells, q))
        if not np.array_equal(source.index.reshape(-1), np.arange(source.cells)):
            at = edit.constant(source.index.reshape(-1), f"children_{len(self.read)}")
            u = edit.op("Gather", [u, at], axis=1)
        u = edit.reshape(u, (n, i, q), 0)
        self.read.append((source, u))
        return u


def _write_logits(edit: Edit, children: _Children, logits: Logits) -> None:
    """One product per child: ``[i, n, q] · [i, q, j]``."""
    n = logits.layout.sizes[0]
    source = logits.source
    u = edit.transpose(children.of(source, n), (1, 0, 2))
    weight = edit.constant(source.weight[:, :, 0].transpose(1, 2, 0), "logit_weight")
    b = edit.transpose(edit.op("MatMul", [u, weight]), (1, 0, 2))  # [n, i, j]
    if source.constant is not None:
        bias = source.constant[..., 0].transpose(0, 2, 1)  # [positions, i, j]
        if (bias == bias[:1]).all():
            b = edit.op("Add", [b, edit.constant(bias[0], "logit_bias")])
        else:
            b = edit.reshape(b, (edit.graph.batch, *bias.shape), 0)
            b = edit.op("Add", [b, edit.constant(bias, "logit_bias")])
    edit.write(b, _children_first(logits.layout), logits.name)


def _children_first(layout: Layout) -> Layout:
    """The layout of ``[n, j, i]`` as one of ``[n, i, j]``; if files use that, nothing is transposed."""
    n, j, i = layout.groups
    order = layout.order
    return replace(layout, order=(*order[:n], *order[n + j :], *order[n : n + j]), groups=(n, i, j))


def _write_sum(edit: Edit, children: _Children, weighted: WeightedSum) -> None:
    """One product per parent, all in one node: ``[j, n, q·i] · [j, q·i, p]``."""
    n, j, i, _ = weighted.roles.sizes
    source = weighted.source
    q = source.depth
    u = edit.transpose(children.of(source, n), (0, 2, 1))  # [n, q, i]
    c = edit.read(weighted.couplings, weighted.coupled, (n, j, i))
    of_parent = edit.transpose(c, (1, 0, 2))
    axis = edit.constant(np.array([2]), "axis_2")
    x = edit.op("Mul", [u, edit.op("Unsqueeze", [of_parent, axis])])  # [j, n, q, i]
    weight = edit.constant(_weight(source), "weight")
    s = edit.op("MatMul", [edit.reshape(x, (j, n, q * i), 1), weight])
    s = edit.transpose(s, (1, 0, 2))
    edit.write(_with_constant(edit, s, c, weighted), weighted.layout, weighted.result)


def _write_sum_by_parent(edit: Edit, children: _Children, weighted: WeightedSum) -> None:
    """One product per parent, each in its own node: ``[n, q·i] · [q·i, p]``.

    The weighted children of one parent stay in the cache, and ONNX Runtime packs two-axis weights when it
    loads the file.
    """
    n, j, i, p = weighted.roles.sizes
    source = weighted.source
    q = source.depth
    u = edit.transpose(children.of(source, n), (0, 2, 1))  # [n, q, i]
    c = edit.read(weighted.couplings, weighted.coupled, (n, j, i))
    sums = []
    for k, part in enumerate(edit.split(c, j, axis=1)):  # [n, 1, i]
        x = edit.reshape(edit.op("Mul", [u, part]), (n, q * i), 0)
        weight = edit.constant(_weight(source)[k], f"weight_{k}")
        sums.append(edit.op("MatMul", [x, weight]))
    s = edit.reshape(edit.op("Concat", sums, axis=1), (n, j, p), 0)
    edit.write(_with_constant(edit, s, c, weighted), weighted.layout, weighted.result)


def _weight(source: VoteSource) -> Array:
    """The weight as ``[j, q·i, p]``."""
    j, i, p, q = source.weight.shape
    return source.weight.transpose(0, 3, 1, 2).reshape(j, q * i, p)


def _with_constant(edit: Edit, s: str, c: str, weighted: WeightedSum) -> str:
    """Sums ``[n, j, p]`` plus the constant part of the votes, weighted by couplings ``[n, j, i]``."""
    constant = weighted.source.constant
    if constant is None:
        return s
    by_parent = edit.op(
        "MatMul", [edit.transpose(c, (1, 0, 2)), edit.constant(constant[0], "vote_bias")]
    )
    return edit.op("Add", [s, edit.transpose(by_parent, (1, 0, 2))])


def describe_self_routing(logits: Logits, weighted: WeightedSum | None) -> dict[str, str]:
    """Describe the match for the report."""
    if weighted is not None:
        _, j, i, p = weighted.roles.sizes
        return {"children": f"{i} of {weighted.source.depth}", "parents": f"{j} of {p}"}
    _, j, i = logits.layout.sizes
    return {"children": f"{i} of {logits.source.depth}", "parents": str(j)}
