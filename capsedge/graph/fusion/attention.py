"""Fit and write AttentionRouting and UniformRouting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.candidates import Softmax
from capsedge.graph.fusion.edit import Edit
from capsedge.graph.fusion.equivalence import (
    FLOOR,
    LOOSE,
    ROUNDING,
    STRICT,
    Case,
    Equivalence,
    batched_cases,
    computes_in_fp64,
    excess_of,
    sampled_positions,
)
from capsedge.graph.fusion.formulas import Attention, least_difference, relative_difference
from capsedge.graph.fusion.grids import (
    Children,
    children_of,
    matrices,
    read_parents,
    read_poses,
    windows_of,
    write_parents,
)
from capsedge.graph.fusion.layouts import Layout, layouts, result_roles, vote_layouts
from capsedge.graph.fusion.values import Array, Function, Values
from capsedge.graph.fusion.votes import VoteProbe, VoteSource, linear_vote_source

# --- Fitting, one pass at a time: votes and parents in, layer normalization out ---

_PARENTS = 6  # maximum number of tensors tried as the parents
_SIZES = (1e-3, 0.1, 1.0, 3.0, 10.0)
_FAR = 12  # maximum number of nodes between votes and a uniform pass's layer normalization


@dataclass(frozen=True)
class AttentionMatch:
    """One pass in a graph.

    Attributes:
        votes, parent: its input tensors; the uniform pass has no parent.
        result: its output tensor.
        roles: layout of the votes, ``[n, j, i, p]``.
        parent_layout, layout: layouts of the parents and of the result, ``[n, j, p]``.
        kind: what the pass computes.
    """

    votes: str
    parent: str
    result: str
    roles: Layout
    parent_layout: Layout | None
    layout: Layout
    kind: Attention
    equivalence: Equivalence


def fit_attention(graph: Values, votes: str, softmax: Softmax) -> AttentionMatch:
    """The pass that a softmax belongs to.

    Raises:
        NoMatch: no kind agrees.
    """
    size, couplings = graph.sizes[votes], graph.sizes[softmax.name]
    if size % couplings or size == couplings:
        raise NoMatch("there is one coupling for each vote")
    reason = "no weighted sum of the votes by their agreement with parents"
    before = graph.distances(softmax.name)
    for roles in vote_layouts(graph.shapes[votes], graph.batch, size // couplings, {softmax.axis}):
        n, j, _, p = roles.sizes
        near = [
            t for t in before if t in graph.floats and graph.sizes[t] == n * j * p and t != votes
        ]
        for parent in sorted(near, key=lambda t: -graph.order[t])[:_PARENTS]:
            region = graph.determined(votes, parent)
            if softmax.name not in region:
                continue
            later = [
                t
                for t in region
                if graph.order[t] > graph.order[softmax.name]
                and t in graph.floats
                and graph.sizes[t] == n * j * p
            ]
            if not later:
                continue
            try:
                found = _fit(graph, votes, parent, softmax, roles, later)
            except NoMatch as error:
                reason = str(error)
                continue
            if found is not None:
                return found
    raise NoMatch(reason)


def _fit(
    graph: Values, votes: str, parent: str, softmax: Softmax, roles: Layout, ends: list[str]
) -> AttentionMatch | None:
    rng = np.random.default_rng(1)
    x, q = rng.standard_normal(graph.shapes[votes]), rng.standard_normal(graph.shapes[parent])
    numbers = graph.numbers([votes, parent], ends)
    given = dict(zip(ends, graph.function([votes, parent], ends)(x, q), strict=True))
    scalars = {float(v.reshape(-1)[0]) for v in numbers.values() if v.size == 1}
    p = roles.sizes[3]
    scales = {1.0, p**-0.5, *scalars, *(1 / s for s in scalars if s)}
    scales = {s for s in scales if 1e-3 < abs(s) < 1e3}
    some = sampled_positions(roles.sizes)
    u = roles.read(x)[some]
    parts, batch = result_roles(roles)
    for parent_layout in layouts(graph.shapes[parent], parts, batch):
        for scale, over in itertools.product(sorted(scales), ("j", "i")):
            plain = Attention(scale, np.ones(p), np.zeros(p), 1e-5, over)
            sums = plain.sums(u, parent_layout.read(q)[some])
            for end in ends:
                # Layouts only reorder: if no order fits, none does.
                if len(sums) == roles.sizes[0] and least_difference(sums, given[end]) > 1e-6:
                    continue
                for layout in layouts(graph.shapes[end], parts, batch):
                    if relative_difference(sums, layout.read(given[end])[some]) > 1e-6:
                        continue
                    if over == "i":
                        raise NoMatch(
                            "attention with a softmax over the children: no operator supports this"
                        )
                    for found, at in _normalized(graph, sums, scale, ends, given, numbers, roles):
                        function = graph.function([votes, parent], [at[0]])
                        verdict = check_attention(
                            lambda v, w: at[1].read(  # noqa: B023
                                function(roles.write(v), parent_layout.write(w))[0]  # noqa: B023
                            ),
                            found,
                            roles.sizes,
                        )
                        if verdict.accepted:
                            return AttentionMatch(
                                votes, parent, at[0], roles, parent_layout, at[1], found, verdict
                            )
                    raise NoMatch(
                        "attention without a layer normalization of the weighted sum: no operator "
                        "supports this"
                    )
    return None


def _normalized(
    graph: Values,
    sums: Array,
    scale: float,
    ends: list[str],
    constants: Mapping[str, Array],
    numbers: Mapping[str, Array],
    roles: Layout,
) -> Iterator[tuple[Attention, tuple[str, Layout]]]:
    """Layer normalizations of the sums, at some positions, that yield one of the end tensors."""
    p = sums.shape[-1]
    parts, batch = result_roles(roles)
    some = sampled_positions(roles.sizes)
    epsilons = {float(v.reshape(-1)[0]) for v in numbers.values() if v.size == 1}
    epsilons = {e for e in epsilons if 0 < e <= 1e-2}
    for node in map(graph.producer, ends):
        if node is not None and node.op_type == "LayerNormalization":
            epsilons.add(float(graph.attribute(node, "epsilon", 1e-5)))
    vectors = [v.reshape(-1).astype(np.float64) for v in numbers.values() if v.size == p]
    pairs = [*itertools.permutations(vectors, 2), (np.ones(p), np.zeros(p))]
    pairs += [(v, np.zeros(p)) for v in vectors]
    for (gain, bias), epsilon in itertools.product(pairs, sorted(epsilons) or [1e-5]):
        kind = Attention(scale, gain, bias, epsilon)
        off = sums - sums.mean(-1, keepdims=True)
        wanted = off / np.sqrt((off * off).mean(-1, keepdims=True) + epsilon) * gain + bias
        for end in ends:
            for layout in layouts(graph.shapes[end], parts, batch):
                if relative_difference(wanted, layout.read(constants[end])[some]) < 1e-5:
                    yield kind, (end, layout)


def hard_cases(sizes: tuple[int, ...], seed: int = 5) -> Iterator[Case]:
    """Named votes ``[n,j,i,p]`` and parents ``[n,j,p]`` of many magnitudes."""
    rng = np.random.default_rng(seed)
    n, j, _, p = sizes
    for size in _SIZES:
        yield (
            f"normal, {size:g}",
            (size * rng.standard_normal(sizes), rng.standard_normal((n, j, p))),
        )
    yield "offset", (0.5 + rng.standard_normal(sizes), 3 * rng.standard_normal((n, j, p)))
    yield "zero", (np.zeros(sizes), np.zeros((n, j, p)))


def check_attention(
    original: object, kind: Attention, sizes: tuple[int, ...], uniform: bool = False
) -> Equivalence:
    """Compare a pass with the original on votes and parents of many magnitudes."""
    assert callable(original)
    rng = np.random.default_rng(5)
    worst, undefined = Equivalence(0.0, ""), False
    parents = rng.standard_normal((sizes[0], sizes[1], sizes[3]))
    wide: Function = lambda v: [original(v) if uniform else original(v, parents)]  # noqa: E731
    rtol, floor = (
        (STRICT, FLOOR) if computes_in_fp64(wide, rng.standard_normal(sizes)) else (LOOSE, 1e-6)
    )
    for name, (x, q) in batched_cases(hard_cases, sizes, seed=5):
        given = (x,) if uniform else (x, q)
        wanted, found = original(*given), kind(*given)
        moved = [
            kind(x * (1 + ROUNDING * rng.choice((-1.0, 1.0), x.shape)), *given[1:])
            for _ in range(2)
        ]
        form = 8 * np.max([np.abs(m - found) for m in moved], axis=0).max(-1, keepdims=True)
        undefined |= not np.isfinite(wanted).all()
        excess = excess_of(found, wanted, rtol, floor, form)
        if not excess <= worst.excess:
            worst = Equivalence(excess, name)
    return Equivalence(worst.excess, worst.case, undefined)


def fit_uniform(graph: Values, result: str) -> Iterator[AttentionMatch]:
    """The uniform passes that a layer normalization may belong to.

    There may be several, because equal couplings do not show which axis counts the parents.
    """
    node = graph.producer(result)
    assert node is not None
    vote_source = node.input[0]
    before = graph.distances(vote_source)
    pose = graph.shapes[result][-1]
    gain, bias = (np.asarray(graph.value[n], np.float64) for n in (*node.input[1:3],))
    kind = Attention(0.0, gain, bias, float(graph.attribute(node, "epsilon", 1e-5)))
    for votes, distance in sorted(before.items(), key=lambda each: each[1]):
        size = graph.sizes[votes]
        if not 0 < distance <= _FAR or size % graph.sizes[result] or size == graph.sizes[result]:
            continue
        if votes not in graph.floats or vote_source not in graph.determined(votes):
            continue
        rng = np.random.default_rng(1)
        x = rng.standard_normal(graph.shapes[votes])
        function = graph.function([votes], [vote_source, result])
        sums, _ = function(x)
        parents = set(graph.shapes[result]) - {graph.batch} or {graph.batch}
        for roles in vote_layouts(graph.shapes[votes], graph.batch, pose, parents):
            n, j, i, p = roles.sizes
            if n * j * p != graph.sizes[result] or i < 2:
                continue
            parts, batch = result_roles(roles)
            some = sampled_positions(roles.sizes)
            wanted = kind.sums(roles.read(x)[some])
            for layout in layouts(graph.shapes[vote_source], parts, batch):
                if relative_difference(wanted, layout.read(sums)[some]) > 1e-5:
                    continue
                found = layouts(graph.shapes[result], parts, batch)
                same = next((f for f in found if f == layout), layout)
                verdict = check_attention(
                    _uniform_of(function, roles, same), kind, roles.sizes, True
                )
                if verdict.accepted:
                    yield AttentionMatch(votes, "", result, roles, None, same, kind, verdict)


def _uniform_of(function: Function, roles: Layout, layout: Layout) -> Callable[[Array], Array]:
    return lambda votes: layout.read(function(roles.write(votes))[1])


# --- Writing ---


def emit_attention(graph: Values, match: AttentionMatch, tag: str) -> tuple[Edit, Children]:
    """The operator's nodes.

    Raises:
        NoMatch: no operator is equivalent.
    """
    _, j, _, p = match.roles.sizes
    vote_source = _vote_source(graph, match)
    if vote_source.constant is not None:
        raise NoMatch("attention over votes with a constant part: no operator supports this")
    children = children_of(vote_source, windows_of(vote_source), matrices(vote_source.weight))
    edit = Edit(graph, tag)
    inputs = [read_poses(edit, children)]
    attributes: dict[str, Any] = {
        "strides": list(children.windows.strides),
        "matrix_pose": int(children.matrix),
        "epsilon": float(match.kind.epsilon),
    }
    if match.parent_layout is not None:
        inputs.append(read_parents(edit, match.parent, match.parent_layout, children, j, p))
        attributes["agreement_scale"] = float(match.kind.agreement_scale)
    inputs.append(edit.constant(children.weight, "weight"))
    for name, value in (("scale", match.kind.scale), ("bias", match.kind.bias)):
        inputs.append(edit.constant(_turned(value, children.transposed), name))
    operator = "AttentionRouting" if match.parent_layout is not None else "UniformRouting"
    (pose,) = edit.capsule(operator, inputs, **attributes)
    write_parents(edit, pose, match.layout, match.result, children, j, p)
    return edit, children


def _vote_source(graph: Values, match: AttentionMatch) -> VoteSource:
    """The source of the votes: with matrix poses if they are matrices, otherwise with vectors."""
    p = match.roles.sizes[3]
    votes, probes = (graph, match.votes, match.roles), dict[str, VoteProbe]()
    try:
        return linear_vote_source(*votes, p, lambda w: matrices(w) is not None, probes)
    except NoMatch:
        return linear_vote_source(*votes, probes=probes)


def _turned(vector: Array, transposed: bool) -> Array:
    if not transposed:
        return vector
    side = math.isqrt(len(vector))
    return np.ascontiguousarray(vector.reshape(side, side).T).reshape(-1)
