"""Fit and write EMRouting.

Passes are fitted one by one against the region's own tensors. The first means determine the axes and which
tensor holds the activations. Then the argument of each pass's logistic function determines the inverse
temperature and the betas. Epsilon comes last, from children with tiny activations and nearly equal votes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.candidates import Softmax
from capsedge.graph.fusion.edit import Edit
from capsedge.graph.fusion.equivalence import (
    FLOOR,
    ROUNDING,
    STRICT,
    Case,
    Equivalence,
    batched_cases,
    excess_of,
    sampled_positions,
    screening_cases,
)
from capsedge.graph.fusion.formulas import EM, difference, logistic, m_step, responsibilities
from capsedge.graph.fusion.grids import (
    Children,
    Windows,
    agree,
    children_of,
    coordinates_of,
    matrices,
    of_the_paper,
    read_activations,
    read_poses,
    shared_grids,
    unfolded,
    windows_of,
    write_parents,
)
from capsedge.graph.fusion.layouts import Layout, layouts, result_roles, vote_layouts
from capsedge.graph.fusion.values import Array, Values
from capsedge.graph.fusion.votes import VoteSource, linear_vote_source

# --- Fitting ---

_Pair = tuple[Array, Array]  # beta_u, beta_a
_Tensor = tuple[str, Layout]
Routing = Callable[[Array, Array], tuple[Array, Array]]
_BOUNDARIES = 6  # maximum number of tensors tried as the activations


@dataclass(frozen=True)
class EMMatch:
    """EM routing in a graph.

    Attributes:
        votes, activations: its input tensors.
        pose, result: its output tensors, the parents' poses and activations.
        roles: layout of the votes, ``[n, j, i, p]``.
        children: layout of the activations, ``[n, 1, i, 1]``.
        pose_layout, result_layout: layouts of the outputs, ``[n, j, p]`` and ``[n, j]``.
        kind: what the routing computes.
        equivalence: how the match compares with the original nodes.
    """

    votes: str
    activations: str
    pose: str
    result: str
    roles: Layout
    children: Layout
    pose_layout: Layout
    result_layout: Layout
    kind: EM
    equivalence: Equivalence


def fit_em(graph: Values, votes: str, softmaxes: list[Softmax]) -> EMMatch:
    """Fit the EM routing that the softmaxes compute over the votes.

    Raises:
        NoMatch: no kind agrees.
    """
    last = softmaxes[-1]
    below = graph.after(votes)
    cuts = [t for t in graph.dominators(last.name, [votes]) if t not in below and t in graph.floats]
    reason = "no means of votes weighted by activations"
    for cut in cuts[:_BOUNDARIES]:
        region = graph.determined(votes, cut)
        if last.name not in region:
            continue
        ends = [t for t in region if t in graph.floats and graph.sizes[t] < graph.sizes[votes]]
        within = set(ends)
        if not any(_sign(n) and n.input[0] in within for n in graph.nodes):
            continue  # no logistic function
        try:
            return _fit(graph, votes, cut, softmaxes, ends)
        except NoMatch as error:
            reason = str(error) if "EM" in str(error) else reason
    raise NoMatch(reason)


def _fit(
    graph: Values, votes: str, boundary: str, softmaxes: list[Softmax], ends: list[str]
) -> EMMatch:
    last = softmaxes[-1]
    size, couplings = graph.sizes[votes], graph.sizes[last.name]
    if size % couplings or size == couplings:
        raise NoMatch("there is one coupling for each vote")
    numbers = graph.numbers([votes, boundary], ends)
    function = graph.function([votes, boundary], ends)
    reason = "no means of votes weighted by activations"
    rng = np.random.default_rng(1)
    x, a = rng.standard_normal(graph.shapes[votes]), 0.05 + 0.9 * rng.random(graph.shapes[boundary])
    given = dict(zip(ends, function(x, a), strict=True))
    for roles in vote_layouts(graph.shapes[votes], graph.batch, size // couplings, {last.axis}):
        n, j, i, p = roles.sizes
        batch = None if roles.batch is None else 0
        if graph.sizes[boundary] != n * i:
            continue
        some = sampled_positions(roles.sizes)
        of_pose = [
            (end, layout, layout.read(given[end])[some])
            for end in ends
            if graph.sizes[end] == n * j * p
            for layout in layouts(graph.shapes[end], *result_roles(roles))
        ]
        u = roles.read(x)[some]
        for children in layouts(
            graph.shapes[boundary], [roles.part(0), (), roles.part(2), ()], batch
        ):
            for normalized in (False, True):
                acting = np.ones((n, i)) if normalized else children.read(a).reshape(n, i)
                acting = acting[some]
                mean = m_step(u, np.full((1, j, 1), 1 / j) * acting[:, None], 1e-12)[1]
                if all(difference(mean, value) >= 1e-4 for _, _, value in of_pose):
                    continue
                base = _Base(graph, votes, boundary, roles, children, of_pose, numbers, given)
                try:
                    return base.fitted(u, acting, normalized, len(softmaxes) + 1)
                except NoMatch as error:
                    reason = str(error)
    raise NoMatch(reason)


@dataclass
class _Base:
    """One assignment of tensors to votes, activations and means."""

    graph: Values
    votes: str
    boundary: str
    roles: Layout
    children: Layout
    of_pose: list[tuple[str, Layout, Array]]
    numbers: Mapping[str, Array]
    constants: Mapping[str, Array]

    def fitted(self, u: Array, acting: Array, normalized: bool, count: int) -> EMMatch:
        """The kind of ``count`` passes over votes ``[n, j, i, p]`` and activations ``[n, i]`` of some
        positions.

        Raises:
            NoMatch: no kind agrees.
        """
        reason = NoMatch("no pass")
        for ones_first in (False, True):
            try:
                kind, mean, activation = self._passes(u, acting, count, ones_first)
            except NoMatch as error:
                # The reason found with the paper's initialization is more informative.
                reason = reason if ones_first else error
                continue
            pose, result = self._results(mean, activation)
            return self._accepted(replace(kind, normalized=normalized), pose, result)
        raise reason

    def _passes(
        self, u: Array, acting: Array, count: int, ones_first: bool
    ) -> tuple[EM, Array, Array]:
        """Temperatures and betas of every pass, and poses and activations of the last pass."""
        _, j, _, p = self.roles.sizes
        arguments = list(self._arguments())
        pairs = list(self._betas(j, p))
        epsilon = self.epsilons[0]
        r = np.full((1, j, 1), 1.0 if ones_first else 1 / j)
        temperatures: list[float] = []
        for number in range(count):
            mass, mean, off, variance = m_step(u, r * acting[:, None], epsilon)
            logs = 0.5 * np.log(variance).sum(-1)
            error, scale, pair = _nearest(arguments, pairs, p, logs, mass)
            if pair is None or not (number or self._has(variance)):
                raise NoMatch("no variances of the votes, or nothing that is computed from them")
            if error > 1e-3:
                raise NoMatch(
                    f"EM routing whose activations match no known formula at pass {number + 1} "
                    f"({error:.1g} off)"
                )
            near = min(self.scalars, key=lambda s: abs(s - scale), default=scale)
            scale = near if abs(near - scale) < 1e-4 * abs(scale) else float(np.float32(scale))
            temperatures.append(scale)
            pairs = [pair]
            logit = scale * (pair[1] - (pair[0] * p + logs) * mass)
            r = responsibilities(logit, logs, off, variance)
        kind = EM(tuple(temperatures), *pairs[0], epsilon, ones_first=ones_first)
        return kind, mean, logistic(logit)

    def _has(self, variance: Array) -> bool:
        """Whether a tensor holds the variances, without which it is not EM routing."""
        return any(difference(variance, value) < 1e-3 for _, _, value in self.of_pose)

    def _results(self, mean: Array, activation: Array) -> tuple[_Tensor, _Tensor]:
        """The tensors that hold the poses and the activations; the first if several are equal."""
        n, j = self.roles.sizes[:2]
        parts, batch = result_roles(self.roles)
        some = sampled_positions(self.roles.sizes)
        poses = ((e, lay) for e, lay, value in self.of_pose if difference(mean, value) < 1e-4)
        acts = (
            (e, lay)
            for e in self.constants
            if self.graph.sizes[e] == n * j
            for lay in layouts(self.graph.shapes[e], parts[:2], batch)
            if difference(activation, lay.read(self.constants[e])[some]) < 1e-3
        )
        pose, result = next(poses, None), next(acts, None)
        if pose is None or result is None:
            raise NoMatch("EM routing whose last pass computes no poses or no activations")
        return pose, result

    def _accepted(self, kind: EM, pose: _Tensor, result: _Tensor) -> EMMatch:
        """The kind with the epsilon that agrees best, if it agrees well enough."""
        function = self.graph.function([self.votes, self.boundary], [pose[0], result[0]])

        def original(x: Array, a: Array) -> tuple[Array, Array]:
            found = function(self.roles.write(x), self.children.write(a[:, None, :, None]))
            return pose[1].read(found[0]), result[1].read(found[1])

        kinds = [replace(kind, epsilon=e) for e in self.epsilons]
        kind = kinds[0] if len(kinds) == 1 else best_em(original, kinds, self.roles.sizes)
        verdict = check_em(original, kind, self.roles.sizes)
        if not verdict.accepted:
            raise NoMatch(
                f"EM routing would differ by {verdict.excess:.2g} times the tolerance ({verdict.case})"
            )
        return EMMatch(
            self.votes, self.boundary, pose[0], result[0], self.roles, self.children, pose[1], result[1],
            kind, verdict,
        )  # fmt: skip

    @property
    def scalars(self) -> list[float]:
        """The scalars that the region reads."""
        return sorted({float(v.reshape(-1)[0]) for v in self.numbers.values() if v.size == 1})

    @property
    def epsilons(self) -> list[float]:
        """The constants that may be the epsilon."""
        return [s for s in self.scalars if 0 < s <= 1e-2] or [1e-30]

    def _arguments(self) -> Iterator[Array]:
        """Arguments of logistic functions, however they are written."""
        n, j = self.roles.sizes[:2]
        some = sampled_positions(self.roles.sizes)
        parts, batch = result_roles(self.roles)
        for node in self.graph.nodes:
            sign = _sign(node)
            if (
                sign is None
                or node.input[0] not in self.constants
                or self.graph.sizes[node.input[0]] != n * j
            ):
                continue
            for layout in itertools.islice(
                layouts(self.graph.shapes[node.input[0]], parts[:2], batch), 2
            ):
                yield sign * layout.read(self.constants[node.input[0]]).reshape(n, j)[some]

    def _betas(self, j: int, p: int) -> Iterator[_Pair]:
        """Pairs ``(beta_u, beta_a)`` that the constants may hold.

        A cost may add beta_u once per pose or once per element. Logarithms of variances without the factor ½
        are equivalent to the paper's with half the betas and twice the temperature.
        """
        values = [v.astype(np.float64) for v in self.numbers.values()]
        stored = [np.broadcast_to(v.reshape(-1), (j,)) for v in values if v.size in (1, j)]
        wide = [v for v in values if v.size == j * p and v.any()]
        costs = [b for u in stored for b in (u, u / p)]
        costs += [m for v in wide for m in (v.reshape(j, p).mean(1), v.reshape(p, j).mean(0))]
        for u, a in itertools.product(costs, stored):
            yield u, a
            yield u / 2, a / 2


def _sign(node: onnx.NodeProto) -> int | None:
    """The sign of the argument that a node of a logistic function reads; None for other nodes."""
    return {"Sigmoid": 1, "Abs": 1, "Exp": -1, "Softplus": -1}.get(node.op_type)


def _nearest(
    arguments: list[Array], pairs: list[_Pair], p: int, logs: Array, mass: Array
) -> tuple[float, float, _Pair | None]:
    """The error, temperature and betas that best reproduce one of the arguments."""
    best: tuple[float, float, _Pair | None] = (float("inf"), 0.0, None)
    for z in arguments:
        for pair in pairs:
            plain = pair[1] - (pair[0] * p + logs) * mass
            scale = float((z * plain).sum() / max((plain * plain).sum(), 1e-300))
            best = min(best, (difference(scale * plain, z), scale, pair), key=lambda b: b[0])
    return best


def hard_cases(sizes: tuple[int, ...], seed: int = 4) -> Iterator[Case]:
    """Named votes ``[n,j,i,p]`` and activations ``[n,i]``, many of them extreme."""
    n, j, i, p = sizes
    rng = np.random.default_rng(seed)
    for name, size, strength in (
        ("normal", 1.0, 1.0), ("small", 1e-2, 1.0), ("weak activations", 1.0, 1e-4), ("weaker", 1.0, 1e-7),
        ("weak and small", 1e-3, 1e-5), ("dead children", 1.0, 0.0), ("large", 10.0, 1.0), ("zero", 0.0, 1.0),
    ):  # fmt: skip
        yield name, (size * rng.standard_normal(sizes), strength * rng.random((n, i)))
    same = rng.standard_normal((n, j, 1, p))
    yield "agreeing", (same + 1e-2 * rng.standard_normal(sizes), rng.random((n, i)))
    yield "offset", (0.5 + rng.standard_normal(sizes), rng.random((n, i)))


def check_em(
    original: Routing, kind: EM, sizes: tuple[int, ...], rtol: float = STRICT
) -> Equivalence:
    """Compare an original and a kind of EM routing on the hard cases."""
    cases = batched_cases(hard_cases, sizes, seed=4)
    return _equivalence(((name, given, original(*given)) for name, given in cases), kind, rtol)


def best_em(original: Routing, kinds: list[EM], sizes: tuple[int, ...]) -> EM:
    """The kind that agrees best with the original; large votes are compared at only a few positions."""
    few, cases = screening_cases(hard_cases, sizes)
    ran = [
        (name, tuple(g[few] for g in given), tuple(w[few] for w in original(*given)))
        for name, given in cases
    ]
    return min(kinds, key=lambda kind: _equivalence(ran, kind, STRICT).excess)


def _equivalence(
    ran: Iterable[tuple[str, tuple[Array, ...], tuple[Array, ...]]], kind: EM, rtol: float
) -> Equivalence:
    """Compare a kind with the original's output for named votes and activations."""
    worst, undefined = Equivalence(0.0, ""), False
    for name, (x, a), wanted in ran:
        found = kind(x, a)
        rng = np.random.default_rng(9)
        moved = [kind(x * (1 + ROUNDING * rng.choice((-1.0, 1.0), x.shape)), a) for _ in range(2)]
        for k, (w, f) in enumerate(zip(wanted, found, strict=True)):
            form = 8 * np.max([np.abs(m[k] - f) for m in moved], axis=0).max(-1, keepdims=True)
            undefined |= not np.isfinite(w).all()
            # Each activation is compared separately, at the scale of its smaller side.
            excess = excess_of(f, w, rtol, FLOOR if k == 0 else 1e-12, form)
            if not excess <= worst.excess:
                worst = Equivalence(excess, name)
    return Equivalence(worst.excess, worst.case, undefined)


# --- Writing ---


@dataclass(frozen=True)
class EmittedEM:
    """The nodes, with a description of them.

    Attributes:
        edit: the nodes.
        children: the children on their grid.
        coordinates: coordinates ``[H, W, P]`` added to the votes, or None.
    """

    edit: Edit
    children: Children
    coordinates: Array | None


def emit_em(graph: Values, match: EMMatch, tag: str) -> EmittedEM:
    """The nodes.

    Raises:
        NoMatch: no operator computes the same.
    """
    _, j, _, p = match.roles.sizes
    vote_source = linear_vote_source(
        graph, match.votes, match.roles, p, lambda w: matrices(w) is not None
    )
    matrix = matrices(vote_source.weight)
    assert matrix is not None
    windows, coordinates, shared = _arrangement(vote_source, matrix[1])
    children = children_of(vote_source, windows, matrix, shared)
    acting = _acting(graph, match)
    if not agree(acting, children):
        raise NoMatch("EM routing whose activations belong to other cells than its poses")
    edit = Edit(graph, tag)
    inputs = [read_poses(edit, children), read_activations(edit, acting, children)]
    kind = match.kind
    stored = {"weight": children.weight, "beta_u": kind.beta_u, "beta_a": kind.beta_a}
    paper = coordinates is not None and of_the_paper(coordinates)
    attributes: dict[str, Any] = {
        "iterations": len(kind.temperatures),
        "strides": [1, 1] if shared else list(windows.strides),
        "inverse_temperatures": list(kind.temperatures),
        "coordinate_addition": int(paper),
        "shared": int(shared),
        "normalize_activations": int(kind.normalized),
        "ones_first": int(kind.ones_first),
        "epsilon": float(kind.epsilon),
    }
    if coordinates is not None and not paper:
        stored["coordinates"] = coordinates
    inputs += [edit.constant(value, name) for name, value in stored.items()]
    outputs = edit.capsule("EMRouting", inputs, **attributes)
    write_parents(edit, outputs[0], match.pose_layout, match.pose, children, j, p)
    edit.describe(outputs[1], (graph.batch, *windows.positions, j))
    edit.write(outputs[1], match.result_layout, match.result)
    return EmittedEM(edit, children, coordinates)


def _arrangement(vote_source: VoteSource, transposed: bool) -> tuple[Windows, Array | None, bool]:
    """Windows, the coordinates that are added, and whether weights are shared over the whole grid."""
    constant = vote_source.constant
    for windows in sorted(shared_grids(vote_source), key=lambda w: -math.prod(w.grid[:2])):
        if math.prod(windows.grid[:2]) == 1:
            continue
        if constant is None:
            return windows, None, True
        coordinates = coordinates_of(constant, windows, transposed)
        if coordinates is not None:
            return (*unfolded(windows, coordinates), True)
    windows = windows_of(vote_source)
    if constant is None:
        return windows, None, False
    coordinates = coordinates_of(constant, windows, transposed)
    if coordinates is None:
        raise NoMatch(
            "EM routing whose votes have a constant part that differs between positions: no "
            "operator supports this"
        )
    return windows, coordinates, False


def _acting(graph: Values, match: EMMatch) -> VoteSource:
    """The source of the children's activations."""
    try:
        return linear_vote_source(
            graph,
            match.activations,
            match.children,
            1,
            lambda w: bool((np.abs(w - 1) < 1e-6).all()),
        )
    except NoMatch:
        n, _, i, _ = match.children.sizes
        if n != graph.batch:
            raise NoMatch("EM routing whose activations are not the cells of a layer") from None
        g = match.children.groups
        layout = replace(match.children, groups=(g[0], g[2], 0))
        return VoteSource(
            match.activations, layout, np.arange(i)[None], np.ones((1, i, 1, 1)), None
        )
