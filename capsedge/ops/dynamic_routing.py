"""``capsedge::DynamicRouting``: routing by agreement of Sabour et al. 2017, procedure 1."""

from __future__ import annotations

import torch
from torch import Tensor

from capsedge.ops._common import (
    accumulation_dtype,
    expect,
    expect_same_dtype,
    expect_shape,
    register,
)
from capsedge.ops.squash import EPSILON
from capsedge.ops.squash import _define as _squash


def _couplings(logits: Tensor, leaky: bool) -> Tensor:
    if not leaky:
        return logits.softmax(-1)
    # "None of the above": one more parent whose logit stays zero and whose votes go nowhere.
    return torch.nn.functional.pad(logits, (1, 0)).softmax(-1)[..., 1:]


def _define(
    u: Tensor,
    weight: Tensor,
    log_prior: Tensor,
    bias: Tensor,
    iterations: int,
    leaky: bool,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    dtype = accumulation_dtype(u)
    n, i, p = u.shape
    j, out = weight.shape[1:3]
    # u_hat_ij = W_ij u_i as one matrix product per child.
    predictions = torch.bmm(
        u.to(dtype).transpose(0, 1), weight.to(dtype).reshape(i, j * out, p).transpose(1, 2)
    )
    u_hat = predictions.reshape(i, n, j, out).transpose(0, 1)
    logits = log_prior.to(dtype).expand(n, i, j)
    for iteration in range(iterations):
        c = _couplings(logits, leaky)
        s = (c.unsqueeze(-1) * u_hat).sum(1) + bias.to(dtype)
        v = _squash(s, -1, epsilon)
        if iteration + 1 < iterations:
            logits = logits + (u_hat * v.unsqueeze(1)).sum(-1)
    return v.to(u.dtype), c.to(u.dtype).contiguous()


def _fake(u: Tensor, weight: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    n, i = u.shape[:2]
    j, out = weight.shape[1:3]
    return u.new_empty((n, j, out)), u.new_empty((n, i, j))


_op = register("dynamic_routing", _define, _fake, 4)


def dynamic_routing(
    u: Tensor,
    weight: Tensor,
    log_prior: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    iterations: int = 3,
    leaky: bool = False,
    epsilon: float = EPSILON,
) -> tuple[Tensor, Tensor]:
    """Route children to parents by iterated agreement.

    ``T`` iterations make ``T`` weighted sums and ``T - 1`` agreements.

    Args:
        u: poses of the children ``[N, I, Pin]``.
        weight: ``[I, J, Pout, Pin]``; the prediction of parent j by child i is ``W_ij u_i``.
        log_prior: start logits ``[I, J]`` (equation 3); zeros when left out.
        bias: added to each parent's sum before squash ``[J, Pout]``; zeros when left out.
        iterations: ``T >= 1``.
        leaky: adds a parent "none of the above" with logit zero, whose share is dropped.
        epsilon: of the squash.

    Returns:
        Poses of the parents ``[N, J, Pout]`` and the coupling coefficients of the last weighted sum
        ``[N, I, J]``, both of the type of ``u``. Half types are computed in FP32.

    Raises:
        ShapeError: a shape, type or attribute is wrong; the message names it.

    Source: Sabour, Frosst, Hinton 2017, procedure 1 and equations 2 to 4; leaky routing from the
    authors' released code.
    """
    name = "DynamicRouting"
    expect_shape(name, "u", u, ["N", "I", "Pin"])
    expect_shape(name, "weight", weight, [u.shape[1], "J", "Pout", u.shape[2]])
    i, j, out = weight.shape[:3]
    log_prior = weight.new_zeros((i, j)) if log_prior is None else log_prior
    bias = weight.new_zeros((j, out)) if bias is None else bias
    expect_shape(name, "log_prior", log_prior, [i, j])
    expect_shape(name, "bias", bias, [j, out])
    expect_same_dtype(name, u=u, weight=weight, log_prior=log_prior, bias=bias)
    expect(name, iterations >= 1, "iterations {}, wanted >= 1", iterations)
    expect(name, epsilon > 0, "epsilon {}, wanted > 0", epsilon)
    result: tuple[Tensor, Tensor] = _op(u, weight, log_prior, bias, iterations, leaky, epsilon)
    return result
