"""Which units go: the least important for the multiply-adds that they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from capsedge.models.config import ModelConfig
from capsedge.pruning.costs import multiply_adds
from capsedge.pruning.criteria import Importance
from capsedge.pruning.units import Group, Kept

_LARGEST_SHARE = (
    0.75  # of a group may go at once: the importance of the others changes as it shrinks
)
_STALE = 0.05  # of a group gone: what the others cost is counted anew


def choose(
    config: ModelConfig, found: Sequence[Group], importance: Importance, target: float
) -> Kept:
    """The units that stay so that a network needs at most ``target`` multiply-adds per image.

    Again and again the units go whose importance per multiply-add saved is smallest; those of groups that
    cost nothing (a decoder's) stay. At most three quarters of a group go.
    """
    order = {g.name: importance[g.name].argsort(stable=True).tolist() for g in found}
    gone = dict.fromkeys(order, 0)
    total = float(multiply_adds(config))
    while total > target:
        costs = _costs(config, found, gone, total)
        before = total
        while total > target and total > before * (1 - _STALE):
            name = _cheapest(found, importance, order, gone, costs)
            if name is None:
                return _kept(found, order, gone)
            step = next(g.step for g in found if g.name == name)
            gone[name] += step
            total -= step * costs[name]
        total = float(multiply_adds(_shrunk(config, found, order, gone)))
    return _kept(found, order, gone)


def _costs(
    config: ModelConfig, found: Sequence[Group], gone: Mapping[str, int], total: float
) -> dict[str, float]:
    """Multiply-adds that one more unit of each group saves."""
    order = {g.name: list(range(g.units)) for g in found}
    costs = {}
    for group in found:
        less = {**gone, group.name: gone[group.name] + group.step}
        if less[group.name] < group.units:
            smaller = multiply_adds(_shrunk(config, found, order, less))
            costs[group.name] = (total - smaller) / group.step
    return costs


def _cheapest(
    found: Sequence[Group],
    importance: Importance,
    order: Mapping[str, list[int]],
    gone: Mapping[str, int],
    costs: Mapping[str, float],
) -> str | None:
    best: tuple[float, str] | None = None
    for group in found:
        start, end = gone[group.name], gone[group.name] + group.step
        cost = costs.get(group.name, 0.0)
        if cost <= 0 or end > group.units * _LARGEST_SHARE:
            continue
        units = order[group.name][start:end]
        price = float(importance[group.name][torch.tensor(units)].sum()) / (cost * group.step)
        if best is None or price < best[0]:
            best = price, group.name
    return None if best is None else best[1]


def _kept(
    found: Sequence[Group], order: Mapping[str, list[int]], gone: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    return {g.name: tuple(sorted(order[g.name][gone[g.name] :])) for g in found if gone[g.name]}


def _shrunk(
    config: ModelConfig,
    found: Sequence[Group],
    order: Mapping[str, list[int]],
    gone: Mapping[str, int],
) -> ModelConfig:
    for name, keep in _kept(found, order, gone).items():
        config = next(g for g in found if g.name == name).shrink(config, keep)
    return config
