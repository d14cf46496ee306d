"""The losses of the three papers. Scores are ``[N, J]``, targets are 0 or 1 ``[N, J]``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, relu


def margin_loss(lengths: Tensor, targets: Tensor) -> Tensor:
    """Margin loss with m+ = 0.9, m- = 0.1, λ = 0.5, mean over the batch.

    Source: Sabour, Frosst, Hinton 2017, equation 4.
    """
    present = targets * relu(0.9 - lengths).square()
    absent = 0.5 * (1 - targets) * relu(lengths - 0.1).square()
    return (present + absent).sum(1).mean()


def spread_loss(activations: Tensor, targets: Tensor, margin: float) -> Tensor:
    """Spread loss of the one true class against each other class, mean over the batch.

    Args:
        activations: ``[N, J]`` in [0, 1].
        targets: one-hot ``[N, J]``.
        margin: grows from 0.2 to 0.9 in training.

    Source: Hinton, Sabour, Frosst 2018, equation 3.
    """
    true = (activations * targets).sum(1, keepdim=True)
    gap = relu(margin - (true - activations)).square()
    return (gap * (1 - targets)).sum(1).mean()


def cross_entropy_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy over the classes for one label, per class for several (Tsai et al. 2020)."""
    if bool((targets.sum(1) == 1).all()):
        return -(log_softmax(logits, 1) * targets).sum(1).mean()
    return binary_cross_entropy_with_logits(logits, targets)


def reconstruction_loss(pictures: Tensor, images: Tensor) -> Tensor:
    """Sum of squared differences per image, mean over the batch, to be scaled by 0.0005.

    Source: Sabour, Frosst, Hinton 2017, section 4.1.
    """
    return torch.square(pictures - images).flatten(1).sum(1).mean()
