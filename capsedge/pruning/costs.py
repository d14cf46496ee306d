"""Multiply-adds of a network, counted per image from the shapes of its layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from capsedge.models import CapsuleModel, build
from capsedge.models.attention_capsules import AttentionCapsules as AttentionNetwork
from capsedge.models.clamped_em import ClampedEMCapsules
from capsedge.models.config import ModelConfig
from capsedge.models.layers import AttentionCapsules, DynamicCapsules, EMCapsules

# Passes over the votes that each iteration makes: a weighted sum, and what updates the couplings; EM's
# statistics and densities are five products of each vote's elements.
_AGREEMENT, _EM = 2, 5


def multiply_adds(config: ModelConfig) -> int:
    """Multiply-adds of one image: convolutions, votes and passes over them; the decoder is left out."""
    with torch.device("meta"):
        model = build(config).eval()
    return _count(model)


def parameters(model: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in model.parameters())


def _count(model: CapsuleModel) -> int:
    total = 0

    def add(module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        nonlocal total
        total += _of(module, made, model.config.iterations, _once(model))

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


def _of(module: nn.Module, made: Any, iterations: int, once: bool) -> int:
    if isinstance(module, nn.Conv2d):
        return int(made.numel() * module.weight[0].numel())
    if isinstance(module, nn.Linear):
        return int(made.numel() * module.in_features)
    if isinstance(module, DynamicCapsules):
        places, weight = module.grid[0] * module.grid[1], module.weight
        votes = weight[..., 0].numel()
        return places * (weight.numel() + _AGREEMENT * iterations * votes)
    if isinstance(module, EMCapsules | ClampedEMCapsules | AttentionCapsules):
        places = made[0].shape[1] * made[0].shape[2]
        weight = module.weight
        rows = weight.shape[-1]  # of a matrix pose
        if isinstance(module, AttentionCapsules) and not module.matrix_pose:
            rows = 1
        votes = weight[..., 0, :].numel() * rows
        each = _AGREEMENT if not once else _EM * iterations
        return int(places * (weight.numel() * rows + each * votes))
    return 0
