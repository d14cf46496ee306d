"""The typical input of a network: what its training images are like."""

from __future__ import annotations

import torch

from capsedge.datasets import ImageSet, typical_input_from
from capsedge.errors import UsageError
from capsedge.models.config import ModelConfig
from capsedge.runtime.nothing import TypicalInput
from capsedge.training import augment
from capsedge.training.evaluation import normalize, to_input

_PAIRS = 20_000
_SEED = 1


def criterion(data: ImageSet, config: ModelConfig, pairs: str = "none") -> TypicalInput | None:
    """What the training images span, before augmentation; of pairs, the canvases and each digit alone on one.

    Args:
        pairs: as of a recipe.

    Returns:
        The criterion; None where the images are too few or blank.
    """
    if pairs == "none":
        return _measured(data, config)
    few = torch.arange(min(len(data), _PAIRS))
    canvases, _, each = augment.overlap(
        to_input(data.images[few], config),
        torch.as_tensor(data.classes)[few],
        (config.preprocessing.height, config.preprocessing.width),
        torch.Generator().manual_seed(_SEED),
        diverse=pairs == "diverse",
    )
    return _measured(normalize(torch.cat([canvases, each[:, 0]]), config), config)


def _measured(images: ImageSet | torch.Tensor, config: ModelConfig) -> TypicalInput | None:
    given = images if isinstance(images, ImageSet) else images.numpy()
    try:
        return typical_input_from(given, config.preprocessing)
    except UsageError:
        return None
