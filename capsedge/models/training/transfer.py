"""Start training from a network that was trained for other classes or on images of another size."""

from __future__ import annotations

import torch
from torch import Tensor

from capsedge.errors import UsageError
from capsedge.models import CapsuleModel, build
from capsedge.models.configs import ModelConfig


def shared_weights(config: ModelConfig, initial: CapsuleModel) -> dict[str, Tensor]:
    """The weights of a trained network that fit another network of the same architecture, by name.

    The class capsules' weights fit if the number of classes is the same and, in most architectures, the
    images have the same size.

    Raises:
        UsageError: the networks differ in more than classes, task and preprocessing.
    """
    alike = initial.config.replace(
        class_names=config.class_names, preprocessing=config.preprocessing, task=config.task
    )
    if alike != config:
        raise UsageError(
            "The initial checkpoint has a different configuration.",
            "Only classes and images may differ.",
            "Set its model and iterations, or leave out --model.",
        )
    with torch.device("meta"):
        wanted = {name: value.shape for name, value in build(config).state_dict().items()}
    weights = initial.state_dict()
    return {name: value for name, value in weights.items() if wanted.get(name) == value.shape}
