"""Body of ``capsedge::SelfAttentionRouting``."""

from __future__ import annotations

from capsedge.graph.bodies._builder import Body
from capsedge.graph.bodies._votes import agreement, row, votes, weighted_sum
from capsedge.graph.bodies.squash import exponential_squash


def build(b: Body) -> None:
    """Write the body: Mazzia et al. 2021. Votes are ``[N, J, I, Pout]``, couplings ``[N, J, I]``."""
    i, j, out, size = (int(d or 0) for d in b.shapes["weight"])
    weight = b.reshape(b.transpose(b.input("weight"), 0, 3, 1, 2), i, size, j * out)
    u_hat = votes(b, b.input("u"), weight, 1, (i, 1, size, j, out))
    total = b.sum_second_to_last(u_hat, i)
    logits = agreement(b, u_hat, total, (1, j, i, out), out**-0.5)
    bias = b.transpose(b.reshape(b.input("bias"), 1, i, j), 0, 2, 1)
    couplings = b.mark(b.op("Add", b.op("Softmax", logits, axis=1), bias), "couplings")
    s = weighted_sum(b, row(b, couplings), u_hat)
    v = b.mark(exponential_squash(b, s, out, b.attributes["epsilon"]), "pose")
    b.result("v", b.reshape(v, b.batched(), j, out))
    if b.couplings:
        b.result("couplings", b.transpose(couplings, 0, 2, 1))
