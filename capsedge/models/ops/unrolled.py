"""Compute the values of every iteration of the routing operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from capsedge.models.ops.dynamic import dense_votes
from capsedge.models.ops.em import acting_children, added_coordinates, gaussian_votes
from capsedge.models.ops.operator_inputs import accumulation_dtype, cut_windows, votes
from capsedge.spec.operators import OPERATORS


@dataclass(frozen=True)
class UnrolledIterations:
    """The values of ``T`` iterations, stacked after the operator's batch axis.

    Dense layers have no ``H', W'``. ``distances``, ``activations`` and ``children`` are those of EM routing.

    Attributes:
        couplings: those of the weighted sum ``[N, T, H', W', I, M]``.
        poses: the parents' poses ``[N, T, H', W', M, P]``.
        agreement: ``[N, T, H', W', I, M]``: the products of votes and the parents' poses; for EM routing, the
            responsibilities after the iteration.
        distances: Euclidean distances between votes and the parents' poses ``[N, T, H', W', I, M]``.
        activations: the parents' activations ``[N, T, H', W', M]``.
        children: activations of the children, the same in every iteration ``[N, T, H', W', I]``.
    """

    couplings: Tensor
    poses: Tensor
    agreement: Tensor
    distances: Tensor | None = None
    activations: Tensor | None = None
    children: Tensor | None = None


def unroll(operator: str, args: tuple[Any, ...]) -> UnrolledIterations:
    """All iterations of one call of a routing operator.

    Each is computed by running the operator's own definition with that many iterations.

    Args:
        operator: its type, a key of ``spec.operators.OPERATORS``.
        args: of ``torch.ops.capsedge``.
    """
    return _UNROLL[operator](operator, args)


def _agreement(v: Tensor, poses: Tensor) -> Tensor:
    """Products of votes ``[..., I, M, P]`` with poses ``[..., M, P]``."""
    return (v * poses.unsqueeze(-3)).sum(-1)


def _stacked(v: Tensor, results: list[tuple[Tensor, Tensor]]) -> UnrolledIterations:
    return UnrolledIterations(
        torch.stack([c for _, c in results], 1),
        torch.stack([pose for pose, _ in results], 1),
        torch.stack([_agreement(v, pose) for pose, _ in results], 1),
    )


def _dynamic(operator: str, args: tuple[Any, ...]) -> UnrolledIterations:
    spec = OPERATORS[operator]
    function, at = getattr(torch.ops.capsedge, spec.torch), len(spec.inputs)
    results = [function(*args[:at], t, *args[at + 1 :]) for t in range(1, args[at] + 1)]
    v = args[0] if operator == "VoteRouting" else dense_votes(args[0], args[1], args[4])
    return _stacked(v, results)


def _self_attention(operator: str, args: tuple[Any, ...]) -> UnrolledIterations:
    result = torch.ops.capsedge.self_attention_routing(*args)
    return _stacked(dense_votes(args[0], args[1]), [result])


def _attention(operator: str, args: tuple[Any, ...]) -> UnrolledIterations:
    pose, _, weight, _, _, strides, matrix_pose = args[:7]
    m, k, out = weight.shape[3:]
    children = cut_windows(pose.to(accumulation_dtype(pose)), tuple(weight.shape[:2]), strides)
    v = votes(children, weight.to(children.dtype).reshape(-1, m, k, out), k if matrix_pose else 1)
    return _stacked(v, [torch.ops.capsedge.attention_routing(*args)])


def _em(operator: str, args: tuple[Any, ...]) -> UnrolledIterations:
    spec = OPERATORS[operator]
    function, at = getattr(torch.ops.capsedge, spec.torch), len(spec.inputs)
    inputs, (iterations, strides, temperatures, *others) = args[:at], args[at:]
    # Run one more iteration for the responsibilities after the last; they do not depend on its temperature.
    schedule = [*temperatures, temperatures[-1]]
    results = [
        function(*inputs, t, strides, schedule[:t], *others) for t in range(1, iterations + 2)
    ]
    pose, a, weight, _, _, coordinates = inputs
    coordinate_addition, shared, normalized, _, epsilon, *_own = others
    added = added_coordinates(pose, coordinates, coordinate_addition)
    v, kernel, strides = gaussian_votes(pose, weight, added, strides, shared)
    acting = acting_children(a, kernel, strides, epsilon if normalized else None)
    kept = results[:-1]
    return UnrolledIterations(
        torch.stack([r for _, _, r in kept], 1),
        torch.stack([pose for pose, _, _ in kept], 1),
        torch.stack([r for _, _, r in results[1:]], 1),
        torch.stack([torch.linalg.vector_norm(v - p.unsqueeze(3), dim=-1) for p, _, _ in kept], 1),
        torch.stack([a for _, a, _ in kept], 1),
        torch.stack([acting.squeeze(-1)] * iterations, 1),
    )


_UNROLL: dict[str, Callable[[str, tuple[Any, ...]], UnrolledIterations]] = {
    "DynamicRouting": _dynamic,
    "VoteRouting": _dynamic,
    "EMRouting": _em,
    "AttentionRouting": _attention,
    "SelfAttentionRouting": _self_attention,
}
