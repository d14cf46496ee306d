"""The input and size of each model in the registry. Needs torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from capsedge.models import build
from capsedge.models.registry import MODELS
from capsedge.runtime import zoo

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
