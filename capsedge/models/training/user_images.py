"""Train on folders of your own images: fit a network to their classes, and hold out test images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import ImageSet, class_names, colour_of, read_split, side_of
from capsedge.errors import UsageError
from capsedge.models.configs import ModelConfig
from capsedge.runtime.metadata.metadata import Preprocessing

SMALL_GREY, OTHER = "digits-attention", "photos"  # default models
SMALL, LARGER = 48, 64  # pixels: images with a shorter side count as small; input size for others
TEST_SHARE, VALIDATION_SHARE = 0.15, 0.1
PATIENCE = 5  # epochs without improvement before training ends, at least
FEW = 10  # a class with fewer images is reported
_ANY = Preprocessing(28, 28, 1)  # where the size does not matter
_CHUNK = 4096  # images whose values are summed at once


def default_model(data: Path) -> tuple[str, int | None]:
    """A small network for the images of a folder with one sub-folder per class.

    Returns:
        The name of the model, and the size of its input; None for the model's own.

    Raises:
        UsageError: it is not such a folder, or holds nothing to train on.
    """
    if not class_names(data):
        read_split(data, "train", _ANY, 1)  # data that no model can be trained on are refused first
        raise UsageError(
            f"{data} does not determine which model to train.",
            "A model is chosen only for a folder with one sub-folder of images per class.",
            "Choose one of `capsedge train --list` with --model.",
        )
    if side_of(data) >= SMALL:
        return OTHER, LARGER
    return OTHER if colour_of(data) else SMALL_GREY, None


def fitted(config: ModelConfig, data: Path, size: int | None) -> ModelConfig:
    """The configuration with the classes and colours of a folder's images.

    A model keeps its own if the data has the same classes, or no folders per class.

    Args:
        size: rows and columns of the input; the model's own by default.

    Raises:
        UsageError: there is one class only, the model cannot take this size, or the data cannot be resized.
    """
    names = class_names(data)
    if not names and size is not None:
        raise UsageError(
            f"--size does not apply to {data}.",
            "Only folders with one sub-folder of images per class are resized.",
            "Leave it out.",
        )
    if not names or (names == config.class_names and size is None):
        return config
    if len(names) == 1:
        raise UsageError(
            f"{data} has one class: {names[0]}.",
            "A classifier needs at least two.",
            "Add a sub-folder with images that do not belong to the class.",
        )
    prep = replace(
        config.preprocessing,
        height=size or config.preprocessing.height,
        width=size or config.preprocessing.width,
        channels=3 if colour_of(data) else 1,
        mean=(0.0,),
        std=(1.0,),
        per_image="",
    )
    return config.with_classes(names).replace(preprocessing=prep)


def normalized(config: ModelConfig, images: NDArray[np.uint8]) -> ModelConfig:
    """The configuration with the mean and the standard deviation of the images' channels ``[N, H, W, C]``."""
    scale = config.preprocessing.scale
    total = np.zeros((2, images.shape[3]))
    for start in range(0, len(images), _CHUNK):
        values = images[start : start + _CHUNK].astype(np.float64) * scale
        total += values.sum((0, 1, 2)), np.square(values).sum((0, 1, 2))
    mean, square = total / (images.size / images.shape[3])
    std = np.sqrt(np.maximum(square - mean**2, 1e-6))
    rounded = [tuple(round(float(v), 4) for v in each) for each in (mean, std)]
    return config.replace(
        preprocessing=replace(config.preprocessing, mean=rounded[0], std=rounded[1])
    )


def normalized_as(config: ModelConfig, trained: ModelConfig) -> ModelConfig:
    """The configuration with the mean and standard deviation of a trained network."""
    mean, std = trained.preprocessing.mean, trained.preprocessing.std
    return config.replace(preprocessing=replace(config.preprocessing, mean=mean, std=std))


def check_class_balance(
    names: Sequence[str], training: ImageSet, log: Callable[[str], None]
) -> None:
    """Report classes with few images, and how unbalanced the classes are.

    Raises:
        UsageError: a class has no images.
    """
    counts = np.bincount(training.classes, minlength=len(names))
    if empty := [name for name, count in zip(names, counts, strict=True) if count == 0]:
        raise UsageError(
            f"{training.source} has no training images of {', '.join(empty[:5])}.",
            "A network cannot learn a class without images.",
            "Add images, or remove the folder.",
        )
    few = [f"{name} ({n})" for name, n in zip(names, counts, strict=True) if n < FEW]
    if few:
        more = f" and {len(few) - 10} more classes" if len(few) > 10 else ""
        log(f"warning: fewer than {FEW} training images: {', '.join(few[:10])}{more}")
    if counts.max() >= 10 * counts.min():
        most, least = names[int(counts.argmax())], names[int(counts.argmin())]
        log(
            f"warning: unbalanced classes: {counts.max()} images of {most}, {counts.min()} of {least}"
        )
