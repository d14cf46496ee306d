"""Bodies of ``capsedge::DynamicRouting``, and of routing over given votes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from capsedge.graph.bodies.body import Body, agreement, row, weighted_sum
from capsedge.graph.bodies.body import votes as dense_votes
from capsedge.graph.bodies.elementwise import squash, squash_elements


@dataclass(frozen=True)
class _Layer:
    """Sizes and attributes; ``i`` is -1 if the number of children is free.

    ``mask`` is the factor of the couplings ``[N or 1, 1, I or 1]``; empty for none. ``votes_of_all`` are the
    votes ``[N, P, I]`` if all parents share them, which are then ``[N, I, P]``; otherwise empty.
    """

    i: int
    j: int
    out: int
    iterations: int
    leaky: bool
    over_children: bool
    replace: bool
    normalize: bool
    elementwise: bool
    scale: float
    epsilon: float
    mask: str
    votes_of_all: str = ""


def _layer(b: Body, i: int, j: int, out: int) -> _Layer:
    given = b.attributes
    return _Layer(
        i,
        j,
        out,
        iterations=given["iterations"],
        leaky=bool(given["leaky"]),
        over_children=bool(given["over_children"]),
        replace=bool(given["replace"]),
        normalize=bool(given["normalize"]),
        elementwise=bool(given["elementwise"]),
        scale=given["agreement_scale"],
        epsilon=given["epsilon"],
        mask=b.op("Unsqueeze", b.input("mask"), b.ints([1])) if "mask" in b.shapes else "",
    )


def _couplings(b: Body, logits: str, layer: _Layer) -> str:
    """Couplings ``[., J, I]``, masked."""
    shares = _shares(b, logits, layer)
    return b.op("Mul", shares, layer.mask) if layer.mask else shares


def _shares(b: Body, logits: str, layer: _Layer) -> str:
    """The softmax; leaky routing adds a parent with logit zero, whose share is dropped."""
    if layer.over_children:
        return b.op("Softmax", logits, axis=2)
    if not layer.leaky:
        return b.op("Softmax", logits, axis=1)
    top = b.op("Relu", b.op("ReduceMax", logits, b.ints([1]), keepdims=1))
    exp = b.op("Exp", b.op("Sub", logits, top))
    rest = b.op("Exp", b.op("Neg", top))
    return b.op("Div", exp, b.op("Add", b.sum_second_to_last(exp, layer.j), rest))


def _weighted_sum(b: Body, couplings: str, u_hat: str, layer: _Layer) -> str:
    """``[N, J, 1, P]``; for votes that all parents share, one product per image."""
    if layer.votes_of_all:
        return row(b, b.op("MatMul", couplings, u_hat))
    return weighted_sum(b, row(b, couplings), u_hat)


def _agreements(b: Body, u_hat: str, parents: str, layer: _Layer, scale: float = 1.0) -> str:
    """``[N, J, I]``, for parents ``[N, J, 1, P]``."""
    if not layer.votes_of_all:
        return agreement(b, u_hat, parents, (1, layer.j, layer.i, layer.out), scale)
    rows = b.reshape(parents, b.batched(), layer.j, layer.out)
    rows = rows if scale == 1.0 else b.op("Mul", rows, b.constant(scale))
    return b.op("MatMul", rows, layer.votes_of_all)


def _squashed(b: Body, s: str, layer: _Layer) -> str:
    if layer.elementwise:
        return squash_elements(b, s, layer.epsilon)
    return squash(b, s, layer.out, layer.epsilon)


def _normalized(b: Body, s: str, layer: _Layer) -> str:
    """The sums divided by their norms."""
    n2 = b.sum_last(b.op("Mul", s, s), layer.out)
    return b.op("Div", s, b.op("Sqrt", b.op("Add", n2, b.constant(layer.epsilon))))


def _shape_of_couplings(b: Body, first: str, layer: _Layer) -> str:
    """``[N, J, I]`` as a tensor."""
    if b.batched() != -1 and layer.i != -1:
        return b.ints([b.batched(), layer.j, layer.i])
    size = [b.op("Shape", first, start=k, end=k + 1) for k in (0, 1)]
    return b.op("Concat", size[0], b.ints([layer.j]), size[1], axis=0)


def _start_logits(b: Body, first: str, layer: _Layer) -> str:
    """``[1, J, I]`` for all images; with a prior for each, ``[N, J, I]``."""
    logits = b.transpose(b.op("Unsqueeze", b.input("log_prior"), b.ints([0])), 0, 2, 1)
    rows = {b.shapes["log_prior"][0]}
    if _per_image(b):
        logits = b.op("Add", logits, b.transpose(b.input("image_prior"), 0, 2, 1))
        rows.add(b.shapes["image_prior"][1])
    if rows != {1} or layer.i == 1:
        return logits
    if layer.i != -1:
        return b.op("Expand", logits, b.ints([1, layer.j, layer.i]))
    size = b.op("Shape", first, start=1, end=2)
    return b.op("Expand", logits, b.op("Concat", b.ints([1, layer.j]), size, axis=0))


def _per_image(b: Body) -> bool:
    return "image_prior" in b.shapes


def _without_masked(b: Body, u: str, layer: _Layer) -> str:
    """Poses or votes ``[N, I, ...]`` with zeros for children whose mask is 0.

    If parents compete for one child at a time, its values, even NaN, then have no effect.
    """
    if not layer.mask or layer.over_children:
        return u
    out = b.op("Equal", b.input("mask"), b.constant(0.0))
    axes = list(range(2, len(next(iter(b.shapes.values())))))
    return b.op("Where", b.op("Unsqueeze", out, b.ints(axes)), b.constant(0.0), u)


def _single_pass(
    b: Body, u: str, weight_matrix: str, couplings: str, own: int, size: int, layer: _Layer
) -> str:
    """Sums ``[N, J, 1, Pout]``: one product of all children with the weights times their couplings."""
    i, j, out = layer.i, layer.j, layer.out
    c = b.transpose(couplings, 2, 0, 1)
    scaled = b.op("Mul", b.reshape(weight_matrix, own, size, j, out), b.reshape(c, i, 1, j, 1))
    s = b.op("MatMul", b.reshape(u, b.batched(), i * size), b.reshape(scaled, i * size, j * out))
    return b.reshape(s, b.batched(), j, 1, out)


def _iterate(
    b: Body, u_hat: str, bias: str, logits: str, couplings: str, layer: _Layer
) -> tuple[str, str]:
    """The iterations over votes ``[N, J, I, Pout]``, unrolled: the last parents and couplings."""
    start = logits
    total = v = ""
    for iteration in range(layer.iterations):
        if iteration:
            couplings = b.keep_iteration_value(
                _couplings(b, logits, layer), "couplings", iteration + 1
            )
        s = b.op("Add", _weighted_sum(b, couplings, u_hat, layer), bias)
        v = b.keep_iteration_value(_squashed(b, s, layer), "pose", iteration + 1)
        _keep(b, u_hat, couplings, v, layer)
        if iteration + 1 == layer.iterations and b.rewrites.dead_update:
            break
        parents = _normalized(b, s, layer) if layer.normalize else v
        if layer.replace:
            logits = _agreements(b, u_hat, parents, layer, layer.scale)
        elif b.rewrites.logit_free:
            # b_ij = log_prior_ij + û_ij · (v_j of all passes so far).
            total = b.op("Add", total, parents) if total else parents
            logits = b.op("Add", start, _agreements(b, u_hat, total, layer, layer.scale))
        else:
            logits = b.op("Add", logits, _agreements(b, u_hat, parents, layer, layer.scale))
    return v, couplings


def _keep(b: Body, u_hat: str, couplings: str, v: str, layer: _Layer) -> None:
    """The values of an iteration, for a traced body."""
    if not b.traced:
        return
    i, j, out = layer.i, layer.j, layer.out
    agreements = _agreements(b, u_hat, v, layer)
    # The couplings of the first iteration may be the same for every image.
    every = b.op("Expand", couplings, b.op("Shape", agreements))
    b.keep("couplings", every, j, i)
    b.keep("poses", v, j, out)
    b.keep("agreement", agreements, j, i)


def _results(b: Body, first: str, v: str, couplings: str, layer: _Layer) -> None:
    b.result("v", b.reshape(v, b.batched(), layer.j, layer.out))
    if b.couplings:
        if layer.iterations == 1:  # may be the same for every image
            couplings = b.op("Expand", couplings, _shape_of_couplings(b, first, layer))
        b.result("couplings", b.transpose(couplings, 0, 2, 1))


def _votes_of_shared(b: Body, u: str, weight_matrix: str, size: int, layer: _Layer) -> str:
    """Votes ``[N, J, I, Pout]`` with one weight for all children: a single product."""
    flat = b.reshape(weight_matrix, size, layer.j * layer.out)
    v = b.op("MatMul", u, flat)
    children = (b.batched(), layer.i) if layer.i != -1 else (0, -1)
    return b.transpose(b.reshape(v, *children, layer.j, layer.out), 0, 2, 1, 3)


def build(b: Body) -> None:
    """Write the body: Sabour et al. 2017, procedure 1, unrolled.

    Votes are ``[N, J, I, Pout]``, logits and couplings ``[N or 1, J, I]``.
    """
    own, j, out, size = (int(d or 0) for d in b.shapes["weight"])
    layer = _layer(b, int(b.shapes["u"][1] or (own if own > 1 else -1)), j, out)
    i = layer.i
    first = b.input("u")
    u, weight, bias = _without_masked(b, first, layer), b.input("weight"), b.input("bias")
    weight_matrix = b.reshape(b.transpose(weight, 0, 3, 1, 2), own, size, j * out)
    bias = b.reshape(bias, j, 1, out)
    vote_bias = ""  # [J, I or 1, Pout]
    if "vote_bias" in b.shapes:
        vote_bias = b.transpose(b.input("vote_bias"), 1, 0, 2)
    logits = _start_logits(b, first, layer)
    couplings = b.keep_iteration_value(_couplings(b, logits, layer), "couplings")
    alike = layer.i != -1 and not _per_image(b)  # the couplings of all images
    if b.rewrites.first_pass_uniform and layer.iterations == 1 and alike:
        s = _single_pass(b, u, weight_matrix, couplings, own, size, layer)
        if vote_bias:
            column = b.reshape(couplings, j, i, 1)
            constant = b.sum_second_to_last(b.op("Mul", column, vote_bias), i)
            bias = b.op("Add", constant, bias)
        v = b.keep_iteration_value(_squashed(b, b.op("Add", s, bias), layer), "pose")
    else:
        if own == i:
            u_hat = dense_votes(b, u, weight_matrix, 1, (i, 1, size, j, out))
        else:
            u_hat = _votes_of_shared(b, u, weight_matrix, size, layer)
        if vote_bias:
            u_hat = b.op("Add", u_hat, vote_bias)
        v, couplings = _iterate(b, u_hat, bias, logits, couplings, layer)
    _results(b, u, v, couplings, layer)


def build_over_votes(b: Body) -> None:
    """Write the body of ``VoteRouting``, unrolled."""
    i, own, out = b.shapes["votes"][1:]
    layer = _layer(b, int(i or -1), int(b.shapes["log_prior"][1] or 0), int(out or 0))
    given = b.input("votes")
    votes = _without_masked(b, given, layer)
    if own == 1 < layer.j:
        u_hat = b.op("Squeeze", votes, b.ints([2]))
        layer = replace(layer, votes_of_all=b.transpose(u_hat, 0, 2, 1))
    else:
        u_hat = b.transpose(votes, 0, 2, 1, 3)
    bias = b.reshape(b.input("bias"), layer.j, 1, layer.out)
    logits = _start_logits(b, given, layer)
    couplings = b.keep_iteration_value(_couplings(b, logits, layer), "couplings")
    v, couplings = _iterate(b, u_hat, bias, logits, couplings, layer)
    _results(b, given, v, couplings, layer)
