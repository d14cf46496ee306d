"""Body of ``capsedge::SelfAttentionRouting``."""

from __future__ import annotations

from capsedge.graph.bodies.body import Body, agreement, row, votes, weighted_sum
from capsedge.graph.bodies.elementwise import exponential_squash


def build(b: Body) -> None:
    """Write the body: Mazzia et al. 2021. Votes are ``[N, J, I, Pout]``, couplings ``[N, J, I]``."""
    i, j, out, size = (int(d or 0) for d in b.shapes["weight"])
    u = b.input("u")
    weight = b.transpose(b.input("weight"), 0, 3, 1, 2)
    u_hat = votes(b, u, b.reshape(weight, i, size, j * out), 1, (i, 1, size, j, out))
    # The sum of all votes is one product of all children with the weights.
    flat = b.reshape(u, b.batched(), i * size)
    total = b.op("MatMul", flat, b.reshape(weight, i * size, j * out))
    agreements = agreement(b, u_hat, total, (1, j, i, out))
    logits = b.op("Mul", agreements, b.constant(out**-0.5))
    bias = b.transpose(b.reshape(b.input("bias"), 1, i, j), 0, 2, 1)
    couplings = b.keep_iteration_value(
        b.op("Add", b.op("Softmax", logits, axis=1), bias), "couplings"
    )
    s = weighted_sum(b, row(b, couplings), u_hat)
    v = b.keep_iteration_value(exponential_squash(b, s, out, b.attributes["epsilon"]), "pose")
    if b.traced:
        b.keep("couplings", couplings, j, i)
        b.keep("poses", v, j, out)
        b.keep("agreement", agreement(b, u_hat, v, (1, j, i, out)), j, i)
    b.result("v", b.reshape(v, b.batched(), j, out))
    if b.couplings:
        b.result("couplings", b.transpose(couplings, 0, 2, 1))
