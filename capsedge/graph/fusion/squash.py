"""Find squashes outside routing: those of primary capsules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.edit import Edit
from capsedge.graph.fusion.emit_dynamic import ATOL, RTOL, epsilon_under_root
from capsedge.graph.fusion.equal_pieces import fit_once
from capsedge.graph.fusion.equivalence import (
    LOOSE,
    STRICT,
    Equivalence,
    check_equivalence,
    computes_in_fp64,
    poses_alone,
    poses_last,
)
from capsedge.graph.fusion.formulas import relative_difference, squash
from capsedge.graph.fusion.values import Values

_ROOTS = ("Sqrt", "ReduceL2")
_NEAR = 4  # maximum number of nodes between a pose and its norm
_ENDS = 12


@dataclass(frozen=True)
class SquashMatch:
    """A squash in a graph.

    Attributes:
        source, result: names of two tensors in the graph with the same shape.
        axis: axis of the pose.
        form, epsilon: parameters of ``formulas.squash``.
    """

    source: str
    result: str
    axis: int
    form: str
    epsilon: float


def match_squashes(graph: Values) -> list[SquashMatch]:
    """Every squash, including those inside routing."""
    found: dict[str, SquashMatch] = {}
    for node in graph.nodes:
        root = node.output[0] if node.output else ""
        half = node.op_type == "Pow" and node.input[1] in graph.constant
        if root in graph.sources and (node.op_type in _ROOTS or half) and root in graph.floats:
            one = _fitted(graph, root)
            if one is not None:
                found.setdefault(one.result, one)
    return list(found.values())


def _fitted(graph: Values, root: str) -> SquashMatch | None:
    small = graph.sizes[root]
    for source, distance in graph.distances(root).items():
        size, shape = graph.sizes[source], graph.shapes[source]
        if not 0 < distance <= _NEAR or not small or size % small or size == small:
            continue
        if len(graph.users(source)) < 2 or source not in graph.floats or len(shape) < 2:
            continue
        region = graph.determined(source)
        if root not in region:
            continue
        behind = region[region.index(root) + 1 :]
        ends = [t for t in behind if graph.shapes[t] == shape and t in graph.floats][:_ENDS]
        axes = [k for k, d in enumerate(shape) if k and d == size // small]
        if ends and axes:
            asked = ("squash", *axes)
            one = fit_once(
                graph, [source], ends, asked, partial(_of_source, graph, source, ends, axes)
            )
            if one is not None:
                return SquashMatch(source, ends[one[0]], *one[1:])
    return None


def _of_source(
    graph: Values, source: str, ends: list[str], axes: list[int]
) -> tuple[int, int, str, float] | None:
    """The number of the end that is the result, the axis, the form and the epsilon."""
    shape = graph.shapes[source]
    numbers = graph.numbers([source], ends)
    scalars = {float(v.reshape(-1)[0]) for v in numbers.values() if v.size == 1}
    epsilons = [0.0, *sorted(s for s in scalars if 0 < s <= 1e-2)]
    function = graph.function([source], ends)
    x = np.random.default_rng(1).standard_normal(shape)
    given = dict(zip(ends, function(x), strict=True))
    for end in ends:
        for axis in axes:
            poses = np.moveaxis(x, axis, -1)
            if (
                relative_difference(squash(poses, "B", 0.0), np.moveaxis(given[end], axis, -1))
                > 1e-2
            ):
                continue
            single = graph.function([source], [end])
            rtol = STRICT if computes_in_fp64(single, x) else LOOSE
            for form, epsilon in (("B", 0.0), *((f, e) for f in "BA" for e in epsilons if e)):
                verdict = check_equivalence(
                    poses_last(single, axis),
                    partial(squash, form=form, epsilon=epsilon),
                    poses.shape,
                    rtol,
                    roles=poses_alone(poses.shape),
                    stop=True,
                )
                if verdict.accepted:
                    return ends.index(end), axis, form, epsilon
    return None


def emit_squash(graph: Values, match: SquashMatch, tag: str) -> Edit:
    """A ``Squash`` node.

    Raises:
        NoMatch: it would compute something else.
    """
    epsilon = epsilon_under_root(match.form, match.epsilon)
    shape = graph.shapes[match.source]
    moved = (*shape[: match.axis], *shape[match.axis + 1 :], shape[match.axis])

    def compared() -> Equivalence:
        function = graph.function([match.source], [match.result])
        return check_equivalence(
            poses_last(function, match.axis),
            partial(squash, form="B", epsilon=epsilon),
            moved,
            RTOL,
            seed=6,
            floor=ATOL,
            roles=poses_alone(moved),
        )

    asked = ("operator", match.axis, epsilon)
    verdict = fit_once(graph, [match.source], [match.result], asked, compared)
    if not verdict.accepted:
        raise NoMatch(
            f"Squash would differ by {verdict.excess:.2g} times the tolerance ({verdict.case})"
        )
    if graph.free and shape[0] % graph.batch:
        raise NoMatch("a squash whose first axis is not the batch's")
    edit = Edit(graph, tag)
    if match.source not in graph.dims:
        edit.describe(match.source, shape)
    if match.result not in graph.outputs:  # inference stops at the operator
        edit.describe(match.result, shape)
    edit.capsule(
        "Squash",
        [match.source],
        [match.result],
        axis=match.axis - len(shape),
        epsilon=float(epsilon),
    )
    edit.results.append(match.result)
    return edit
