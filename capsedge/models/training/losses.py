"""The loss of a training step: those of the papers, on augmented images, in fast arithmetic if asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, relu
from torch.overrides import TorchFunctionMode

from capsedge.errors import EnvironmentProblem
from capsedge.models import CapsuleModel, CapsuleOutput
from capsedge.models.ops.registration import compiled
from capsedge.models.training import augment
from capsedge.models.training.evaluate import crop_or_pad_to_input, normalize_images
from capsedge.models.training.recipe import Recipe

# --- Losses of the three papers: scores ``[N, J]``, targets 0 or 1 ``[N, J]`` ---


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


# --- ``Recipe.fast``: convolutions in BF16, compiled routing ---


class BFloat16Convolutions(TorchFunctionMode):
    """Within this context, ``conv2d`` multiplies in BF16 and sums in FP32; everything else stays in FP32.

    Weights, gradients and the optimizer's state stay in FP32, as with autocast, and so do the capsules:
    lengths and couplings would lose the digits that agreement needs.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """See ``TorchFunctionMode``."""
        if function is torch.conv2d or function is torch.nn.functional.conv2d:
            named = {name: _half(value) for name, value in (kwargs or {}).items()}
            return function(*map(_half, args), **named).float()
        return function(*args, **(kwargs or {}))


def _half(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    if x.ndim == 4:  # the CPU's BF16 convolutions take channels-last input without a copy
        return x.to(torch.bfloat16, memory_format=torch.channels_last)
    return x.to(torch.bfloat16)


@contextmanager
def fast_math(on: bool) -> Iterator[None]:
    """Within this context, training steps use the fast arithmetic; nothing changes unless ``on``.

    On a GPU, votes are also computed in TF32.

    Raises:
        EnvironmentProblem: there is no C++ compiler.
    """
    if not on:
        yield
        return
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise EnvironmentProblem(
            "No C++ compiler was found.",
            "--fast compiles the routing for this machine.",
            "Install g++, or leave out --fast.",
        )
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
    try:
        with BFloat16Convolutions(), compiled():
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


# --- A step ---


def _loss(model: CapsuleModel, out: CapsuleOutput, targets: Tensor, progress: float) -> Tensor:
    if model.score_name == "logits":
        return cross_entropy_loss(out.scores, targets)
    if model.config.routing == "em":
        return spread_loss(out.scores, targets, min(0.2 + 0.7 * 2 * progress, 0.9))
    return margin_loss(out.scores, targets)


def batch_loss(
    model: CapsuleModel,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    rng: torch.Generator,
    progress: float,
) -> Tensor:
    config = model.config
    if recipe.pairs == "none":
        x = crop_or_pad_to_input(images, config)
        if images.shape[2] > x.shape[2] and not (recipe.rotate or recipe.zoom):
            # Crop from a larger image, so that shifts bring in real pixels instead of zeros.
            x = crop_or_pad_to_input(augment.shift(images, recipe.shift, rng), config)
        elif recipe.rotate or recipe.zoom:
            x = augment.affine(
                x,
                (x.shape[2], x.shape[3]),
                rng,
                shift_limit=recipe.shift,
                degrees=recipe.rotate,
                scales=(1 - recipe.zoom, 1 + recipe.zoom),
            )
        else:
            x = augment.shift(x, recipe.shift, rng)
        pictures, owners = x.unsqueeze(1), labels.unsqueeze(1)
    else:
        size = (config.preprocessing.height, config.preprocessing.width)
        x, owners, pictures = augment.overlap(
            images, labels, size, rng, diverse=recipe.pairs == "diverse"
        )
    if recipe.flip:
        x = augment.flip(x, rng)
        pictures = x.unsqueeze(1)
    owners = owners.to(x.device)
    targets = torch.zeros(len(x), config.classes, device=x.device).scatter_(1, owners, 1.0)
    out = model(normalize_images(x, config))
    loss = _loss(model, out, targets, progress)
    if model.decoder is not None:
        for k in range(owners.shape[1]):
            decoded = model.reconstruct_class(out.poses, owners[:, k])
            loss = loss + 0.0005 * reconstruction_loss(decoded, pictures[:, k])
    return loss
