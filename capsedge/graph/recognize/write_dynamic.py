"""A routing operator in the place of what was found, where it computes the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capsedge.graph.recognize.accept import judge
from capsedge.graph.recognize.edit import Edit
from capsedge.graph.recognize.fit_dynamic import FoundDynamic
from capsedge.graph.recognize.formulas import Dynamic
from capsedge.graph.recognize.layouts import Layout
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.source import Source, order_of
from capsedge.graph.recognize.values import Array, Values

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
class Written:
    """The nodes, their operator and what to say of them."""

    edit: Edit
    operator: str
    notes: tuple[str, ...]


def expressed(found: FoundDynamic, batch: int, free: bool) -> Expressed:
    """The operators' own kind of routing that stands for a kind.

    Raises:
        NotRecognized: there is none.
    """
    kind = found.kind
    other = _other(kind, found.roles.sizes[3])
    if other:
        raise NotRecognized(f"{other}: no operator has that")
    if kind.batch_mean and (free or batch != 1):
        raise NotRecognized(
            "dynamic routing whose agreements are averaged over the batch: an image's answer depends on the "
            "others (fix the batch at 1 where that is what is wanted)"
        )
    own = replace(kind, form="B", group=1, batch_mean=False)
    gain = 1.0
    notes: tuple[str, ...] = ()
    if kind.form == "A":
        if kind.epsilon > MOST_ADDED:
            raise NotRecognized(
                f"a squash with {kind.epsilon:g} added to the norm: no operator has that"
            )
        most = f"{kind.epsilon / 2:.1g} at most"
        notes = (f"the epsilon {kind.epsilon:.3g} added to the norm stands under the root: {most}",)
        own = replace(own, epsilon=max(kind.epsilon**2, STAND_IN))
    elif kind.form in "FH":
        if kind.epsilon > MOST_ADDED:
            raise NotRecognized(
                f"a squash with {kind.epsilon:g} added to the squared norm: no operator has that"
            )
        notes = (f"{STAND_IN:g} stands for the epsilon {kind.epsilon:.3g} added to squared norms",)
        own = replace(own, epsilon=STAND_IN)
        if kind.form == "H":  # s·n/(½+n²) is the squash of √2·s
            gain = 2**0.5
            own = replace(own, bias=gain * kind.bias, scale=kind.scale / gain)
    elif not kind.epsilon:
        notes = (f"no epsilon in the squash: {STAND_IN:g} stands for it",)
        own = replace(own, epsilon=STAND_IN)
    if kind.normalize:
        own = replace(own, norm_epsilon=own.epsilon)
    return Expressed(own, gain, notes)


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


def write_dynamic(graph: Values, found: FoundDynamic, source: Source | None, tag: str) -> Written:
    """The nodes.

    Args:
        source: where the votes come from; None routes the votes as they are given.

    Raises:
        NotRecognized: no operator computes the same.
    """
    own = expressed(found, graph.batch, graph.free)
    _check(graph, found, own)
    edit = Edit(graph, tag)
    if source is None:
        operator, v = _over_votes(edit, found, own)
    else:
        operator, v = _over_capsules(edit, found, own, source)
    n, j, _, p = found.roles.sizes
    edit.describe(v, (n, j, p))
    edit.write(v, found.layout, found.result)
    notes = own.notes
    if found.verdict.undefined:
        notes = (*notes, "where the original is not a number (zero votes), the operator gives zero")
    return Written(edit, operator, notes)


def _check(graph: Values, found: FoundDynamic, own: Expressed) -> None:
    if own.kind == found.kind:
        return
    function = graph.function([found.votes], [found.result])
    verdict = judge(
        lambda x: found.layout.read(function(x)[0]),
        lambda x: own(found.roles.read(x)),
        graph.shapes[found.votes],
        RTOL,
        seed=6,
        floor=ATOL,
        roles=found.roles,
    )
    if not verdict.accepted:
        raise NotRecognized(
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


def _over_votes(edit: Edit, found: FoundDynamic, own: Expressed) -> tuple[str, str]:
    n, j, i, p = found.roles.sizes
    votes = edit.read(found.votes, _children_first(found.roles), (n, i, j, p))
    if own.gain != 1:
        gain = edit.constant(np.array(own.gain), "gain")
        votes = edit.describe(edit.op("Mul", [votes, gain]), (n, i, j, p))
    prior = np.broadcast_to(own.kind.prior, (j, i)).T
    bias = np.broadcast_to(own.kind.bias, (j, p))
    inputs = [votes, edit.constant(prior, "log_prior"), edit.constant(bias, "bias")]
    (v,) = edit.capsule("VoteRouting", inputs, **_attributes(own.kind))
    return "VoteRouting", v


def _children_first(roles: Layout) -> Layout:
    """``[n, i, j, p]`` of ``[n, j, i, p]``."""
    a, b, c, d = roles.groups
    order = roles.order
    swapped = (*order[:a], *order[a + b : a + b + c], *order[a : a + b], *order[a + b + c :])
    return replace(roles, order=swapped, groups=(a, c, b, d))


def _over_capsules(
    edit: Edit, found: FoundDynamic, own: Expressed, source: Source
) -> tuple[str, str]:
    n, j, i, p = found.roles.sizes
    images = edit.graph.batch
    weight = own.gain * source.weight.transpose(1, 0, 2, 3)  # [I, J, Pout, Pin]
    prior = np.broadcast_to(own.kind.prior, (j, i)).T
    constant = None
    if source.constant is not None and source.constant.any():
        constant = own.gain * source.constant[0].transpose(1, 0, 2)
    at = order_of(source.index)
    if at is not None:
        u = edit.read(source.tensor, source.layout, (images, i, source.depth))
        weight, prior = weight[at], prior[at]
        constant = None if constant is None else constant[at]
    else:
        u = edit.read(source.tensor, source.layout, (images, source.cells, source.depth))
        chosen = edit.constant(source.index.reshape(-1), "children")
        u = edit.op("Gather", [u, chosen], axis=1)
        if len(source.index) > 1:
            u = edit.reshape(u, (n, i, source.depth), 0)
        edit.describe(u, (n, i, source.depth))
    inputs = [
        u,
        edit.constant(_once(weight), "weight"),
        edit.constant(prior, "log_prior"),
        edit.constant(np.broadcast_to(own.kind.bias, (j, p)), "bias"),
    ]
    if constant is not None:
        inputs.append(edit.constant(_once(constant), "vote_bias"))
    (v,) = edit.capsule("DynamicRouting", inputs, **_attributes(own.kind))
    return "DynamicRouting", v


def _once(values: Array) -> Array:
    """The first of several children's values, where all are the same."""
    return values[:1] if (values == values[:1]).all() else values
