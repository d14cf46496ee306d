"""How much a unit matters: first-order Taylor expansion, or look-ahead magnitudes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from capsedge.models import CapsuleModel
from capsedge.pruning.units import Group

CRITERIA = ("taylor", "look-ahead")
Importance = dict[str, Tensor]
"""The importance of each unit ``[units]`` by the name of the group."""


def taylor(
    model: CapsuleModel,
    found: Sequence[Group],
    losses: Iterable[Callable[[], Tensor]],
) -> Importance:
    """The squared change of the loss, to first order, if a unit's weights were zero.

    Summed over batches: ``Σ (Σ w · ∂L/∂w)²``, the inner sum over the weights that make the unit, or that read
    it where none make it. Comparable between groups, since it is in units of the loss.

    Args:
        losses: each computes the loss of one batch.

    Source: Molchanov et al. 2019, equation 8.
    """
    names = dict(model.named_parameters())
    scores = {g.name: torch.zeros(g.units, dtype=torch.float64) for g in found}
    for loss in losses:
        model.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for group in found:
                change = torch.zeros(group.units, dtype=torch.float64)
                for each in group.made or group.read:
                    parameter = names.get(each.tensor)
                    if parameter is not None and parameter.grad is not None:
                        product = (parameter * parameter.grad).double()
                        change += each.by_unit(product, group.units).sum(1)
                scores[group.name] += change.square()
    model.zero_grad()
    return scores


def look_ahead(model: CapsuleModel, found: Sequence[Group]) -> Importance:
    """The norm of the weights that make a unit times the norm of those that read it; no data.

    Divided by the group's mean, since products of different layers do not compare, and squared as the other
    criterion is.

    Source: Park et al. 2020, for whole kernels as in FastCaps (arXiv 2509.03103, LAKP).
    """
    state = model.state_dict()
    scores: Importance = {}
    for group in found:
        score = torch.ones(group.units, dtype=torch.float64)
        for side in (group.made, group.read):
            weights = [each for each in side if state[each.tensor].ndim > 1]
            if weights:
                squares = sum(
                    each.by_unit(state[each.tensor].double().square(), group.units).sum(1)
                    for each in weights
                )
                score = score * torch.as_tensor(squares)
        scores[group.name] = score / score.mean().clamp_min(1e-30) / group.units
    return scores
