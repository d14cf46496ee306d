"""``SelfAttentionRouting`` in the place of what was found."""

from __future__ import annotations

import math

import numpy as np

from capsedge.graph.recognize.edit import Edit
from capsedge.graph.recognize.fit_self_attention import FoundSelfAttention
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.source import Source, order_of
from capsedge.graph.recognize.values import Values

STAND_IN = 1e-20  # for no epsilon, as in the authors' code


def write_self_attention(
    graph: Values, found: FoundSelfAttention, source: Source, tag: str
) -> tuple[Edit, tuple[str, ...]]:
    """The nodes, and what to say of them.

    Raises:
        NotRecognized: no operator computes the same.
    """
    kind = found.kind
    n, j, i, p = found.roles.sizes
    if source.constant is not None:
        raise NotRecognized("the votes have a constant part (W·u + c): no operator has that")
    if not math.isclose(kind.scale, p**-0.5, rel_tol=1e-6):
        raise NotRecognized(
            f"self-attention routing whose agreements are scaled by {kind.scale:g}: no operator has that"
        )
    edit = Edit(graph, tag)
    weight = source.weight.transpose(1, 0, 2, 3)  # [I, J, Pout, Pin]
    bias = np.broadcast_to(kind.bias, (j, i)).T
    at = order_of(source.index)
    if at is None:
        u = edit.read(source.tensor, source.layout, (graph.batch, source.cells, source.depth))
        u = edit.op("Gather", [u, edit.constant(source.index.reshape(-1), "children")], axis=1)
        if len(source.index) > 1:
            u = edit.reshape(u, (n, i, source.depth), 0)
        edit.describe(u, (n, i, source.depth))
    else:
        u = edit.read(source.tensor, source.layout, (graph.batch, i, source.depth))
        weight, bias = weight[at], bias[at]
    inputs = [u, edit.constant(weight, "weight"), edit.constant(bias, "bias")]
    epsilon = kind.epsilon or STAND_IN
    (v,) = edit.capsule("SelfAttentionRouting", inputs, epsilon=float(epsilon))
    edit.describe(v, (n, j, p))
    edit.write(v, found.layout, found.result)
    note = f"no epsilon in the squash: {STAND_IN:g} stands for it"
    return edit, () if kind.epsilon else (note,)
