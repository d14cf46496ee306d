"""``capsedge::em_routing``: EM routing, Hinton et al. 2018, procedure 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

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
from capsedge.spec.operators import EM_EPSILONS, OPERATORS

EPSILON: float = OPERATORS["EMRouting"].complete({})["epsilon"]


def _child_coordinates(height: int, width: int, side: int, like: Tensor) -> Tensor:
    """Scaled grid coordinates of every child as an addition to its votes ``[1, H, W, 1, P]``."""
    rows = (torch.arange(height, device=like.device, dtype=like.dtype) + 0.5) / height
    columns = (torch.arange(width, device=like.device, dtype=like.dtype) + 0.5) / width
    # The right-hand column of the vote matrix: row coordinate first, column coordinate second.
    element = torch.arange(side * side, device=like.device)
    first, second = ((element == k * side - 1).to(like.dtype) for k in (1, 2))
    add = rows[:, None, None] * first + columns[None, :, None] * second
    return add[None, :, :, None, :]


def _window(
    pose: Tensor, weight: Tensor, strides: Sequence[int], shared: bool
) -> tuple[tuple[int, int], Sequence[int]]:
    """Rows and columns that a parent sees, and the strides; the whole grid if the weight is shared."""
    if shared:
        return (pose.shape[1], pose.shape[2]), (1, 1)
    return (weight.shape[0], weight.shape[1]), strides


def gaussian_votes(
    pose: Tensor, weight: Tensor, added: Tensor | None, strides: Sequence[int], shared: bool
) -> tuple[Tensor, tuple[int, int], Sequence[int]]:
    """Votes ``[N, H', W', I, M, P]`` in the type of the computation, with the window and its strides.

    ``added`` is added to the votes ``[1, H, W, 1, P]``.
    """
    dtype = accumulation_dtype(pose)
    height, width, types, size = pose.shape[1:]
    side = matrix_side("EMRouting", size)
    kernel, strides = _window(pose, weight, strides, shared)
    m = weight.shape[3]
    w = weight.to(dtype)
    if shared:
        w = w.expand(height, width, types, m, side, side)
    w = w.reshape(-1, m, side, side)

    v = votes(cut_windows(pose.to(dtype), kernel, strides), w, side)
    if added is not None:
        add = added.to(dtype).expand(1, height, width, types, size)
        v = v + cut_windows(add, kernel, strides).unsqueeze(4)
    return v, kernel, strides


def acting_children(
    a: Tensor, kernel: tuple[int, int], strides: Sequence[int], epsilon: float | None
) -> Tensor:
    """Activations of every parent's children ``[N, H', W', I, 1]``; with an epsilon ``a/(a + epsilon)``."""
    acting = a.to(accumulation_dtype(a))
    if epsilon is not None:
        acting = acting / (acting + epsilon)
    return cut_windows(acting.unsqueeze(-1), kernel, strides)


def _define(
    pose: Tensor,
    a: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    coordinates: Tensor | None,
    iterations: int,
    strides: Sequence[int],
    inverse_temperatures: Sequence[float],
    coordinate_addition: bool,
    shared: bool,
    normalize_activations: bool,
    ones_first: bool,
    epsilon: float,
    variance_epsilon: float,
    activation_epsilon: float,
    cost_epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = accumulation_dtype(pose)
    added = added_coordinates(pose, coordinates, coordinate_addition)
    v, kernel, strides = gaussian_votes(pose, weight, added, strides, shared)
    m, size = v.shape[4:]
    a_child = acting_children(a, kernel, strides, epsilon if normalize_activations else None)

    responsibility = torch.full_like(v[..., 0], 1.0 if ones_first else 1.0 / m)
    for iteration in range(iterations):
        # M-step (steps 3 to 7 of the procedure).
        r = (responsibility * a_child).unsqueeze(-1)
        mass = r.sum(3)
        mean = (r * v).sum(3) / (mass + epsilon)
        deviation = (v - mean.unsqueeze(3)).square()
        variance = (r * deviation).sum(3) / (mass + epsilon)
        variance = variance + (variance_epsilon or epsilon)
        log_variance = variance.log()
        cost = size * beta_u.to(dtype) + 0.5 * log_variance.sum(-1)
        cost = cost * (mass.squeeze(-1) + cost_epsilon)
        logit = inverse_temperatures[iteration] * (beta_a.to(dtype) - cost)
        if iteration + 1 < iterations:
            # E-step, in the log domain; the constant of the Gaussian cancels in the softmax.
            log_p = -0.5 * (
                (deviation / variance.unsqueeze(3)).sum(-1) + log_variance.sum(-1).unsqueeze(3)
            )
            log_a = logsigmoid(logit)
            if activation_epsilon:
                log_a = (logit.sigmoid() + activation_epsilon).log()
            responsibility = (log_p + log_a.unsqueeze(3)).softmax(-1)
    return (
        mean.to(pose.dtype),
        logit.sigmoid().to(pose.dtype),
        responsibility.to(pose.dtype).contiguous(),
    )


def added_coordinates(
    pose: Tensor, coordinates: Tensor | None, coordinate_addition: bool
) -> Tensor | None:
    """The values added to the votes ``[1, H, W, 1, P]``; None for nothing."""
    if coordinates is not None:
        return coordinates[None, :, :, None]
    if not coordinate_addition:
        return None
    height, width, size = pose.shape[1], pose.shape[2], pose.shape[4]
    like = pose.new_empty((), dtype=accumulation_dtype(pose))
    return _child_coordinates(height, width, matrix_side("EMRouting", size), like)


def _fake(
    pose: Tensor,
    a: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    coordinates: Tensor | None,
    iterations: int,
    strides: Sequence[int],
    inverse_temperatures: Sequence[float],
    coordinate_addition: bool,
    shared: bool,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    n, height, width, types, size = pose.shape
    m = weight.shape[3]
    kernel, strides = _window(pose, weight, strides, shared)
    grid = (1, 1) if shared else output_grid("EMRouting", height, width, kernel, strides)
    return (
        pose.new_empty((n, *grid, m, size)),
        pose.new_empty((n, *grid, m)),
        pose.new_empty((n, *grid, kernel[0] * kernel[1] * types, m)),
    )


_op = register("em_routing", _define, _fake, 6)


def em_routing(
    pose: Tensor,
    a: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    inverse_temperatures: Sequence[float],
    strides: Sequence[int] = (1, 1),
    coordinate_addition: bool = False,
    shared: bool = False,
    coordinates: Tensor | None = None,
    normalize_activations: bool = False,
    ones_first: bool = False,
    epsilon: float = EPSILON,
    variance_epsilon: float = 0.0,
    activation_epsilon: float = 0.0,
    cost_epsilon: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit each parent's Gaussian to its children's votes by expectation maximisation.

    A child's responsibilities sum to one over the parents of one output position.

    Args:
        pose: matrix poses of the children ``[N, H, W, C, P]``, ``P`` a square number.
        a: activations of the children ``[N, H, W, C]``, each in [0, 1].
        weight: ``[Kh, Kw, C, M, √P, √P]``; a vote is ``pose @ W``. With ``shared``: ``Kh = Kw = 1``.
        beta_u: cost of describing a child by no parent, per parent type ``[M]``.
        beta_a: cost of activating a parent, per parent type ``[M]``.
        inverse_temperatures: λ of each iteration; their number is the number of iterations ``T``.
        strides: strides of the window in rows and columns.
        coordinate_addition: adds each child's scaled position to the right-hand column of its votes, as in
            the paper.
        shared: for class capsules: one window over the whole grid, with one matrix for all positions.
        coordinates: added to the votes of the children at each position ``[H, W, P]``: for networks that
            encode positions differently. Excludes ``coordinate_addition``.
        normalize_activations: uses ``a / (a + epsilon)`` in place of ``a``, as in networks that divide
            ``R a`` by its sum over the parents plus epsilon.
        ones_first: starts with responsibilities of one instead of ``1/M``.
        epsilon: added to the mass in each denominator and to each variance.
        variance_epsilon: added to each variance instead of ``epsilon``; 0 for none of its own.
        activation_epsilon: added to a parent's activation under its logarithm.
        cost_epsilon: added to the mass in the cost.

    Returns:
        Poses ``[N, H', W', M, P]``, activations ``[N, H', W', M]`` and the responsibilities of the last
        M-step ``[N, H', W', I, M]``, of the type of ``pose``. Half types are computed in FP32.

    Raises:
        ShapeError: a shape, type or attribute is wrong; the message names it.

    Source: Hinton, Sabour, Frosst 2018, procedure 1 and section 4.
    """
    name = "EMRouting"
    _check(name, pose, a, weight, beta_u, beta_a, None if shared else strides)
    expect(name, len(inverse_temperatures) >= 1, "no inverse temperature: one per iteration")
    paper = coordinate_addition
    expect(name, not paper or pose.shape[4] >= 4, "coordinate addition needs poses of 2x2 or more")
    expect(name, epsilon > 0, "epsilon {}, wanted > 0", epsilon)
    own = (variance_epsilon, activation_epsilon, cost_epsilon)
    for label, value in zip(EM_EPSILONS, own, strict=True):
        expect(name, value >= 0, "{} {}, wanted >= 0", label, value)
    if coordinates is not None:
        expect(name, not paper, "both 'coordinates' and 'coordinate_addition' are given")
        expect_shape(name, "coordinates", coordinates, [*pose.shape[1:3], pose.shape[4]])
        expect_same_dtype(name, pose=pose, coordinates=coordinates)
    result: tuple[Tensor, Tensor, Tensor] = _op(
        pose, a, weight, beta_u, beta_a, coordinates, len(inverse_temperatures), list(strides),
        list(inverse_temperatures), paper, shared, normalize_activations, ones_first, epsilon,
        *own,
    )  # fmt: skip
    return result


def _check(
    name: str,
    pose: Tensor,
    a: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    strides: Sequence[int] | None,
) -> None:
    """Raise unless the inputs fit each other; a weight shared over the grid allows no strides."""
    expect_shape(name, "pose", pose, ["N", "H", "W", "C", "P"])
    height, width, types, size = pose.shape[1:]
    side = matrix_side(name, size)
    expect_shape(name, "a", a, list(pose.shape[:4]))
    expect_shape(name, "weight", weight, ["Kh", "Kw", types, "M", side, side])
    m = weight.shape[3]
    expect_shape(name, "beta_u", beta_u, [m])
    expect_shape(name, "beta_a", beta_a, [m])
    expect_same_dtype(name, pose=pose, a=a, weight=weight, beta_u=beta_u, beta_a=beta_a)
    if strides is None:
        expect(name, tuple(weight.shape[:2]) == (1, 1), "shared weights need a 1x1 window")
    else:
        output_grid(name, height, width, (weight.shape[0], weight.shape[1]), strides)
