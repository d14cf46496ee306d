"""Find the model for a name or a checkpoint, with its weights. Needs torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.models import CapsuleModel, build, get_config
from capsedge.models.checkpoint import load_checkpoint
from capsedge.runtime import zoo
from capsedge.spec.vocabularies import ZOO_ROUTINGS


@dataclass(frozen=True)
class NamedModel:
    """A model and the source of its weights.

    Attributes:
        model: a model in evaluation mode.
        name: its name in the registry, or the checkpoint's file name without its suffix.
        checkpoint: the file of its weights; None for random initial weights.
    """

    model: CapsuleModel
    name: str
    checkpoint: Path | None

    @property
    def trained(self) -> bool:
        """Whether the weights come from a checkpoint."""
        return self.checkpoint is not None


def find_model(model: str | Path | None = None, routing: str | None = None) -> NamedModel:
    """Find a model by its name in the registry, or by its checkpoint.

    Args:
        model: a name in the registry (with trained weights if the package has them, otherwise random initial
            ones); or a checkpoint, ``.safetensors`` or ``.pt``.
        routing: selects one of the zoo's models if none is named (``dynamic`` by default); otherwise the
            routing that the model must have.

    Raises:
        UsageError: the arguments contradict each other, or name nothing.
        EnvironmentProblem: the zoo's checkpoint is not in this installation.
        ArtefactError: the checkpoint is damaged.
    """
    name, checkpoint = None, None
    if model is None:
        checkpoint = zoo.checkpoint_of_routing(routing or ZOO_ROUTINGS[0])
        if not checkpoint.is_file():
            raise EnvironmentProblem(
                "The trained models are not in this installation.",
                f"{checkpoint} is missing.",
                "Install capsedge again, or pass a checkpoint with --checkpoint.",
            )
    elif is_file(model):
        checkpoint = Path(model)
    else:
        name = str(model)
        config = get_config(name)
        checkpoint = zoo.checkpoint_of_model(name)
    if checkpoint is not None:
        network = load_checkpoint(checkpoint)
        config, name = network.config, name or checkpoint.stem
    else:
        assert name is not None
        torch.manual_seed(0)
        network = build(config).eval()
    if routing is not None and config.routing != routing:
        raise UsageError(
            f"{name} routes by {config.routing}, not by {routing}.",
            "The routing is part of the trained weights.",
            "Leave out --routing, or choose another model.",
        )
    return NamedModel(network, name, checkpoint)


def trained_checkpoint(name: str) -> Path:
    """The checkpoint of a model whose trained weights come with the package.

    Raises:
        UsageError: there is no such model, or it has no trained weights.
    """
    get_config(name)
    path = zoo.checkpoint_of_model(name)
    if path is None:
        raise UsageError(
            f"The zoo has no trained weights for '{name}'.",
            f"These come with trained weights: {', '.join(zoo.MODELS)}.",
            "Pass the checkpoint that the file was exported from with --checkpoint.",
        )
    return path


def find_checkpoint_of(model: str) -> Path:
    """The checkpoint for a path or a name from the zoo.

    Raises:
        UsageError: there is neither such a file nor such a model with weights.
    """
    return Path(model) if is_file(model) else trained_checkpoint(model)


def is_file(model: str | Path) -> bool:
    """Whether it is the path of a checkpoint rather than the name of a model."""
    return os.path.lexists(model) or bool(Path(model).suffix)
