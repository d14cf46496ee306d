"""Write dynamic routing as DynamicRouting or VoteRouting, if the operator computes the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import TensorProto

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.dynamic import DynamicMatch
from capsedge.graph.fusion.edit import Edit
from capsedge.graph.fusion.equal_pieces import fit_once, hypothesis_key
from capsedge.graph.fusion.equivalence import Equivalence, check_equivalence
from capsedge.graph.fusion.formulas import LOWEST, Dynamic
from capsedge.graph.fusion.layouts import Layout
from capsedge.graph.fusion.per_image import PerImage
from capsedge.graph.fusion.values import Array, Values
from capsedge.graph.fusion.votes import VoteSource, order_of

STAND_IN = 1e-16  # in place of no epsilon: too small to change any product of the squash in FP32
MOST_ADDED = 1e-6  # epsilon added to a norm; its substitute differs by less than half of it
ATOL, RTOL = 5e-7, 1e-6
# Elements of a matrix that all children share. From this size on, one matrix product followed by routing over
# its votes is faster than a kernel that computes each vote when needed; below it, the kernel is faster.
LEAST_PRODUCT = 1024


@dataclass(frozen=True)
class Expressed:
    """Routing expressed in terms of the operators.

    Attributes:
        kind: what the operators compute from votes multiplied by ``gain``.
        gain: factor applied to votes and bias.
        notes: remarks for the user.
    """

    kind: Dynamic
    gain: float = 1.0
    notes: tuple[str, ...] = ()

    def __call__(self, votes: Array) -> Array:
        return self.kind(self.gain * votes)


@dataclass(frozen=True)
class EmittedDynamic:
    """The nodes, their operator and notes on them."""

    edit: Edit
    operator: str
    notes: tuple[str, ...]


def expressed_by_operators(match: DynamicMatch, batch: int, free: bool) -> Expressed:
    """The routing that the operators support and that is equivalent to a kind.

    Raises:
        NoMatch: there is none.
    """
    kind = match.kind
    other = _other(kind, match.roles.sizes[3])
    if other:
        raise NoMatch(f"{other}: no operator supports this")
    if kind.batch_mean and (free or batch != 1):
        raise NoMatch(
            "dynamic routing whose agreements are averaged over the batch: the result for an image "
            "depends on the others (if that is intended, fix the batch at 1)"
        )
    form = replace(kind, form="B", group=1, batch_mean=False)
    gain = 1.0
    notes: tuple[str, ...] = ()
    if kind.form == "A":
        form = replace(form, epsilon=epsilon_under_root(kind.form, kind.epsilon))
        most = f"{kind.epsilon / 2:.1g} at most"
        notes = (f"the epsilon {kind.epsilon:.3g} added to the norm stands under the root: {most}",)
    elif kind.form in "FH":
        if kind.epsilon > MOST_ADDED:
            raise NoMatch(
                f"a squash with {kind.epsilon:g} added to the squared norm: no operator supports this"
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


def epsilon_under_root(form: str, epsilon: float) -> float:
    """The epsilon with which ``Squash`` computes a squash of form A or B.

    Raises:
        NoMatch: form A adds more than `MOST_ADDED` to the norm.
    """
    if form == "A":
        if epsilon > MOST_ADDED:
            raise NoMatch(f"a squash with {epsilon:g} added to the norm: no operator supports this")
        epsilon = epsilon**2
    return max(epsilon, STAND_IN)


def _other(kind: Dynamic, pose: int) -> str:
    """The property of a kind that no operator supports; empty if there is none."""
    if kind.group > 1 and pose == 1:
        return "one logit for each element of a pose"
    features = {
        "a softmax over children and parents together": kind.over == "ji",
        "a softmax over some of the parents": kind.over == "groups",
        "a squash over the parents": kind.axis == "j",
        "a squash over the poses of all positions together": kind.axis == "group",
        "the squash (1 - exp -n)·s/n": kind.form == "E",
        "the squash s/(1 + n)": kind.form == "G",
    }
    listed = " and ".join(text for text, is_so in features.items() if is_so)
    return f"dynamic routing with {listed}" if listed else ""


def emit_dynamic(
    graph: Values, match: DynamicMatch, vote_source: VoteSource | None, tag: str
) -> EmittedDynamic:
    """The nodes.

    Args:
        vote_source: the source of the votes; None to route the given votes.

    Raises:
        NoMatch: no operator computes the same.
    """
    form = expressed_by_operators(match, graph.batch, graph.free)
    check_expressed(graph, match, form)
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


def check_expressed(graph: Values, match: DynamicMatch, form: Expressed) -> None:
    """Compare what the operators compute with the original, if it is another kind.

    Raises:
        NoMatch: it differs.
    """
    if form.kind == match.kind:
        return

    def compared() -> Equivalence:
        function = match.region.function([match.result])
        return check_equivalence(
            lambda x: match.layout.read(function(x)[0]),
            lambda x: form(match.roles.read(x)),
            graph.shapes[match.votes],
            RTOL,
            seed=6,
            floor=ATOL,
            roles=match.roles,
        )

    neutral = tuple(each.neutral for each in match.region.others)
    asked = ("operator", hypothesis_key(match.kind), match.roles, match.layout, neutral)
    verdict = fit_once(graph, match.region.cut, [match.result], asked, compared)
    if not verdict.accepted:
        raise NoMatch(
            f"the operator would differ by {verdict.excess:.2g} times the tolerance ({verdict.case})"
        )


def _attributes(kind: Dynamic) -> dict[str, Any]:
    """Attributes of ``DynamicRouting`` and ``VoteRouting``."""
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
    own = match.roles.stored.sizes[1]  # parents that have votes of their own
    shape = (n, i, own, p)
    votes = edit.read(match.votes, _children_first(match.roles.stored), shape)
    if form.gain != 1:
        gain = edit.constant(np.array(form.gain), "gain")
        votes = edit.describe(edit.op("Mul", [votes, gain]), shape)
    prior = np.broadcast_to(form.kind.prior, (j, i)).T
    bias = np.broadcast_to(form.kind.bias, (j, p))
    inputs = [votes, edit.constant(prior, "log_prior"), edit.constant(bias, "bias")]
    inputs += _per_image_inputs(edit, match.per_image, (n, i, j), None, shared=own < j)
    (v,) = edit.capsule("VoteRouting", inputs, **_attributes(form.kind))
    return "VoteRouting", v


def _children_first(roles: Layout) -> Layout:
    """Votes ``[n, j, i, p]`` transposed to ``[n, i, j, p]``."""
    a, b, c, d = roles.groups
    order = roles.order
    swapped = (*order[:a], *order[a + b : a + b + c], *order[a : a + b], *order[a + b + c :])
    return replace(roles, order=swapped, groups=(a, c, b, d))


def _over_capsules(
    edit: Edit, match: DynamicMatch, form: Expressed, vote_source: VoteSource
) -> tuple[str, str]:
    n, j, i, p = match.roles.sizes
    weight = form.gain * vote_source.weight.transpose(1, 0, 2, 3)  # [I, J, Pout, Pin]
    prior = np.broadcast_to(form.kind.prior, (j, i)).T
    constant = None
    if vote_source.constant is not None and vote_source.constant.any():
        constant = form.gain * vote_source.constant[0].transpose(1, 0, 2)
    u, at = read_children(edit, vote_source, (n, i))
    if at is not None:
        weight, prior = weight[at], prior[at]
        constant = None if constant is None else constant[at]
    numbers = [
        edit.constant(prior, "log_prior"),
        edit.constant(np.broadcast_to(form.kind.bias, (j, p)), "bias"),
    ]
    if j > 1 and constant is None and (weight == weight[:1, :1]).all():
        # One matrix for all children and parents (MIND): one product, whose votes all parents share.
        matrix = weight[0, 0].T
        identity = np.array_equal(matrix, np.eye(p))  # the file has the product, and repeats it
        votes = u if identity else edit.op("MatMul", [u, edit.constant(matrix, "weight")])
        votes = edit.describe(edit.reshape(votes, (n, i, 1, p), 0), (n, i, 1, p))
        others = _per_image_inputs(edit, match.per_image, (n, i, j), at, shared=True)
        (v,) = edit.capsule("VoteRouting", [votes, *numbers, *others], **_attributes(form.kind))
        return "VoteRouting", v
    shared = (weight == weight[:1]).all() and (constant is None or (constant == constant[:1]).all())
    if i > 1 and shared and p * vote_source.depth >= LEAST_PRODUCT:
        # One product for all children, as in the original file.
        matrix = weight[0].reshape(j * p, -1).T
        votes = edit.op("MatMul", [u, edit.constant(matrix, "weight")])
        if constant is not None:
            votes = edit.op("Add", [votes, edit.constant(constant[0].reshape(-1), "vote_bias")])
        votes = edit.describe(edit.reshape(votes, (n, i, j, p), 0), (n, i, j, p))
        others = _per_image_inputs(edit, match.per_image, (n, i, j), at)
        (v,) = edit.capsule("VoteRouting", [votes, *numbers, *others], **_attributes(form.kind))
        return "VoteRouting", v
    inputs = [u, edit.constant(_once(weight), "weight"), *numbers]
    if constant is not None or match.per_image:
        added = np.zeros((1, j, p)) if constant is None else _once(constant)
        inputs.append(edit.constant(added, "vote_bias"))
    inputs += _per_image_inputs(edit, match.per_image, (n, i, j), at)
    (v,) = edit.capsule("DynamicRouting", inputs, **_attributes(form.kind))
    return "DynamicRouting", v


def _per_image_inputs(
    edit: Edit,
    per_image: tuple[PerImage, ...],
    sizes: tuple[int, int, int],
    at: Array | None,
    *,
    shared: bool = False,
) -> list[str]:
    """The inputs ``image_prior`` and ``mask``, where present.

    Args:
        sizes: the sizes n, i and j.
        at: for each child of the operator, the child in the votes; None if the orders are the same.
        shared: whether all parents share the votes. The TensorRT plugin supports neither that nor these
            inputs, so there is always one, and TensorRT runs the body.
    """
    n, i, j = sizes
    made: dict[bool, str] = {}
    for each in per_image:
        shape = (n, i, j) if len(each.layout.groups) == 3 else (n, i)
        x = edit.read(_value(edit, each), each.layout, shape)
        if at is not None and (at != np.arange(i)).any():
            x = edit.op("Gather", [x, edit.constant(at, "children")], axis=1)
        if each.prior and len(shape) == 2:
            x = edit.describe(edit.reshape(x, (n, i, 1), 0), (n, i, 1))
        if each.prior in made:
            x = edit.op("Add" if each.prior else "Mul", [made[each.prior], x])
        made[each.prior] = x
    if not made and not shared:
        return []
    prior = made.get(True) or edit.constant(np.zeros((1, 1, 1)), "image_prior")
    return [prior, *([made[False]] if False in made else [])]


def _value(edit: Edit, term: PerImage) -> str:
    """The tensor in FP32, to be added to logits or multiplied by couplings."""
    kind, x = edit.graph.kind(term.name), term.name
    if term.form in ("value", "negative", "log"):
        x = x if kind == np.float32 else edit.op("Cast", [x], to=TensorProto.FLOAT)
        if term.form == "log":
            positive = edit.op("Greater", [x, edit.constant(np.float32(0), "zero")])
            return edit.op(
                "Where", [positive, edit.op("Log", [x]), edit.constant(np.float32(LOWEST), "out")]
            )
        return x if term.form == "value" else edit.op("Neg", [x])
    inside = x if kind == np.bool_ else edit.op("Cast", [x], to=TensorProto.BOOL)
    if term.form == "zero":
        inside = edit.op("Not", [inside])
    if not term.prior:
        return edit.op("Cast", [inside], to=TensorProto.FLOAT)
    values = [edit.constant(np.float32(v), name) for v, name in ((0.0, "in"), (LOWEST, "out"))]
    return edit.op("Where", [inside, *values])


def read_children(
    edit: Edit, vote_source: VoteSource, sizes: tuple[int, int]
) -> tuple[str, Array | None]:
    """The children ``[n, i, depth]`` that votes are computed from, and the cells in their order.

    If cells are selected, the order is that of the votes, and the second value is None.

    Args:
        sizes: the sizes n and i.
    """
    images, depth = edit.graph.batch, vote_source.depth
    at = order_of(vote_source.index)
    if at is not None:
        return edit.read(vote_source.tensor, vote_source.layout, (images, sizes[1], depth)), at
    u = edit.read(vote_source.tensor, vote_source.layout, (images, vote_source.cells, depth))
    u = edit.op("Gather", [u, edit.constant(vote_source.index.reshape(-1), "children")], axis=1)
    if len(vote_source.index) > 1:
        u = edit.reshape(u, (*sizes, depth), 0)
    return edit.describe(u, (*sizes, depth)), None


def _once(values: Array) -> Array:
    """The first child's value if all children have the same, otherwise all values."""
    return values[:1] if (values == values[:1]).all() else values
