"""``DynamicRouting`` in the place of what was found, where it computes the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from capsedge.graph.recognize.accept import judge
from capsedge.graph.recognize.edit import Edit
from capsedge.graph.recognize.fit_dynamic import FoundDynamic
from capsedge.graph.recognize.formulas import Dynamic
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.source import Source, order_of
from capsedge.graph.recognize.values import Values

STAND_IN = 1e-16  # for no epsilon: below FP32's smallest difference in any product of the squash
MOST_ADDED = 1e-6  # epsilon added to a norm; what stands for it differs by less than half of it
ATOL, RTOL = 5e-7, 1e-6


def expressed(kind: Dynamic, batch: int, free: bool) -> tuple[Dynamic, tuple[str, ...]]:
    """The operator's own kind of routing that stands for a kind, and what to say of it.

    Raises:
        NotRecognized: there is none.
    """
    if kind.over != "j":
        what = "the children" if kind.over == "i" else "children and parents together"
        raise NotRecognized(f"dynamic routing with a softmax over {what}: no operator has that")
    if kind.axis != "p":
        what = "over the parents" if kind.axis == "j" else "of each element for itself"
        raise NotRecognized(f"dynamic routing with a squash {what}: no operator has that")
    if kind.form == "E":
        raise NotRecognized(
            "dynamic routing with the squash (1 - exp -n)·s/n: no operator has that"
        )
    if kind.replace:
        raise NotRecognized(
            "dynamic routing whose agreements replace the logits: no operator has that"
        )
    if kind.batch_mean and (free or batch != 1):
        raise NotRecognized(
            "dynamic routing whose agreements are averaged over the batch: an image's answer depends on the "
            "others (fix the batch at 1 where that is what is wanted)"
        )
    if kind.scale != 1:
        raise NotRecognized(
            f"dynamic routing whose agreements are scaled by {kind.scale:g}: no operator has that"
        )
    if kind.form == "A":
        if kind.epsilon > MOST_ADDED:
            raise NotRecognized(
                f"a squash with {kind.epsilon:g} added to the norm: no operator has that"
            )
        most = f"{kind.epsilon / 2:.1g} at most"
        note = f"the epsilon {kind.epsilon:.3g} added to the norm stands under the root: {most}"
        own = replace(kind, form="B", epsilon=max(kind.epsilon**2, STAND_IN), batch_mean=False)
        return own, (note,)
    notes = () if kind.epsilon else (f"no epsilon in the squash: {STAND_IN:g} stands for it",)
    return replace(kind, epsilon=kind.epsilon or STAND_IN, batch_mean=False), notes


def write_dynamic(
    graph: Values, found: FoundDynamic, source: Source, tag: str
) -> tuple[Edit, tuple[str, ...]]:
    """The nodes, and what to say of them.

    Raises:
        NotRecognized: no operator computes the same.
    """
    own, notes = expressed(found.kind, graph.batch, graph.free)
    if source.constant is not None:
        raise NotRecognized("the votes have a constant part (W·u + c): no operator has that")
    if own != found.kind:
        function = graph.function([found.votes], [found.result])
        verdict = judge(
            lambda x: found.layout.read(function(x)[0]),
            lambda x: own(found.roles.read(x)),
            graph.shape(found.votes),
            RTOL,
            seed=6,
            floor=ATOL,
        )
        if not verdict.accepted:
            raise NotRecognized(
                f"the operator would differ by {verdict.excess:.2g} times the tolerance ({verdict.case})"
            )
    n, j, i, p = found.roles.sizes
    edit = Edit(graph, tag)
    weight = source.weight.transpose(1, 0, 2, 3)  # [I, J, Pout, Pin]
    prior = np.broadcast_to(own.prior, (j, i)).T
    at = order_of(source.index)
    images = graph.batch
    if at is not None:
        u = edit.read(source.tensor, source.layout, (images, i, source.depth))
        weight, prior = weight[at], prior[at]
    else:
        u = edit.read(source.tensor, source.layout, (images, source.cells, source.depth))
        chosen = edit.constant(source.index.reshape(-1), "children")
        u = edit.op("Gather", [u, chosen], axis=1)
        if len(source.index) > 1:
            u = edit.reshape(u, (n, i, source.depth), 0)
        edit.describe(u, (n, i, source.depth))
    (v,) = edit.capsule(
        "DynamicRouting",
        [
            u,
            edit.constant(weight, "weight"),
            edit.constant(prior, "log_prior"),
            edit.constant(np.broadcast_to(own.bias, (j, p)), "bias"),
        ],
        iterations=own.iterations,
        leaky=int(own.leaky),
        epsilon=float(own.epsilon),
    )
    edit.describe(v, (n, j, p))
    edit.write(v, found.layout, found.result)
    if found.verdict.undefined:
        notes = (*notes, "where the original is not a number (zero votes), the operator gives zero")
    return edit, notes
