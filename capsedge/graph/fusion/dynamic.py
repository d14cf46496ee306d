"""DynamicRouting/VoteRouting: fit and write.

1. Tiny votes: agreements nearly vanish, so that one weighted sum and one squash must fit. That tells the
   axes, the softmax's axis, prior and bias.
2. Large votes: iterations, whether logits accumulate, what agreements are with, and their scale.
3. Votes of 1e-2 to 1e-8: form and epsilon of the squash, by relative differences.

Priors, biases, scales and epsilons are the constants that the region reads. Where nothing fits, parents are
tried in groups: elements of a pose with logits of their own, positions that a softmax or a squash runs over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.candidates import Softmax
from capsedge.graph.fusion.edit import Edit
from capsedge.graph.fusion.equivalence import (
    LOOSE,
    STRICT,
    Equivalence,
    check_equivalence,
    is_wide,
    sampled_positions,
)
from capsedge.graph.fusion.formulas import Dynamic, difference
from capsedge.graph.fusion.layouts import Layout, grouped_layouts, layouts, vote_layouts
from capsedge.graph.fusion.values import Array, Values
from capsedge.graph.fusion.votes import VoteSource, order_of

# Dynamic routing over given votes, fitted in stages: what is summed, how it is squashed, how
# often


_ENDS = 24  # tensors after the last softmax that may be the result
_KEPT = 12  # hypotheses that go on to the second stage
_TINY, _LARGE = 3e-3, 2.0
_SCALES = (1.0, 0.1, 0.01)  # of tiny votes: large parents agree even with small ones
_NEAR = 5e-2  # agreements with normalized sums do not vanish faster than tiny votes


@dataclass(frozen=True)
class DynamicMatch:
    """Dynamic routing in a graph.

    Attributes:
        votes, result: tensors of the graph.
        roles: of the votes, ``[n, j, i, p]``.
        layout: of the result, ``[n, j, p]``.
        kind: what it computes.
        equivalence: of the acceptance.
    """

    votes: str
    result: str
    roles: Layout
    layout: Layout
    kind: Dynamic
    equivalence: Equivalence


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
    """What dynamic routing the softmaxes make over the votes.

    Raises:
        NoMatch: none that agrees.
    """
    try:
        return _fit(graph, votes, softmaxes, _single)
    except NoMatch as reason:
        try:
            return _fit(graph, votes, softmaxes, _grouped)
        except NoMatch:
            raise reason from None


def _fit(graph: Values, votes: str, softmaxes: list[Softmax], roles: Roles) -> DynamicMatch:
    last = softmaxes[-1]
    region = graph.determined(votes)
    if last.name not in region:
        raise NoMatch("its logits depend on more than the votes")
    shape = graph.shapes[votes]
    ends = _ends(graph, region, last.name, graph.sizes[votes])
    numbers = graph.numbers([votes], ends)
    function = graph.function([votes], ends)
    rng = np.random.default_rng(1)
    tiny, large = _TINY * rng.standard_normal(shape), _LARGE * rng.standard_normal(shape)
    for scale in _SCALES:
        x = scale * tiny
        given = dict(zip(ends, function(x), strict=True))
        first = _first_stage(graph, votes, last, ends, numbers, given, x, roles)
        if first:
            break
    else:
        raise NoMatch("no squash of a weighted sum of the votes follows the softmax")
    at_large = dict(zip(ends, function(large), strict=True))
    repeated = graph.sizes[last.name] == graph.sizes[votes]
    guess = _second_stage(first, numbers, at_large, large, len(softmaxes), repeated)
    single = graph.function([votes], [guess.end])
    guess = replace(guess, kind=_epsilon(single, guess, numbers, shape))
    wide = is_wide(single, large)
    verdict = check_equivalence(
        lambda x: guess.layout.read(single(x)[0]),
        lambda x: guess.kind(guess.roles.read(x)),
        shape,
        STRICT if wide else LOOSE,
        floor=1e-25 if wide else 1e-6,
        roles=guess.roles,
    )
    if not verdict.accepted:
        raise NoMatch(
            f"dynamic routing fits but for {verdict.excess:.2g} times the tolerance ({verdict.case})"
        )
    return DynamicMatch(votes, guess.end, guess.roles, guess.layout, guess.kind, verdict)


def _ends(graph: Values, region: list[str], last: str, most: int) -> list[str]:
    """The tensors after the last softmax that the votes alone determine, and that are smaller than they."""
    seen, found = {last}, []
    for name in region:
        if any(s in seen for s in graph.sources[name]):
            seen.add(name)
            if name in graph.floats and graph.sizes[name] < most:
                found.append(name)
    if not found:
        raise NoMatch(
            "what follows the softmax is as large as the votes, or depends on more than they: no weighted "
            "sum of votes"
        )
    return found[:_ENDS]


def result_roles(roles: Layout) -> tuple[list[tuple[int, ...]], int | None]:
    """The roles ``[n, j, p]`` of a result of votes, and which of them counts images."""
    parts = [roles.part(0), roles.part(1), roles.part(3)]
    return parts, None if roles.batch is None else 0


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
    """Ways to see the votes, every parent for itself, and what the routing then is as far as that says."""
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


def _grouped(graph: Values, votes: str, last: Softmax) -> Iterator[tuple[Layout, Dynamic]]:
    """The same with parents in groups."""
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
    """Elements that a vote may have, and whether there is one coupling more for each child."""
    leaky = couplings // axis * (axis - 1)
    for each, more in ((couplings, False), (leaky, True)):
        if each and votes % each == 0 and votes > each:
            yield votes // each, more
            if votes // each % batch == 0 and votes // each > batch > 1:  # one for all images
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
    wanted = [(end, layout, layout.read(constants[end])[some]) for end, layout in ranked]
    shapes = [("B", "p"), ("E", "p"), ("H", "p"), ("B", "element"), ("B", "j")]
    if kind.group > 1:
        shapes = [*shapes[:3], ("B", "group"), ("E", "group"), ("H", "group")]
    for prior, bias in itertools.product(
        _priors(numbers, n, j, i, kind.group), _biases(numbers, j, p, kind.group)
    ):
        for form, axis in shapes:
            one = replace(kind, form=form, axis=axis, prior=prior, bias=bias)
            v = one(u)
            for end, layout, value in wanted:
                error = difference(v, value)
                yield _Guess(error, graph.order[end], one, roles, end, layout)


def _priors(numbers: Mapping[str, Array], n: int, j: int, i: int, group: int) -> Iterator[Array]:
    """Start logits ``[j, i]`` that the constants may hold: themselves, or the logarithm of couplings."""
    yield np.zeros(())
    for value in numbers.values():
        count = value.size // (i * j)
        if value.size == 0 or value.size % (i * j) or count not in (1, n) or np.ptp(value) == 0:
            continue
        flat = value.reshape(-1)[: i * j].astype(np.float64)
        orders = [flat.reshape(j, i), flat.reshape(i, j).T]
        if group > 1:  # groups, children, members
            orders.append(flat.reshape(-1, i, group).transpose(0, 2, 1).reshape(j, i))
        for stored in orders:
            yield stored
            if stored.min() > 0:
                yield np.log(stored)


def _biases(numbers: Mapping[str, Array], j: int, p: int, group: int) -> Iterator[Array]:
    """Biases ``[j, p]`` that the constants may hold, also one for all members of a group."""
    yield np.zeros(())
    for value in numbers.values():
        if value.size == j * p and value.any():
            yield value.reshape(j, p).astype(np.float64)
            yield value.reshape(p, j).T.astype(np.float64)
        elif group > 1 and value.size == j // group * p and value.any():
            for stored in (value.reshape(-1, p), value.reshape(p, -1).T):
                yield np.repeat(stored.astype(np.float64), group, 0)


def _second_stage(
    first: list[_Guess],
    numbers: Mapping[str, Array],
    constants: Mapping[str, Array],
    large: Array,
    count: int,
    repeated: bool,
) -> _Guess:
    scalars = {float(v.reshape(-1)[0]) for v in numbers.values() if v.size and np.ptp(v) == 0}
    scalars = {s for s in scalars if 1e-3 < abs(s) < 1e3}
    scalars |= {1 / s for s in scalars}  # temperatures divide the logits before the softmax
    best: list[_Guess] = []
    for guess, mean in itertools.product(first, (False, True)):
        u, wanted = guess.roles.read(large), guess.layout.read(constants[guess.end])
        some = slice(None) if mean else sampled_positions(u.shape)  # an average is of all places
        for kind in _kinds(guess.kind, count, mean, sorted({1.0, u.shape[3] ** -0.5, *scalars})):
            best.append(replace(guess, kind=kind, error=difference(kind(u[some]), wanted[some])))
        if min(g.error for g in best) < 1e-6:
            break
    # Of tensors that agree equally well the first: what is made of it stays as it is.
    best.sort(key=lambda g: (round(np.log10(g.error + 1e-9)), g.late))
    if best[0].error > 1e-4:
        if repeated:
            raise NoMatch("one logit for each element of a pose: no operator has that")
        raise NoMatch(f"no number of iterations fits (the nearest is {best[0].error:.1g} off)")
    return best[0]


def _kinds(kind: Dynamic, count: int, mean: bool, scales: list[float]) -> Iterator[Dynamic]:
    """Kinds with ``count`` softmaxes, with and without one before which all logits are equal."""
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
    scalars = {float(v.reshape(-1)[0]) for v in numbers.values() if v.size and np.ptp(v) == 0}
    epsilons = [0.0, *sorted(s for s in scalars if 0 < s <= 1e-2)]
    # Where a bias hides what epsilon there is, one of the file goes before none.
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
    errors = [max(difference(k(u), w) for u, w in probes) for k in kinds]
    least = min(errors)
    return next(k for k, e in zip(kinds, errors, strict=True) if e <= 2 * least + 1e-12)


# --- A routing operator in the place of what was found, where it computes the same ---


STAND_IN = 1e-16  # for no epsilon: below FP32's smallest difference in any product of the squash
MOST_ADDED = 1e-6  # epsilon added to a norm; what stands for it differs by less than half of it
ATOL, RTOL = 5e-7, 1e-6


@dataclass(frozen=True)
class Expressed:
    """Routing in the operators' own terms.

    Attributes:
        kind: what they compute, of votes multiplied by ``gain``.
        gain: of votes and bias.
        notes: what to say of it.
    """

    kind: Dynamic
    gain: float = 1.0
    notes: tuple[str, ...] = ()

    def __call__(self, votes: Array) -> Array:
        return self.kind(self.gain * votes)


@dataclass(frozen=True)
class EmittedDynamic:
    """The nodes, their operator and what to say of them."""

    edit: Edit
    operator: str
    notes: tuple[str, ...]


def expressed(match: DynamicMatch, batch: int, free: bool) -> Expressed:
    """The operators' own kind of routing that stands for a kind.

    Raises:
        NoMatch: there is none.
    """
    kind = match.kind
    other = _other(kind, match.roles.sizes[3])
    if other:
        raise NoMatch(f"{other}: no operator has that")
    if kind.batch_mean and (free or batch != 1):
        raise NoMatch(
            "dynamic routing whose agreements are averaged over the batch: an image's answer depends on the "
            "others (fix the batch at 1 where that is what is wanted)"
        )
    form = replace(kind, form="B", group=1, batch_mean=False)
    gain = 1.0
    notes: tuple[str, ...] = ()
    if kind.form == "A":
        if kind.epsilon > MOST_ADDED:
            raise NoMatch(f"a squash with {kind.epsilon:g} added to the norm: no operator has that")
        most = f"{kind.epsilon / 2:.1g} at most"
        notes = (f"the epsilon {kind.epsilon:.3g} added to the norm stands under the root: {most}",)
        form = replace(form, epsilon=max(kind.epsilon**2, STAND_IN))
    elif kind.form in "FH":
        if kind.epsilon > MOST_ADDED:
            raise NoMatch(
                f"a squash with {kind.epsilon:g} added to the squared norm: no operator has that"
            )
        notes = (f"{STAND_IN:g} stands for the epsilon {kind.epsilon:.3g} added to squared norms",)
        form = replace(form, epsilon=STAND_IN)
        if kind.form == "H":  # s·n/(½+n²) is the squash of √2·s
            gain = 2**0.5
            form = replace(form, bias=gain * kind.bias, scale=kind.scale / gain)
    elif not kind.epsilon:
        notes = (f"no epsilon in the squash: {STAND_IN:g} stands for it",)
        form = replace(form, epsilon=STAND_IN)
    if kind.normalize:
        form = replace(form, norm_epsilon=form.epsilon)
    return Expressed(form, gain, notes)


def _other(kind: Dynamic, pose: int) -> str:
    """What a kind has that no operator has; empty where there is nothing."""
    if kind.group > 1 and pose == 1:
        return "one logit for each element of a pose"
    features = {
        "a softmax over children and parents together": kind.over == "ji",
        "a softmax over some of the parents": kind.over == "groups",
        "a squash over the parents": kind.axis == "j",
        "a squash over the poses of all positions together": kind.axis == "group",
        "the squash (1 - exp -n)·s/n": kind.form == "E",
    }
    said = " and ".join(text for text, is_so in features.items() if is_so)
    return f"dynamic routing with {said}" if said else ""


def emit_dynamic(
    graph: Values, match: DynamicMatch, vote_source: VoteSource | None, tag: str
) -> EmittedDynamic:
    """The nodes.

    Args:
        vote_source: where the votes come from; None routes the votes as they are given.

    Raises:
        NoMatch: no operator computes the same.
    """
    form = expressed(match, graph.batch, graph.free)
    _check(graph, match, form)
    edit = Edit(graph, tag)
    if vote_source is None:
        operator, v = _over_votes(edit, match, form)
    else:
        operator, v = _over_capsules(edit, match, form, vote_source)
    n, j, _, p = match.roles.sizes
    edit.describe(v, (n, j, p))
    edit.write(v, match.layout, match.result)
    notes = form.notes
    if match.equivalence.undefined:
        notes = (*notes, "where the original is not a number (zero votes), the operator gives zero")
    return EmittedDynamic(edit, operator, notes)


def _check(graph: Values, match: DynamicMatch, form: Expressed) -> None:
    if form.kind == match.kind:
        return
    function = graph.function([match.votes], [match.result])
    verdict = check_equivalence(
        lambda x: match.layout.read(function(x)[0]),
        lambda x: form(match.roles.read(x)),
        graph.shapes[match.votes],
        RTOL,
        seed=6,
        floor=ATOL,
        roles=match.roles,
    )
    if not verdict.accepted:
        raise NoMatch(
            f"the operator would differ by {verdict.excess:.2g} times the tolerance ({verdict.case})"
        )


def _attributes(kind: Dynamic) -> dict[str, Any]:
    """Of ``DynamicRouting`` and ``VoteRouting``."""
    return {
        "iterations": kind.iterations,
        "leaky": int(kind.leaky),
        "over_children": int(kind.over == "i"),
        "replace": int(kind.replace),
        "normalize": int(kind.normalize),
        "elementwise": int(kind.axis == "element"),
        "agreement_scale": float(kind.scale),
        "epsilon": float(kind.epsilon),
    }


def _over_votes(edit: Edit, match: DynamicMatch, form: Expressed) -> tuple[str, str]:
    n, j, i, p = match.roles.sizes
    votes = edit.read(match.votes, _children_first(match.roles), (n, i, j, p))
    if form.gain != 1:
        gain = edit.constant(np.array(form.gain), "gain")
        votes = edit.describe(edit.op("Mul", [votes, gain]), (n, i, j, p))
    prior = np.broadcast_to(form.kind.prior, (j, i)).T
    bias = np.broadcast_to(form.kind.bias, (j, p))
    inputs = [votes, edit.constant(prior, "log_prior"), edit.constant(bias, "bias")]
    (v,) = edit.capsule("VoteRouting", inputs, **_attributes(form.kind))
    return "VoteRouting", v


def _children_first(roles: Layout) -> Layout:
    """``[n, i, j, p]`` of ``[n, j, i, p]``."""
    a, b, c, d = roles.groups
    order = roles.order
    swapped = (*order[:a], *order[a + b : a + b + c], *order[a : a + b], *order[a + b + c :])
    return replace(roles, order=swapped, groups=(a, c, b, d))


def _over_capsules(
    edit: Edit, match: DynamicMatch, form: Expressed, vote_source: VoteSource
) -> tuple[str, str]:
    n, j, i, p = match.roles.sizes
    images = edit.graph.batch
    weight = form.gain * vote_source.weight.transpose(1, 0, 2, 3)  # [I, J, Pout, Pin]
    prior = np.broadcast_to(form.kind.prior, (j, i)).T
    constant = None
    if vote_source.constant is not None and vote_source.constant.any():
        constant = form.gain * vote_source.constant[0].transpose(1, 0, 2)
    at = order_of(vote_source.index)
    if at is not None:
        u = edit.read(vote_source.tensor, vote_source.layout, (images, i, vote_source.depth))
        weight, prior = weight[at], prior[at]
        constant = None if constant is None else constant[at]
    else:
        u = edit.read(
            vote_source.tensor, vote_source.layout, (images, vote_source.cells, vote_source.depth)
        )
        chosen = edit.constant(vote_source.index.reshape(-1), "children")
        u = edit.op("Gather", [u, chosen], axis=1)
        if len(vote_source.index) > 1:
            u = edit.reshape(u, (n, i, vote_source.depth), 0)
        edit.describe(u, (n, i, vote_source.depth))
    inputs = [
        u,
        edit.constant(_once(weight), "weight"),
        edit.constant(prior, "log_prior"),
        edit.constant(np.broadcast_to(form.kind.bias, (j, p)), "bias"),
    ]
    if constant is not None:
        inputs.append(edit.constant(_once(constant), "vote_bias"))
    (v,) = edit.capsule("DynamicRouting", inputs, **_attributes(form.kind))
    return "DynamicRouting", v


def _once(values: Array) -> Array:
    """The first of several children's values, where all are the same."""
    return values[:1] if (values == values[:1]).all() else values
