"""``capsedge::vote_routing``: routing by agreement over votes that are given."""

from __future__ import annotations

from torch import Tensor

from capsedge.ops._agreement import Agreement, SoftmaxOver, Update, checked, route
from capsedge.ops._common import (
    accumulation_dtype,
    expect_same_dtype,
    expect_shape,
    register,
)
from capsedge.ops.squash import EPSILON


def _define(
    votes: Tensor,
    log_prior: Tensor,
    bias: Tensor,
    iterations: int,
    leaky: bool,
    over_children: bool,
    replace: bool,
    normalize: bool,
    elementwise: bool,
    agreement_scale: float,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    dtype = accumulation_dtype(votes)
    how = Agreement(
        iterations, leaky, over_children, replace, normalize, elementwise, agreement_scale, epsilon
    )
    v, c = route(votes.to(dtype), log_prior.to(dtype), bias.to(dtype), how)
    return v.to(votes.dtype), c.to(votes.dtype).contiguous()


def _fake(votes: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    n, i, j, p = votes.shape
    return votes.new_empty((n, j, p)), votes.new_empty((n, i, j))


_op = register("vote_routing", _define, _fake, 3)


def vote_routing(
    votes: Tensor,
    log_prior: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    iterations: int = 3,
    leaky: bool = False,
    softmax: SoftmaxOver = "parents",
    update: Update = "accumulate",
    normalize: bool = False,
    elementwise: bool = False,
    agreement_scale: float = 1.0,
    epsilon: float = EPSILON,
) -> tuple[Tensor, Tensor]:
    """Route votes to parents by iterated agreement, however the votes were made.

    For votes that are a linear map of capsules, ``dynamic_routing`` is faster: it never writes them to
    memory. This one is for votes of a convolution or of a nonlinear layer. Positions that route on their
    own go into the batch.

    Args:
        votes: ``[N, I, J, P]``: of each child for each parent.
        log_prior: start logits ``[I, J]``; zeros when left out.
        bias: added to each parent's sum before squash ``[J, P]``; zeros when left out.
        iterations, leaky, softmax, update, normalize, elementwise, agreement_scale, epsilon: as in
            ``dynamic_routing``.

    Returns:
        Poses of the parents ``[N, J, P]`` and the coupling coefficients of the last weighted sum
        ``[N, I, J]``, both of the type of ``votes``. Half types are computed in FP32.

    Raises:
        ShapeError: a shape, type or attribute is wrong; the message names it.

    Source: Sabour, Frosst, Hinton 2017, procedure 1, from equation 2 on.
    """
    name = "VoteRouting"
    expect_shape(name, "votes", votes, ["N", "I", "J", "P"])
    i, j, p = votes.shape[1:]
    log_prior = votes.new_zeros((i, j)) if log_prior is None else log_prior
    bias = votes.new_zeros((j, p)) if bias is None else bias
    expect_shape(name, "log_prior", log_prior, [i, j])
    expect_shape(name, "bias", bias, [j, p])
    expect_same_dtype(name, votes=votes, log_prior=log_prior, bias=bias)
    how = checked(
        name, iterations, leaky, softmax, update, normalize, elementwise, agreement_scale, epsilon
    )
    result: tuple[Tensor, Tensor] = _op(votes, log_prior, bias, *how.arguments())
    return result
