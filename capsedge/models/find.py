"""Find the model for a name or a checkpoint, with its weights; and what each model takes. Needs torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.models import CapsuleModel, build, get_config
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.registry import MODELS
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
    """Whether it is the path of a checkpoint rather than the name of a model.

    A folder with the name of a model does not hide it: no checkpoint is a folder.
    """
    if str(model) in MODELS and os.path.isdir(model):
        return False
    return os.path.lexists(model) or bool(Path(model).suffix)


_FLASH = 2 << 20  # bytes of a common microcontroller
_CODE = 0.1  # of the flash, reserved for the program


@dataclass(frozen=True)
class ModelSize:
    """A model of the registry.

    Attributes:
        name: in the registry.
        parameters: trainable ones, including the decoder's.
        height, width, channels: size of the input.
        classes: default number of classes; a folder of images sets its own.
        routing: ``dynamic``, ``em`` or ``attention``.
        int8_bytes: bytes of the weights at one byte each, without the decoder's.
        fits_flash: whether these and a program fit a microcontroller with 2 MB of flash. Memory for
            activations is not considered; ``--fit`` of the C target checks it.
        trained: whether the package has weights for it.
    """

    name: str
    parameters: int
    height: int
    width: int
    channels: int
    classes: int
    routing: str
    int8_bytes: int
    fits_flash: bool
    trained: bool


def model_sizes() -> list[ModelSize]:
    """All models, smallest first; no memory is allocated for their weights."""
    found = []
    for name, config in MODELS.items():
        with torch.device("meta"):
            model = build(config)
        parameters = sum(p.numel() for p in model.parameters())
        decoder = 0 if model.decoder is None else sum(p.numel() for p in model.decoder.parameters())
        prep = config.preprocessing
        found.append(
            ModelSize(
                name,
                parameters,
                prep.height,
                prep.width,
                prep.channels,
                config.classes,
                config.routing,
                parameters - decoder,
                parameters - decoder <= (1 - _CODE) * _FLASH,
                zoo.checkpoint_of_model(name) is not None,
            )
        )
    return sorted(found, key=lambda each: each.parameters)
