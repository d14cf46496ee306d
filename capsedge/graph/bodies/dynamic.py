"""Body of ``capsedge::DynamicRouting``."""

from __future__ import annotations

from capsedge.graph.bodies._builder import Body
from capsedge.graph.bodies._votes import agreement, row, votes, weighted_sum
from capsedge.graph.bodies.squash import squash


def _softmax_over_parents(b: Body, logits: str, parents: int, leaky: bool) -> str:
    """Couplings ``[., J, I]``; leaky routing has one more parent with logit zero, whose share is dropped."""
    if not leaky:
        return b.op("Softmax", logits, axis=1)
    top = b.op("Relu", b.op("ReduceMax", logits, b.ints([1]), keepdims=1))
    exp = b.op("Exp", b.op("Sub", logits, top))
    rest = b.op("Exp", b.op("Neg", top))
    return b.op("Div", exp, b.op("Add", b.sum_second_to_last(exp, parents), rest))


def _shape_of_couplings(b: Body, u: str, j: int, i: int) -> str:
    """``[N, J, I]`` as a tensor."""
    if b.batched() != -1:
        return b.ints([b.batched(), j, i])
    return b.op("Concat", b.op("Shape", u, start=0, end=1), b.ints([j, i]), axis=0)


def build(b: Body) -> None:
    """Write the body: Sabour et al. 2017, procedure 1, unrolled.

    Votes are ``[N, J, I, Pout]``, logits and couplings ``[N or 1, J, I]``.
    """
    i, j, out, size = (int(d or 0) for d in b.shapes["weight"])
    iterations, leaky = b.attributes["iterations"], bool(b.attributes["leaky"])
    epsilon = b.attributes["epsilon"]
    u, weight, bias = b.input("u"), b.input("weight"), b.input("bias")
    weight_matrix = b.reshape(b.transpose(weight, 0, 3, 1, 2), i, size, j * out)
    bias = b.reshape(bias, j, 1, out)
    # The start logits are those of every image.
    logits = b.transpose(b.reshape(b.input("log_prior"), 1, i, j), 0, 2, 1)

    couplings = b.mark(_softmax_over_parents(b, logits, j, leaky), "couplings")
    start = logits
    v = ""
    total = ""
    u_hat = ""
    if b.rewrites.first_pass_uniform and iterations == 1:
        # One product of all children with the weights times their couplings: no votes at all.
        c = b.transpose(couplings, 2, 0, 1)
        scaled = b.op("Mul", b.reshape(weight_matrix, i, size, j, out), b.reshape(c, i, 1, j, 1))
        s = b.op(
            "MatMul", b.reshape(u, b.batched(), i * size), b.reshape(scaled, i * size, j * out)
        )
        v = squash(b, b.op("Add", b.reshape(s, b.batched(), j, 1, out), bias), out, epsilon)
        v = b.mark(v, "pose")
        iterations = 0
    else:
        u_hat = votes(b, u, weight_matrix, 1, (i, 1, size, j, out))
    for iteration in range(iterations):
        if iteration:
            couplings = _softmax_over_parents(b, logits, j, leaky)
            couplings = b.mark(couplings, "couplings", iteration + 1)
        s = weighted_sum(b, row(b, couplings), u_hat)
        v = squash(b, b.op("Add", s, bias), out, epsilon)
        v = b.mark(v, "pose", iteration + 1)
        if iteration + 1 == iterations and b.rewrites.dead_update:
            break
        if b.rewrites.logit_free:
            # b_ij = log_prior_ij + û_ij · (v_j of all passes so far).
            total = b.op("Add", total, v) if total else v
            logits = b.op("Add", start, agreement(b, u_hat, total, (1, j, i, out)))
        else:
            logits = b.op("Add", logits, agreement(b, u_hat, v, (1, j, i, out)))
    b.result("v", b.reshape(v, b.batched(), j, out))
    if b.couplings:
        if b.attributes["iterations"] == 1:  # the same for every image
            couplings = b.op("Expand", couplings, _shape_of_couplings(b, u, j, i))
        b.result("couplings", b.transpose(couplings, 0, 2, 1))
