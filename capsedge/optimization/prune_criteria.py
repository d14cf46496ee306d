"""Choose the units to prune: those with the least importance per multiply-add."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from capsedge.models import CapsuleModel, build
from capsedge.models.attention_capsules import AttentionCapsules as AttentionNetwork
from capsedge.models.configs import ModelConfig
from capsedge.models.em_layers import ClampedEMCapsules, EMCapsules
from capsedge.models.layers import AttentionLayer, DynamicCapsules
from capsedge.models.segcaps import MapCapsules
from capsedge.optimization.prune_units import Group, Kept

# --- Importance: first-order Taylor expansion, or look-ahead magnitudes ---

Importance = dict[str, Tensor]
"""The importance of each unit ``[units]`` by the name of the group."""


def taylor(
    model: CapsuleModel,
    removable: Sequence[Group],
    losses: Iterable[Callable[[], Tensor]],
) -> Importance:
    """The squared change of the loss, to first order, if a unit's weights were zero.

    Summed over batches: ``Σ (Σ w · ∂L/∂w)²``, the inner sum is over the weights that compute the unit, or
    that read it if none compute it. The values are comparable between groups, since they are in units of the
    loss.

    Args:
        losses: each computes the loss of one batch.

    Source: Molchanov et al. 2019, equation 8.
    """
    names = dict(model.named_parameters())
    scores = {g.name: torch.zeros(g.units, dtype=torch.float64) for g in removable}
    for loss in losses:
        model.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for group in removable:
                change = torch.zeros(group.units, dtype=torch.float64)
                for each in group.written or group.read:
                    parameter = names.get(each.tensor)
                    if parameter is not None and parameter.grad is not None:
                        product = (parameter * parameter.grad).double()
                        change += each.by_unit(product, group.units).sum(1)
                scores[group.name] += change.square()
    model.zero_grad()
    return scores


def look_ahead(model: CapsuleModel, removable: Sequence[Group]) -> Importance:
    """The norm of the weights that compute a unit times the norm of those that read it; needs no data.

    The product is divided by the group's mean, since products of different layers are not comparable, and
    squared like the other criterion.

    Source: Park et al. 2020, for whole kernels as in FastCaps (arXiv 2509.03103, LAKP).
    """
    state = model.state_dict()
    scores: Importance = {}
    for group in removable:
        score = torch.ones(group.units, dtype=torch.float64)
        for side in (group.written, group.read):
            weights = [each for each in side if state[each.tensor].ndim > 1]
            if weights:
                squares = sum(
                    each.by_unit(state[each.tensor].double().square(), group.units).sum(1)
                    for each in weights
                )
                score = score * torch.as_tensor(squares)
        scores[group.name] = score / score.mean().clamp_min(1e-30) / group.units
    return scores


# --- Cost: multiply-adds per image, from the shapes of the layers ---

# Passes over the votes in each iteration: a weighted sum, and the update of the couplings; EM's statistics
# and densities take five products per vote element.
_AGREEMENT, _EM = 2, 5


def multiply_adds(config: ModelConfig) -> int:
    """Multiply-adds of one image: convolutions, votes and passes over them; the decoder is left out."""
    with torch.device("meta"):
        model = build(config).eval()
    return _count(model)


def trainable_parameters(model: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in model.parameters())


def _count(model: CapsuleModel) -> int:
    total = 0

    def add(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal total
        total += _of(module, inputs, output, model.config.iterations, _once(model))

    hooks = [m.register_forward_hook(add) for m in model.modules()]
    shape = model.config.preprocessing.shape
    with torch.no_grad():
        model(torch.empty(1, *shape, device="meta"))
    for hook in hooks:
        hook.remove()
    return total


def _once(model: CapsuleModel) -> bool:
    """Whether a layer is called once for all of its iterations."""
    return not isinstance(model, AttentionNetwork)


def _of(
    module: nn.Module, inputs: tuple[Any, ...], output: Any, iterations: int, once: bool
) -> int:
    if isinstance(module, nn.ConvTranspose2d):
        return int(inputs[0].numel() * module.weight[0].numel())
    if isinstance(module, MapCapsules):  # its votes are a convolution's
        passes = _AGREEMENT * module.iterations if module.iterations > 1 else 0
        return int(passes * output[1].numel() * module.layer.dim)
    if isinstance(module, nn.Conv2d):
        return int(output.numel() * module.weight[0].numel())
    if isinstance(module, nn.Linear):
        return int(output.numel() * module.in_features)
    if isinstance(module, DynamicCapsules):
        places, weight = module.grid[0] * module.grid[1], module.weight
        votes = weight[..., 0].numel()
        return places * (weight.numel() + _AGREEMENT * iterations * votes)
    if isinstance(module, EMCapsules | ClampedEMCapsules | AttentionLayer):
        places = output[0].shape[1] * output[0].shape[2]
        weight = module.weight
        rows = weight.shape[-1]  # number of rows in a matrix pose
        if isinstance(module, AttentionLayer) and not module.matrix_pose:
            rows = 1
        votes = weight[..., 0, :].numel() * rows
        each = _AGREEMENT if not once else _EM * iterations
        return int(places * (weight.numel() * rows + each * votes))
    return 0


# --- Choice ---

_LARGEST_SHARE = (
    0.75  # share of a group that may be removed at once: removal changes the importance of the rest
)
_STALE = 0.05  # share of a group removed after which costs are recomputed


def choose(
    config: ModelConfig, removable: Sequence[Group], importance: Importance, target: float
) -> Kept:
    """Choose the units to keep so that a network needs at most ``target`` multiply-adds per image.

    Repeatedly, the units with the smallest importance per multiply-add saved are removed. Groups that cost
    nothing (a decoder's) are kept. At most three quarters of a group are removed.
    """
    order = {g.name: importance[g.name].argsort(stable=True).tolist() for g in removable}
    gone = dict.fromkeys(order, 0)
    total = float(multiply_adds(config))
    while total > target:
        costs = _costs(config, removable, gone, total)
        before = total
        while total > target and total > before * (1 - _STALE):
            name = _cheapest(removable, importance, order, gone, costs)
            if name is None:
                return _kept(removable, order, gone)
            step = next(g.step for g in removable if g.name == name)
            gone[name] += step
            total -= step * costs[name]
        total = float(multiply_adds(_shrunk(config, removable, order, gone)))
    return _kept(removable, order, gone)


def _costs(
    config: ModelConfig, removable: Sequence[Group], gone: Mapping[str, int], total: float
) -> dict[str, float]:
    """Multiply-adds that one more unit of each group saves."""
    order = {g.name: list(range(g.units)) for g in removable}
    costs = {}
    for group in removable:
        less = {**gone, group.name: gone[group.name] + group.step}
        if less[group.name] < group.units:
            smaller = multiply_adds(_shrunk(config, removable, order, less))
            costs[group.name] = (total - smaller) / group.step
    return costs


def _cheapest(
    removable: Sequence[Group],
    importance: Importance,
    order: Mapping[str, list[int]],
    gone: Mapping[str, int],
    costs: Mapping[str, float],
) -> str | None:
    best: tuple[float, str] | None = None
    for group in removable:
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
    removable: Sequence[Group], order: Mapping[str, list[int]], gone: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    return {g.name: tuple(sorted(order[g.name][gone[g.name] :])) for g in removable if gone[g.name]}


def _shrunk(
    config: ModelConfig,
    removable: Sequence[Group],
    order: Mapping[str, list[int]],
    gone: Mapping[str, int],
) -> ModelConfig:
    for name, keep in _kept(removable, order, gone).items():
        config = next(g for g in removable if g.name == name).shrink(config, keep)
    return config
