"""``capsedge::Squash`` (Sabour et al. 2017) and the exponential squash (Mazzia et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from capsedge.models.ops.operator_inputs import accumulation_dtype, expect
from capsedge.models.ops.registration import register
from capsedge.spec.operators import OPERATORS

EPSILON: float = OPERATORS["Squash"].complete({})["epsilon"]
EXPONENTIAL_EPSILON: float = OPERATORS["SelfAttentionRouting"].complete({})["epsilon"]


def _define(x: Tensor, axis: int, epsilon: float) -> Tensor:
    y = x.to(accumulation_dtype(x))
    n2 = (y * y).sum(axis, keepdim=True)
    return (y * (n2 / (1 + n2) / torch.sqrt(n2 + epsilon))).to(x.dtype)


def _fake(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)  # with its strides, as in `_define`


_op = register("squash", _define, _fake, 1)


def squash(x: Tensor, axis: int = -1, epsilon: float = EPSILON) -> Tensor:
    """Keep the direction and set the length to ``n² / (1 + n²)``.

    Args:
        x: any floating-point tensor ``[..., P]``; half types are computed in FP32.
        axis: the axis of the pose.
        epsilon: added to ``n²`` under the root, so that the zero vector gives zero; positive.

    Returns:
        A tensor of the shape and type of ``x``.

    Raises:
        ShapeError: no floating-point type, no such axis, or an epsilon that is not positive.

    Source: Sabour, Frosst, Hinton 2017, equation 1.
    """
    _check("Squash", x, axis, epsilon)
    y: Tensor = _op(x, axis, epsilon)
    return y


def exponential(x: Tensor, axis: int, epsilon: float) -> Tensor:
    """``(1 - exp(-n)) x / (n + epsilon)`` in the type of ``x``, with ``n`` the norm along ``axis``."""
    n = torch.linalg.vector_norm(x, dim=axis, keepdim=True)
    y: Tensor = x * (-torch.expm1(-n) / (n + epsilon))
    return y


def exponential_squash(x: Tensor, axis: int = -1, epsilon: float = EXPONENTIAL_EPSILON) -> Tensor:
    """Keep the direction and set the length to ``1 - exp(-n)``: the squash of Efficient-CapsNet.

    It exports as standard operators; ``self_attention_routing`` contains it.

    Args:
        x: any floating-point tensor ``[..., P]``; half types are computed in FP32.
        axis: the axis of the pose.
        epsilon: added to ``n`` in the quotient, so that the zero vector gives zero; positive.

    Returns:
        A tensor of the shape and type of ``x``.

    Raises:
        ShapeError: no floating-point type, no such axis, or an epsilon that is not positive.

    Source: Mazzia, Salvetti, Chiaberge 2021.
    """
    _check("exponential_squash", x, axis, epsilon)
    return exponential(x.to(accumulation_dtype(x)), axis, epsilon).to(x.dtype)


def _check(name: str, x: Tensor, axis: int, epsilon: float) -> None:
    expect(name, x.dtype.is_floating_point, "input 'x' has type {}, wanted a float", x.dtype)
    expect(name, -x.ndim <= axis < x.ndim, "axis {} of an input with {} dimensions", axis, x.ndim)
    expect(name, epsilon > 0, "epsilon {}, wanted > 0", epsilon)
