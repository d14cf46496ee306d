"""``capsedge::AttentionRouting``: one pass of Tsai et al. 2020, procedure 1."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import layer_norm

from capsedge.models.ops.operator_inputs import (
    accumulation_dtype,
    cut_windows,
    expect,
    expect_same_dtype,
    expect_shape,
    matrix_side,
    output_grid,
    votes,
)
from capsedge.models.ops.registration import register
from capsedge.spec.operators import OPERATORS

EPSILON: float = OPERATORS["AttentionRouting"].complete({})["epsilon"]


def _define(
    pose: Tensor,
    parent: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor,
    strides: Sequence[int],
    matrix_pose: bool,
    agreement_scale: float,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    dtype = accumulation_dtype(pose)
    kernel = (weight.shape[0], weight.shape[1])
    m, k, out = weight.shape[3:]
    v = votes(
        cut_windows(pose.to(dtype), kernel, strides),
        weight.to(dtype).reshape(-1, m, k, out),
        k if matrix_pose else 1,
    )
    agreement = agreement_scale * (v * parent.to(dtype).unsqueeze(3)).sum(-1)
    coupling = agreement.softmax(-1)
    s = (coupling.unsqueeze(-1) * v).sum(3)
    y = layer_norm(s, (s.shape[-1],), scale.to(dtype), bias.to(dtype), epsilon)
    return y.to(pose.dtype), coupling.to(pose.dtype).contiguous()


def _fake(pose: Tensor, parent: Tensor, weight: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    children = weight.shape[0] * weight.shape[1] * weight.shape[2]
    couplings = (*parent.shape[:3], children, weight.shape[3])
    return parent.new_empty(parent.shape), parent.new_empty(couplings)


_op = register("attention_routing", _define, _fake, 5)


def attention_routing(
    pose: Tensor,
    parent: Tensor | None,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    strides: Sequence[int] = (1, 1),
    matrix_pose: bool = True,
    agreement_scale: float | None = None,
    epsilon: float = EPSILON,
) -> tuple[Tensor, Tensor]:
    """One pass of inverted dot-product attention: children's votes compete for the parents.

    Args:
        pose: poses of the children ``[N, H, W, C, Pin]``.
        parent: the parents' poses from the previous pass ``[N, H', W', M, P]``; zeros if omitted, which makes
            the couplings uniform, as in the first pass.
        weight: ``[Kh, Kw, C, M, √P, √P]`` for matrix poses (``vote = pose @ W``, ``Pin = P``), or
            ``[Kh, Kw, C, M, Pin, P]`` for vector poses (``vote = pose @ W``, the pose a row).
        scale: weight of the layer normalization over the pose ``[P]``.
        bias: bias of the layer normalization ``[P]``.
        strides: strides of the window in rows and columns.
        matrix_pose: whether poses are square matrices.
        agreement_scale: factor of the agreements; ``1/√P`` if omitted.
        epsilon: constant of the layer normalization.

    Returns:
        Poses ``[N, H', W', M, P]`` and couplings ``[N, H', W', I, M]``, of the type of ``pose``. Half
        types are computed in FP32.

    Raises:
        ShapeError: a shape, type or attribute is wrong; the message names it.

    Source: Tsai, Srivastava, Goh, Salakhutdinov 2020, procedure 1 and equations 1 to 5.
    """
    name = "AttentionRouting"
    expect_shape(name, "pose", pose, ["N", "H", "W", "C", "Pin"])
    n, height, width, types, size_in = pose.shape
    if matrix_pose:
        side = matrix_side(name, size_in)
        expect_shape(name, "weight", weight, ["Kh", "Kw", types, "M", side, side])
        size = size_in
    else:
        expect_shape(name, "weight", weight, ["Kh", "Kw", types, "M", size_in, "P"])
        size = weight.shape[5]
    m = weight.shape[3]
    expect_shape(name, "scale", scale, [size])
    expect_shape(name, "bias", bias, [size])
    grid = output_grid(name, height, width, (weight.shape[0], weight.shape[1]), strides)
    if parent is None:
        parent = pose.new_zeros((n, *grid, m, size))
    expect_shape(name, "parent", parent, [n, *grid, m, size])
    expect_same_dtype(name, pose=pose, parent=parent, weight=weight, scale=scale, bias=bias)
    expect(name, epsilon > 0, "epsilon {}, wanted > 0", epsilon)
    factor = size**-0.5 if agreement_scale is None else agreement_scale
    result: tuple[Tensor, Tensor] = _op(
        pose, parent, weight, scale, bias, list(strides), matrix_pose, factor, epsilon
    )
    return result
