"""Fit dynamic routing, which `emit_dynamic` writes as DynamicRouting or VoteRouting.

The procedure is fitted in stages:

1. Tiny votes: agreements nearly vanish, so one weighted sum and one squash must fit. This determines the
axes, the softmax's axis, the prior and the bias. 2. Large votes: iterations, whether logits accumulate, what
agreements are computed with, and their scale. 3. Votes of 1e-2 to 1e-8: form and epsilon of the squash, by
relative differences.

Priors, biases, scales and epsilons are taken from the constants that the region reads. If nothing fits,
parents are tried in groups: elements of a pose with logits of their own, or positions that a softmax or a
squash runs over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.candidates import Softmax
from capsedge.graph.fusion.equal_pieces import fit_once
from capsedge.graph.fusion.equivalence import (
    LOOSE,
    STRICT,
    Equivalence,
    check_equivalence,
    computes_in_fp64,
    sampled_positions,
)
from capsedge.graph.fusion.formulas import Dynamic, relative_difference
from capsedge.graph.fusion.layouts import (
    Layout,
    grouped_layouts,
    layouts,
    result_roles,
    shared_layouts,
    vote_layouts,
)
from capsedge.graph.fusion.per_image import (
    MORE,
    OtherInput,
    PerImage,
    Region,
    find_other_inputs,
    fit_per_image,
)
from capsedge.graph.fusion.values import Array, Function, Values

_ENDS = 24  # maximum number of tensors after the last softmax tried as the result
_EPSILON = 1e-2  # larger numbers are no epsilon of a squash
_KEPT = 12  # maximum number of hypotheses kept for the second stage
_TINY, _LARGE = 3e-3, 2.0
_SCALES = (1.0, 0.1, 0.01)  # scales of tiny votes; with large parents, even small votes agree
_NEAR = 5e-2  # loose, since agreements with normalized sums vanish no faster than tiny votes


@dataclass(frozen=True)
class DynamicMatch:
    """Dynamic routing in a graph.

    Attributes:
        votes, result: names of tensors in the graph.
        roles: layout of the votes, ``[n, j, i, p]``.
        layout: layout of the result, ``[n, j, p]``.
        kind: what the routing computes.
        equivalence: how the match compares with the original nodes.
        region: the original nodes.
        per_image: tensors that change the couplings of individual images.
    """

    votes: str
    result: str
    roles: Layout
    layout: Layout
    kind: Dynamic
    equivalence: Equivalence
    region: Region
    per_image: tuple[PerImage, ...] = ()


Roles = Callable[[Values, str, Softmax], Iterator[tuple[Layout, Dynamic]]]


@dataclass(frozen=True)
class _Guess:
    error: float
    late: int
    kind: Dynamic
    roles: Layout
    end: str
    layout: Layout


def fit_dynamic(graph: Values, votes: str, softmaxes: list[Softmax]) -> DynamicMatch:
    """Fit the dynamic routing that the softmaxes compute over the votes.

    Raises:
        NoMatch: no kind agrees.
    """
    first: NoMatch | None = None
    for others in find_other_inputs(graph, votes, softmaxes[-1].name):
        try:
            search = _AfterSoftmax(graph, votes, softmaxes, others)
        except NoMatch as reason:
            first = first or reason
            continue
        for roles in (_single, _shared, _grouped):
            try:
                return search.fitted(roles)
            except NoMatch as reason:
                first = first or reason
    assert first is not None
    raise first


class _AfterSoftmax:
    """The tensors after the last softmax, evaluated on tiny and on large votes."""

    def __init__(
        self,
        graph: Values,
        votes: str,
        softmaxes: list[Softmax],
        others: Sequence[Sequence[OtherInput]],
    ) -> None:
        self.graph, self.votes, self.softmaxes, self.others = graph, votes, softmaxes, others
        last = softmaxes[-1].name
        self.region = Region(graph, votes, [alternatives[0] for alternatives in others])
        inside = self.region.determined()
        if last not in inside:
            raise NoMatch(MORE)
        self.ends = _ends(graph, inside, last, graph.sizes[votes])
        self.numbers = self.region.numbers(self.ends)
        rng = np.random.default_rng(1)
        shape = graph.shapes[votes]
        self.tiny = _TINY * rng.standard_normal(shape)
        self.large = _LARGE * rng.standard_normal(shape)
        self.at_tiny: dict[float, dict[str, Array]] = {}

    @cached_property
    def function(self) -> Function:
        """The ends as a function of the votes."""
        return self.region.function(self.ends)

    def inputs_at(self, x: Array) -> dict[str, Array]:
        """The values of the ends."""
        return dict(zip(self.ends, self.function(x), strict=True))

    @cached_property
    def at_large(self) -> dict[str, Array]:
        """The values of the ends on large votes."""
        return self.inputs_at(self.large)

    def fitted(self, roles: Roles) -> DynamicMatch:
        """The match, with these layouts of the votes.

        Raises:
            NoMatch: no kind agrees.
        """
        graph, votes, last = self.graph, self.votes, self.softmaxes[-1]
        asked = (roles.__name__, len(self.softmaxes), last.axis, graph.sizes[last.name])
        k, guess, verdict, rtol = fit_once(
            graph,
            self.region.cut,
            self.ends,
            (*asked, graph.sizes[votes], tuple(each.neutral for each in self.region.others)),
            lambda: self._checked(roles),
        )
        end = self.ends[k]
        region, per_image = fit_per_image(
            graph, votes, self.others, end, guess.layout, guess.roles, guess.kind, rtol
        )
        return DynamicMatch(
            votes, end, guess.roles, guess.layout, guess.kind, verdict, region, per_image
        )

    def _checked(self, roles: Roles) -> tuple[int, _Guess, Equivalence, float]:
        """The number of the end that is the result, what computes it, how it compares, and the tolerance."""
        guess, shape = self._guess(roles), self.graph.shapes[self.votes]
        single = self.region.function([guess.end])
        guess = replace(guess, kind=_epsilon(single, guess, self.numbers, shape))
        wide = computes_in_fp64(single, self.large)
        rtol = STRICT if wide else LOOSE
        verdict = check_equivalence(
            lambda x: guess.layout.read(single(x)[0]),
            lambda x: guess.kind(guess.roles.read(x)),
            shape,
            rtol,
            floor=1e-25 if wide else 1e-6,
            roles=guess.roles,
        )
        if not verdict.accepted:
            raise NoMatch(
                f"dynamic routing would differ by {verdict.excess:.2g} times the tolerance ({verdict.case})"
            )
        return self.ends.index(guess.end), guess, verdict, rtol

    def _guess(self, roles: Roles) -> _Guess:
        graph, last = self.graph, self.softmaxes[-1]
        for scale in _SCALES:
            x = scale * self.tiny
            if scale not in self.at_tiny:
                self.at_tiny[scale] = self.inputs_at(x)
            inputs = self.at_tiny[scale]
            first = _first_stage(graph, self.votes, last, self.ends, self.numbers, inputs, x, roles)
            if first:
                break
        else:
            raise NoMatch("no squash of a weighted sum of each parent's votes follows the softmax")
        return self._second_stage(first)

    def _second_stage(self, first: list[_Guess]) -> _Guess:
        """The guess that agrees on large votes, with its number of iterations and what else shows there."""
        scalars = {s for s in _scalars(self.numbers) if 1e-3 < abs(s) < 1e3}
        scalars |= {1 / s for s in scalars}  # temperatures divide the logits before the softmax
        count, best = len(self.softmaxes), list[_Guess]()
        for mean, guess in itertools.product((False, True), first):
            if mean and not self._mixes(guess):
                continue
            u, wanted = guess.roles.read(self.large), guess.layout.read(self.at_large[guess.end])
            # An average covers all positions.
            some = slice(None) if mean else sampled_positions(u.shape)
            u, wanted = u[some], wanted[some]
            for kind in _kinds(
                guess.kind, count, mean, sorted({1.0, u.shape[3] ** -0.5, *scalars})
            ):
                best.append(replace(guess, kind=kind, error=relative_difference(kind(u), wanted)))
            if min(g.error for g in best) < 1e-6:
                break
        # Among tensors that agree equally well, take the first: whatever is computed from it stays unchanged.
        best.sort(key=lambda g: (round(np.log10(g.error + 1e-9)), g.late))
        if best[0].error > 1e-4:
            if self.graph.sizes[self.softmaxes[-1].name] == self.graph.sizes[self.votes]:
                raise NoMatch(
                    "there is one logit for each element of a pose: no operator supports this"
                )
            raise NoMatch(f"no number of iterations fits (the nearest is {best[0].error:.1g} off)")
        return best[0]

    def _mixes(self, guess: _Guess) -> bool:
        """Whether the result at the first position changes with the votes of all others."""
        votes = guess.roles.read(self.large).copy()
        votes[1:] = votes[1:][::-1] + 0.5
        moved = self.inputs_at(guess.roles.write(votes))[guess.end]
        one, other = (guess.layout.read(x)[:1] for x in (self.at_large[guess.end], moved))
        return relative_difference(other, one) > 1e-9


def _ends(graph: Values, region: list[str], last: str, most: int) -> list[str]:
    """The tensors after the last softmax that depend only on the votes and are smaller than the votes."""
    seen, found = {last}, []
    for name in region:
        if any(s in seen for s in graph.sources[name]):
            seen.add(name)
            if name in graph.floats and graph.sizes[name] < most:
                found.append(name)
    if not found:
        raise NoMatch(
            "what follows the softmax is as large as the votes, or depends on more than the votes"
        )
    return found[:_ENDS]


def _first_stage(
    graph: Values,
    votes: str,
    last: Softmax,
    ends: list[str],
    numbers: Mapping[str, Array],
    constants: Mapping[str, Array],
    tiny: Array,
    roles_of: Roles,
) -> list[_Guess]:
    found: list[_Guess] = []
    for roles, kind in roles_of(graph, votes, last):
        n, j, _, p = roles.sizes
        ranked = [
            (end, layout)
            for end in ends
            if graph.sizes[end] == n * j * p
            for layout in layouts(graph.shapes[end], *result_roles(roles))
        ]
        if ranked:
            found += _sums(graph, roles, roles.read(tiny), ranked, numbers, constants, kind)
    return sorted((g for g in found if g.error < _NEAR), key=lambda g: (g.error, g.late))[:_KEPT]


def _single(graph: Values, votes: str, last: Softmax) -> Iterator[tuple[Layout, Dynamic]]:
    """Layouts of the votes with ungrouped parents, each with what it implies about the routing."""
    size, shape = graph.sizes[votes], graph.shapes[votes]
    for pose, leaky in _poses(size, graph.sizes[last.name], last.axis, graph.batch, shape):
        parents = {last.axis - 1} if leaky else set(shape)
        axis = last.axis - leaky
        for roles in vote_layouts(shape, graph.batch, pose, parents):
            _, j, i, _ = roles.sizes
            overs = {"j": j} if leaky else {"j": j, "i": i, "ji": i * j}
            for over, count in overs.items():
                if count == axis:
                    yield roles, Dynamic(over=over, leaky=leaky)


def _shared(graph: Values, votes: str, last: Softmax) -> Iterator[tuple[Layout, Dynamic]]:
    """Like ``_single``, with votes that all parents share (MIND)."""
    found = shared_layouts(graph.shapes[votes], graph.batch, graph.sizes[last.name], last.axis)
    yield from ((roles, Dynamic(over=over)) for roles, over in found)


def _grouped(graph: Values, votes: str, last: Softmax) -> Iterator[tuple[Layout, Dynamic]]:
    """Like ``_single``, with parents in groups."""
    pose, rest = divmod(graph.sizes[votes], graph.sizes[last.name])
    if rest:
        return
    for roles in grouped_layouts(graph.shapes[votes], graph.batch, last.axis, pose):
        _, j, i, _ = roles.sizes
        group = j // roles.part(1)[0]
        overs = {"groups": j // group, "j": j, "i": i, "ji": i * j}
        for over, count in overs.items():
            if count == last.axis:
                yield roles, Dynamic(over=over, group=group)


def _poses(
    votes: int, couplings: int, axis: int, batch: int, shape: tuple[int, ...]
) -> Iterator[tuple[int, bool]]:
    """Possible numbers of elements per vote, and whether each child has one extra coupling."""
    leaky = couplings // axis * (axis - 1)
    for each, more in ((couplings, False), (leaky, True)):
        if each and votes % each == 0 and votes > each:
            yield votes // each, more
            if votes // each % batch == 0 and votes // each > batch > 1:  # shared by all images
                yield votes // each // batch, more
    if votes == couplings:  # logits repeated for each element
        yield from ((d, False) for d in sorted(set(shape)) if d > 1)


def _sums(
    graph: Values,
    roles: Layout,
    u: Array,
    ranked: list[tuple[str, Layout]],
    numbers: Mapping[str, Array],
    constants: Mapping[str, Array],
    kind: Dynamic,
) -> Iterator[_Guess]:
    n, j, i, p = roles.sizes
    some = sampled_positions(roles.sizes)
    u = u[some]
    wanted = _distinct((end, layout, layout.read(constants[end])[some]) for end, layout in ranked)
    axes = [("B", "p"), ("E", "p"), ("G", "p"), ("H", "p"), ("B", "element"), ("B", "j")]
    if kind.group > 1:
        axes = [*axes[:4], ("B", "group"), ("E", "group"), ("H", "group")]
    shapes = [(form, axis, 0.0) for form, axis in axes]
    # An epsilon that FP16 can hold outweighs tiny votes; one of FP32 is fitted in the last stage.
    shapes += [(form, "p", e) for e in _scalars(numbers) if 1e-5 < e <= _EPSILON for form in "BAF"]
    for prior, bias in itertools.product(
        _priors(numbers, n, j, i, kind.group), _biases(numbers, j, p, kind.group)
    ):
        for form, axis, epsilon in shapes:
            one = replace(kind, form=form, axis=axis, epsilon=epsilon, prior=prior, bias=bias)
            v = one(u)
            for end, layout, value in wanted:
                error = relative_difference(v, value)
                yield _Guess(error, graph.order[end], one, roles, end, layout)


def _distinct(ends: Iterable[tuple[str, Layout, Array]]) -> list[tuple[str, Layout, Array]]:
    """The ends without those that only show an earlier one's values in another shape."""
    found: dict[bytes, tuple[str, Layout, Array]] = {}
    for each in ends:
        found.setdefault(each[2].tobytes(), each)
    return list(found.values())


def _priors(numbers: Mapping[str, Array], n: int, j: int, i: int, group: int) -> Iterator[Array]:
    """Start logits ``[j, i]`` that the constants may hold, either directly or as couplings."""
    yield np.zeros(())
    for value in numbers.values():
        count = value.size // (i * j)
        if value.size % (i * j) or count not in (1, n) or _is_one_number(value):
            continue
        flat = value.reshape(-1)[: i * j].astype(np.float64)
        orders = [flat.reshape(j, i), flat.reshape(i, j).T]
        if group > 1:  # groups, children, members
            orders.append(flat.reshape(-1, i, group).transpose(0, 2, 1).reshape(j, i))
        for stored in orders:
            yield stored
            if stored.min() > 0:
                yield np.log(stored)


def _scalars(numbers: Mapping[str, Array]) -> list[float]:
    """The numbers among the constants, each once, the smallest first."""
    return sorted(
        {float(v.reshape(-1)[0]) for v in numbers.values() if v.size and _is_one_number(v)}
    )


def _is_one_number(value: Array) -> bool:
    """Whether all elements are equal, if there are any; they may be infinite."""
    return bool((value == value.reshape(-1)[:1]).all())


def _biases(numbers: Mapping[str, Array], j: int, p: int, group: int) -> Iterator[Array]:
    """Biases ``[j, p]`` that the constants may hold, including one shared by all members of a group."""
    yield np.zeros(())
    for value in numbers.values():
        if value.size == j * p and value.any():
            orders = [value.reshape(j, p), value.reshape(p, j).T]
            for stored in orders[: 1 + (orders[0] != orders[1]).any()]:
                yield stored.astype(np.float64)
        elif group > 1 and value.size == j // group * p and value.any():
            for stored in (value.reshape(-1, p), value.reshape(p, -1).T):
                yield np.repeat(stored.astype(np.float64), group, 0)


def _kinds(kind: Dynamic, count: int, mean: bool, scales: list[float]) -> Iterator[Dynamic]:
    """Kinds with ``count`` softmaxes, with and without an extra pass whose logits are all equal."""
    for t, again, unit, scale in itertools.product(
        (count + 1, count), (False, True), (False, True), scales
    ):
        if t == 1 and (again or mean or unit or scale != 1):
            continue
        yield replace(
            kind, iterations=t, replace=again, batch_mean=mean, normalize=unit, scale=scale
        )


def _epsilon(
    function: object, guess: _Guess, numbers: Mapping[str, Array], shape: tuple[int, ...]
) -> Dynamic:
    assert callable(function)
    if guess.kind.form == "G":  # it divides by nothing that may be zero
        return guess.kind
    epsilons = [0.0, *(s for s in _scalars(numbers) if 0 < s <= _EPSILON)]
    # If a bias hides the epsilon, prefer one from the file over none.
    forms = [*((f, s) for f in "BAF" for s in epsilons if s), ("B", 0.0)]
    if guess.kind.form != "B":
        forms = [(guess.kind.form, s) for s in reversed(epsilons)]
    rng = np.random.default_rng(3)
    probes = []
    some = sampled_positions(guess.roles.sizes)
    for size in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8):
        x = size * rng.standard_normal(shape)
        probes.append((guess.roles.read(x)[some], guess.layout.read(function(x)[0])[some]))
    kinds = [replace(guess.kind, form=f, epsilon=e) for f, e in forms]
    errors = [max(relative_difference(k(u), w) for u, w in probes) for k in kinds]
    least = min(errors)
    return next(k for k, e in zip(kinds, errors, strict=True) if e <= 2 * least + 1e-12)
