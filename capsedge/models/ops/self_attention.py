"""``capsedge::SelfAttentionRouting``: the single pass of Efficient-CapsNet, Mazzia et al. 2021."""

from __future__ import annotations

from torch import Tensor

from capsedge.models.ops.dynamic import dense_outputs, dense_votes
from capsedge.models.ops.operator_inputs import (
    accumulation_dtype,
    expect,
    expect_same_dtype,
    expect_shape,
)
from capsedge.models.ops.registration import register
from capsedge.models.ops.squash import EXPONENTIAL_EPSILON, exponential


def _define(u: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    dtype = accumulation_dtype(u)
    u_hat = dense_votes(u, weight)
    agreement = (u_hat * u_hat.sum(1, keepdim=True)).sum(-1) * weight.shape[2] ** -0.5
    c = agreement.softmax(-1) + bias.to(dtype)
    v = exponential((c.unsqueeze(-1) * u_hat).sum(1), -1, epsilon)
    return v.to(u.dtype), c.to(u.dtype).contiguous()


_op = register("self_attention_routing", _define, dense_outputs, 3)


def self_attention_routing(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    epsilon: float = EXPONENTIAL_EPSILON,
) -> tuple[Tensor, Tensor]:
    """Route children to parents by their agreement with the sum of all votes, in one pass.

    Args:
        u: poses of the children ``[N, I, Pin]``.
        weight: ``[I, J, Pout, Pin]``; the vote of child i for parent j is ``W_ij u_i``.
        bias: added to the couplings after the softmax ``[I, J]``; zeros if omitted.
        epsilon: constant of the squash (``exponential_squash``).

    Returns:
        Poses of the parents ``[N, J, Pout]`` and the couplings with their bias ``[N, I, J]``, both of the
        type of ``u``. Half types are computed in FP32.

    Raises:
        ShapeError: a shape, type or attribute is wrong; the message names it.

    Source: Mazzia, Salvetti, Chiaberge 2021, and the authors' released code.
    """
    name = "SelfAttentionRouting"
    expect_shape(name, "u", u, ["N", "I", "Pin"])
    expect_shape(name, "weight", weight, [u.shape[1], "J", "Pout", u.shape[2]])
    i, j = weight.shape[:2]
    bias = weight.new_zeros((i, j)) if bias is None else bias
    expect_shape(name, "bias", bias, [i, j])
    expect_same_dtype(name, u=u, weight=weight, bias=bias)
    expect(name, epsilon > 0, "epsilon {}, wanted > 0", epsilon)
    result: tuple[Tensor, Tensor] = _op(u, weight, bias, epsilon)
    return result
