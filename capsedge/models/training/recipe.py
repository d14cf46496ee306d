"""Describe how to train, read how a checkpoint was trained, and name the files of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsedge.errors import UsageError
from capsedge.models.training.train_options import PAIRS, SCHEDULES
from capsedge.runtime.files.safetensors import field_of


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        epochs, batch: number of epochs, and images per step.
        schedule: ``one-cycle`` (Adam), ``exponential`` (Adam, times 0.96 every 2000 steps: the released
            code of Sabour et al. 2017) or ``multistep`` (SGD with momentum 0.9 and weight decay 5e-4,
            a tenth at 3/7 and 5/7 of the epochs: the released code of Tsai et al. 2020).
        learning_rate: the peak.
        shift: largest random shift in pixels.
        rotate: largest random rotation in degrees.
        zoom: largest random change of size, as a fraction.
        flip: random mirroring.
        pairs: ``none``, ``overlap`` (MultiMNIST) or ``diverse`` (DiverseMultiMNIST).
        average: decay of the moving average of the weights, which is kept and evaluated; 0 keeps the weights
            themselves.
        seed: seed of initial weights, order and augmentation.
        patience: epochs without an improvement on the validation images after which training ends; 0 disables
            this. It has no effect without validation images.
        fast: whether to use BF16 convolutions and compiled routing, which is about 2.4 times faster on a
            processor with AMX.
    """

    epochs: int = 10
    batch: int = 128
    schedule: str = "one-cycle"
    learning_rate: float = 3e-3
    shift: int = 2
    rotate: float = 0.0
    zoom: float = 0.0
    flip: bool = False
    pairs: str = "none"
    average: float = 0.0
    seed: int = 1
    fast: bool = False
    patience: int = 0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise UsageError(
                f"Unknown schedule '{self.schedule}'.",
                "",
                f"Choose one of: {', '.join(SCHEDULES)}.",
            )
        if self.pairs not in PAIRS:
            raise UsageError(
                f"Unknown pairing '{self.pairs}'.", "", f"Choose one of: {', '.join(PAIRS)}."
            )
        if not 0 < self.learning_rate < math.inf:
            raise UsageError(
                f"The learning rate is {self.learning_rate:g}.",
                "It must be above 0.",
                "For example: 0.003.",
            )
        if min(self.epochs, self.batch) < 1:
            raise UsageError("Epochs and batch size must be 1 or more.")


# --- How a checkpoint was trained, by its metadata ---

TRAINING_KEY = "capsedge.training"  # key in a checkpoint's metadata


@dataclass(frozen=True)
class Training:
    """The recipe, and the results of the epoch that the weights come from."""

    recipe: Recipe
    last: Mapping[str, Any]


def training_of(path: Path | str) -> Training | None:
    """How a checkpoint was trained; None if it does not record this.

    Raises:
        UsageError, ArtefactError: it cannot be read.
    """
    return field_of(Training, path, TRAINING_KEY, "how it was trained", "Train it again.")


def recipe_of(path: Path | str) -> Recipe | None:
    """The recipe of a checkpoint; None if it states none.

    Raises:
        UsageError, ArtefactError: it cannot be read.
    """
    training = training_of(path)
    return None if training is None else training.recipe


# --- The files of a run, in its folder ---

STATE = "last.pt"  # everything needed to continue; the other files are made from it
MODEL = "model.safetensors"
HISTORY = "history.jsonl"
CONFUSION = "confusion.png"  # if the data is a folder with one sub-folder per class


def run_files(folder: Path) -> list[Path]:
    """The files that a run writes."""
    return [folder / name for name in (STATE, MODEL, HISTORY, CONFUSION)]
