"""Fit EMRouting.

Passes are fitted one by one against the region's own tensors. The first means determine the axes and which
tensor holds the activations. Then the argument of each pass's logistic function determines the inverse
temperature and the betas. Epsilons come last, from children with tiny activations and nearly equal votes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.candidates import Softmax
from capsedge.graph.fusion.equal_pieces import fit_once
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
from capsedge.graph.fusion.formulas import (
    EM,
    logistic,
    m_step,
    relative_difference,
    responsibilities,
)
from capsedge.graph.fusion.layouts import Layout, layouts, result_roles, vote_layouts
from capsedge.graph.fusion.values import Array, Values
from capsedge.spec.operators import EM_EPSILONS

# --- Fitting ---

_Pair = tuple[Array, Array]  # beta_u, beta_a
_Tensor = tuple[str, Layout]
Routing = Callable[[Array, Array], tuple[Array, Array]]
_NO_EPSILON = 1e-30  # as good as none in FP32, and the operator's must be above zero
_NO_VARIANCES = "no variances of the votes, or nothing that is computed from them"
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
        number = {name: k for k, name in enumerate(ends)}
        signs = tuple(
            (sign, number[node.input[0]])
            for node in graph.nodes
            if (sign := _sign(node)) is not None and node.input[0] in number
        )
        if not signs:
            continue  # no logistic function
        asked = ("EM", signs, last.axis, graph.sizes[last.name], len(softmaxes))
        answer = partial(_fit, graph, votes, cut, softmaxes, ends)
        try:
            match, pose, result = fit_once(graph, [votes, cut], ends, asked, answer)
            return replace(
                match, votes=votes, activations=cut, pose=ends[pose], result=ends[result]
            )
        except NoMatch as error:
            reason = str(error) if "EM" in str(error) else reason
    raise NoMatch(reason)


def _fit(
    graph: Values, votes: str, boundary: str, softmaxes: list[Softmax], ends: list[str]
) -> tuple[EMMatch, int, int]:
    """The match, and the positions of its poses and activations among the ends."""
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
                own = children.read(a).reshape(n, i)[some]
                acting = np.ones_like(own) if normalized else own
                mean = m_step(u, np.full((1, j, 1), 1 / j) * acting[:, None], 1e-12)[1]
                if all(relative_difference(mean, value) >= 1e-4 for _, _, value in of_pose):
                    continue
                base = _Base(graph, votes, boundary, roles, children, of_pose, numbers, given)
                try:
                    match = base.fitted(u, own, normalized, len(softmaxes) + 1)
                    return match, ends.index(match.pose), ends.index(match.result)
                except NoMatch as error:
                    reason = str(error)
    raise NoMatch(reason)


@dataclass(frozen=True)
class _Pass:
    """A pass that was fitted, with the kind as far as it is known then.

    ``error`` is that of the argument ``logit [n, j]``; ``logs`` are half the logarithms of the variances.
    """

    kind: EM
    error: float
    mean: Array
    off: Array
    variance: Array
    logs: Array
    logit: Array


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

    def fitted(self, u: Array, a: Array, normalized: bool, count: int) -> EMMatch:
        """The kind of ``count`` passes over votes ``[n, j, i, p]`` and activations ``[n, i]`` of some
        positions.

        Raises:
            NoMatch: no kind agrees.
        """
        reason = NoMatch("no pass")
        for ones_first in (False, True):
            try:
                kind, mean, activation = self._passes(u, a, normalized, count, ones_first)
            except NoMatch as error:
                # The reason found with the paper's initialization is more informative.
                reason = reason if ones_first else error
                continue
            pose, result = self._results(mean, activation)
            return self._accepted(kind, pose, result)
        raise reason

    def _passes(
        self, u: Array, a: Array, normalized: bool, count: int, ones_first: bool
    ) -> tuple[EM, Array, Array]:
        """Epsilons, temperatures and betas of every pass, and poses and activations of the last pass."""
        _, j, _, p = self.roles.sizes
        pairs = list(self._betas(j, p))
        if not pairs:
            raise NoMatch(_NO_VARIANCES)
        kind = EM((), *pairs[0], 0.0, normalized, ones_first)
        kind = self._with_epsilons_of_statistics(kind, u, a)
        last: _Pass | None = None
        for number in range(count):
            last = self._pass(kind, u, a, last, pairs, number)
            if not (number or self._away(last.variance) < 1e-3):
                raise NoMatch(_NO_VARIANCES)
            if last.error > 1e-3:
                raise NoMatch(
                    f"EM routing whose activations match no known formula at pass {number + 1} "
                    f"({last.error:.1g} off)"
                )
            kind, pairs = last.kind, [(last.kind.beta_u, last.kind.beta_a)]
        assert last is not None
        return kind, last.mean, logistic(last.logit)

    def _pass(
        self, kind: EM, u: Array, a: Array, before: _Pass | None, pairs: list[_Pair], number: int
    ) -> _Pass:
        """The pass after another one, with the epsilon that is much better than none, if there is one."""
        plain = self._pass_with(kind, u, a, before, pairs)
        if number >= 2:
            return plain  # both have been seen in an argument
        name = ("cost_epsilon", "activation_epsilon")[number]
        own: list[dict[str, Any]] = [{name: e} for e in self.epsilons]
        pairs = [(plain.kind.beta_u, plain.kind.beta_a)]
        tried = [self._pass_with(replace(kind, **e), u, a, before, pairs) for e in own]
        best = min(tried, key=lambda each: each.error, default=plain)
        return best if 10 * best.error < plain.error else plain

    def _pass_with(
        self, kind: EM, u: Array, a: Array, before: _Pass | None, pairs: list[_Pair]
    ) -> _Pass:
        r = kind.first(u.shape[1])
        if before is not None:
            r = responsibilities(
                before.logit, before.logs, before.off, before.variance, kind.activation_epsilon
            )
        acting = kind.acting(a)[:, None]
        mass, mean, off, variance = m_step(u, r * acting, kind.epsilon, kind.variance_epsilon)
        logs = 0.5 * np.log(variance).sum(-1)
        pose = u.shape[3]
        error, scale, pair = _nearest(self.arguments, pairs, pose, logs, mass + kind.cost_epsilon)
        if pair is None:
            raise NoMatch(_NO_VARIANCES)
        near = min(self.scalars, key=lambda s: abs(s - scale), default=scale)
        scale = near if abs(near - scale) < 1e-4 * abs(scale) else float(np.float32(scale))
        temperatures = (*kind.temperatures, scale)
        kind = replace(kind, temperatures=temperatures, beta_u=pair[0], beta_a=pair[1])
        return _Pass(kind, error, mean, off, variance, logs, kind.logit(-1, logs, mass, pose))

    def _with_epsilons_of_statistics(self, kind: EM, u: Array, a: Array) -> EM:
        """The kind with those of the means and of the variances, each nearest to a tensor of the region."""

        def first(epsilon: float, own: float = 0.0) -> tuple[Array, Array, Array, Array]:
            acting = replace(kind, epsilon=epsilon).acting(a)
            return m_step(u, kind.first(u.shape[1]) * acting[:, None], epsilon, own)

        every = (*self.epsilons, _NO_EPSILON)
        epsilon = min(every, key=lambda e: self._away(first(e)[1]))
        own = min((epsilon, *every), key=lambda e: self._away(first(epsilon, e)[3]))
        return replace(kind, epsilon=epsilon, variance_epsilon=0.0 if own == epsilon else own)

    def _away(self, values: Array) -> float:
        """How far the nearest of the region's tensors is from means or variances ``[n, j, p]``."""
        return min(
            (relative_difference(values, value) for _, _, value in self.of_pose), default=math.inf
        )

    def _results(self, mean: Array, activation: Array) -> tuple[_Tensor, _Tensor]:
        """The tensors that hold the poses and the activations; the first if several are equal."""
        n, j = self.roles.sizes[:2]
        parts, batch = result_roles(self.roles)
        some = sampled_positions(self.roles.sizes)
        poses = (
            (e, lay) for e, lay, value in self.of_pose if relative_difference(mean, value) < 1e-4
        )
        acts = (
            (e, lay)
            for e in self.constants
            if self.graph.sizes[e] == n * j
            for lay in layouts(self.graph.shapes[e], parts[:2], batch)
            if relative_difference(activation, lay.read(self.constants[e])[some]) < 1e-3
        )
        pose, result = next(poses, None), next(acts, None)
        if pose is None or result is None:
            raise NoMatch("EM routing whose last pass computes no poses or no activations")
        return pose, result

    def _accepted(self, kind: EM, pose: _Tensor, result: _Tensor) -> EMMatch:
        """The kind with the epsilons that agree best, if it agrees well enough."""
        function = self.graph.function([self.votes, self.boundary], [pose[0], result[0]])

        def original(x: Array, a: Array) -> tuple[Array, Array]:
            found = function(self.roles.write(x), self.children.write(a[:, None, :, None]))
            return pose[1].read(found[0]), result[1].read(found[1])

        verdict = check_em(original, kind, self.roles.sizes)
        if not verdict.accepted:
            # What FP32 measured may be noise.
            none: dict[str, Any] = dict.fromkeys(EM_EPSILONS, 0.0)
            plain = replace(kind, **none)
            kinds = [replace(plain, epsilon=e) for e in self.epsilons]
            kind = best_em(original, kinds, self.roles.sizes)
            verdict = check_em(original, kind, self.roles.sizes)
        if not verdict.accepted:
            raise NoMatch(
                f"EM routing{self._bounded()} would differ by {verdict.excess:.2g} times the tolerance "
                f"({verdict.case})"
            )
        return EMMatch(
            self.votes, self.boundary, pose[0], result[0], self.roles, self.children, pose[1], result[1],
            kind, verdict,
        )  # fmt: skip

    def _bounded(self) -> str:
        """Words on a node that bounds values of the poses' size, as clamped variances; empty if none does."""
        n, j, _, p = self.roles.sizes
        region = set(self.graph.determined(self.votes, self.boundary))
        for node in self.graph.nodes:
            name = node.output[0] if node.output else ""
            bounds = node.op_type in ("Clip", "Max") and name in region
            if bounds and self.graph.sizes[name] == n * j * p:
                return f" with bounded variances, which no operator has ({node.op_type} '{name}'),"
        return ""

    @property
    def scalars(self) -> list[float]:
        """The scalars that the region reads."""
        return sorted({float(v.reshape(-1)[0]) for v in self.numbers.values() if v.size == 1})

    @property
    def epsilons(self) -> list[float]:
        """The constants that may be the epsilon."""
        return [s for s in self.scalars if 0 < s <= 1e-2] or [_NO_EPSILON]

    @cached_property
    def arguments(self) -> list[Array]:
        """Arguments of logistic functions, however they are written."""
        return list(self._arguments())

    def _arguments(self) -> Iterator[Array]:
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
            best = min(
                best, (relative_difference(scale * plain, z), scale, pair), key=lambda b: b[0]
            )
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
