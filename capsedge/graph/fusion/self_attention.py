"""Fit and write SelfAttentionRouting, the agreement with the sum of all votes (Efficient-CapsNet).

The softmax itself determines the axes and the scale. The bias added to it does not depend on the votes, so
two inputs determine it. The weighted sum is then known, and its squash determines the form and epsilon.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.candidates import Softmax
from capsedge.graph.fusion.edit import Edit
from capsedge.graph.fusion.emit_dynamic import read_children
from capsedge.graph.fusion.equivalence import (
    LOOSE,
    STRICT,
    Equivalence,
    check_equivalence,
    computes_in_fp64,
    sampled_positions,
)
from capsedge.graph.fusion.formulas import SelfAttention, relative_difference
from capsedge.graph.fusion.layouts import Layout, layouts, result_roles, vote_layouts
from capsedge.graph.fusion.values import Array, Function, Values
from capsedge.graph.fusion.votes import VoteSource

# --- Fitting ---

_ENDS = 24  # maximum number of tensors after the softmax tried as the result
_NEAR = 1e-6  # tolerance for couplings and sums
# FP64's rounding of 1 - exp(-n): more than a whole pose where softmax leaves a parent almost nothing.
_CANCELLED = 1e-15


@dataclass(frozen=True)
class SelfAttentionMatch:
    """The pass in a graph.

    Attributes:
        votes, result: names of tensors in the graph.
        roles: layout of the votes, ``[n, j, i, p]``.
        layout: layout of the result, ``[n, j, p]``.
        kind: what the pass computes.
        equivalence: how the match compares with the original nodes.
    """

    votes: str
    result: str
    roles: Layout
    layout: Layout
    kind: SelfAttention
    equivalence: Equivalence


def fit_self_attention(graph: Values, votes: str, softmax: Softmax) -> SelfAttentionMatch:
    """The pass that a softmax belongs to.

    Raises:
        NoMatch: no kind agrees.
    """
    size, couplings = graph.sizes[votes], graph.sizes[softmax.name]
    region = graph.determined(votes)
    if softmax.name not in region:
        raise NoMatch("its logits depend on more than the votes")
    if size % couplings or size == couplings:
        raise NoMatch("there is one coupling for each vote")
    after = graph.order[softmax.name]
    ends = [
        t for t in region if graph.order[t] > after and t in graph.floats and graph.sizes[t] < size
    ][:_ENDS]
    search = _Search(graph, votes, softmax, ends)
    shape = graph.shapes[votes]
    for roles in vote_layouts(shape, graph.batch, size // couplings, set(shape)):
        for kind in search.softmaxes(roles):
            if kind.over == "i":
                raise NoMatch(
                    "self-attention routing with a softmax over the children: no operator supports this"
                )
            return search.accepted(search.squashed(roles, search.with_bias(roles, kind)))
    raise NoMatch("no agreement of the votes with their sum")


class _Search:
    """The tensors after the softmax, evaluated on two inputs."""

    def __init__(self, graph: Values, votes: str, softmax: Softmax, ends: list[str]) -> None:
        self.graph, self.votes, self.softmax, self.ends = graph, votes, softmax, ends
        rng = np.random.default_rng(1)
        self.x = [0.3 * rng.standard_normal(graph.shapes[votes]) for _ in range(2)]
        function = graph.function([votes], [softmax.name, *ends])
        self.constants: list[Mapping[str, Array]] = [
            dict(zip([softmax.name, *ends], function(x), strict=True)) for x in self.x
        ]
        numbers = graph.numbers([votes], [softmax.name, *ends])
        self.scalars = sorted({float(v.reshape(-1)[0]) for v in numbers.values() if v.size == 1})

    def softmaxes(self, roles: Layout) -> Iterator[SelfAttention]:
        """Kinds whose couplings agree with the softmax."""
        p = roles.sizes[3]
        scales = {1.0, p**-0.5, *self.scalars, *(1 / s for s in self.scalars if s)}
        wanted = list(self._coupled(roles, self.softmax.name))
        u = roles.read(self.x[0])
        sizes = dict(zip("ji", roles.sizes[1:3], strict=True))
        for scale, over in itertools.product(sorted(scales), "ji"):
            if not 1e-3 < abs(scale) < 1e3 or sizes[over] != self.softmax.axis:
                continue
            kind = SelfAttention(scale, over=over)
            c = kind.couplings(u)
            if any(
                relative_difference(c, lay.read(self.constants[0][self.softmax.name])) < _NEAR
                for lay in wanted
            ):
                yield kind

    def with_bias(self, roles: Layout, kind: SelfAttention) -> SelfAttention:
        """The kind with the bias of its couplings, if its weighted sum is among the end tensors."""
        cases = [
            (roles.read(x), constants) for x, constants in zip(self.x, self.constants, strict=True)
        ]
        couplings = [kind.couplings(u) for u, _ in cases]
        for end in self.ends:
            for layout in self._coupled(roles, end):
                added = [
                    layout.read(g[end]) - c for c, (_, g) in zip(couplings, cases, strict=True)
                ]
                bias = added[0].mean(0)
                if (
                    all(np.abs(a - bias).max() < _NEAR for a in added)
                    and np.abs(bias).max() > 1e-12
                ):
                    return replace(kind, bias=bias.astype(np.float32).astype(np.float64))
        return kind

    def squashed(self, roles: Layout, kind: SelfAttention) -> SelfAttentionMatch:
        """The kind with its squash, not yet checked."""
        parts, batch = result_roles(roles)
        u = roles.read(self.x[0])
        n, j, _, p = roles.sizes
        epsilons = [0.0, *(s for s in self.scalars if 0 < s <= 1e-2)]
        some = sampled_positions(roles.sizes)
        positions = [
            (end, layout)
            for end in self.ends
            if self.graph.sizes[end] == n * j * p
            for layout in layouts(self.graph.shapes[end], parts, batch)
        ]
        guesses = [
            (
                relative_difference(
                    replace(kind, form=f)(u[some]), lay.read(self.constants[0][end])[some]
                ),
                end,
                lay,
                f,
            )
            for f in "EBD"
            for end, lay in positions
        ]
        error, end, layout, form = min(guesses, key=lambda g: g[0], default=(1.0, "", roles, "E"))
        if error > 1e-3:
            raise NoMatch(
                "self-attention routing whose weighted sum is not squashed, or is another tensor"
            )
        if form != "E":
            raise NoMatch("self-attention routing with another squash: no operator supports this")
        function = self.graph.function([self.votes], [end])
        kinds = [replace(kind, epsilon=e) for e in epsilons]
        verdicts = [(self._verdict(function, roles, layout, k), k) for k in kinds]
        # Among those that agree equally well, prefer an epsilon from the file over none.
        verdict, best = min(verdicts, key=lambda v: (max(v[0].excess, 1e-3), -v[1].epsilon))
        return SelfAttentionMatch(self.votes, end, roles, layout, best, verdict)

    @staticmethod
    def accepted(match: SelfAttentionMatch) -> SelfAttentionMatch:
        """The match itself, if it agrees well enough."""
        if not match.equivalence.accepted:
            raise NoMatch(
                f"self-attention routing would differ by {match.equivalence.excess:.2g} times the "
                f"tolerance ({match.equivalence.case})"
            )
        return match

    def _coupled(self, roles: Layout, name: str) -> Iterator[Layout]:
        """Ways in which a tensor may hold couplings ``[n, j, i]``."""
        n, j, i, _ = roles.sizes
        if self.graph.sizes[name] == n * j * i:
            batch = None if roles.batch is None else 0
            yield from layouts(self.graph.shapes[name], [roles.part(k) for k in range(3)], batch)

    def _verdict(
        self, function: Function, roles: Layout, layout: Layout, kind: SelfAttention
    ) -> Equivalence:
        wide = computes_in_fp64(function, self.x[0])
        return check_equivalence(
            lambda x: layout.read(function(x)[0]),
            lambda x: kind(roles.read(x)),
            self.graph.shapes[self.votes],
            STRICT if wide else LOOSE,
            floor=_CANCELLED if wide else 1e-6,
            roles=roles,
            ranked=True,
        )


# --- Writing ---

STAND_IN = 1e-20  # in place of no epsilon, as in the authors' code


def emit_self_attention(
    graph: Values, match: SelfAttentionMatch, vote_source: VoteSource, tag: str
) -> tuple[Edit, tuple[str, ...]]:
    """The nodes and notes on them.

    Raises:
        NoMatch: no operator computes the same.
    """
    kind = match.kind
    n, j, i, p = match.roles.sizes
    if vote_source.constant is not None:
        raise NoMatch("the votes have a constant part (W·u + c): no operator supports this")
    if not math.isclose(kind.scale, p**-0.5, rel_tol=1e-6):
        raise NoMatch(
            f"self-attention routing whose agreements are scaled by {kind.scale:g}: no operator "
            "supports this"
        )
    edit = Edit(graph, tag)
    weight = vote_source.weight.transpose(1, 0, 2, 3)  # [I, J, Pout, Pin]
    bias = np.broadcast_to(kind.bias, (j, i)).T
    u, at = read_children(edit, vote_source, (n, i))
    if at is not None:
        weight, bias = weight[at], bias[at]
    inputs = [u, edit.constant(weight, "weight"), edit.constant(bias, "bias")]
    epsilon = kind.epsilon or STAND_IN
    (v,) = edit.capsule("SelfAttentionRouting", inputs, epsilon=float(epsilon))
    edit.describe(v, (n, j, p))
    edit.write(v, match.layout, match.result)
    note = f"no epsilon in the squash: {STAND_IN:g} stands for it"
    return edit, () if kind.epsilon else (note,)
