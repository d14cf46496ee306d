"""Declare the options of ``train``, for Python and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capsedge.options import (
    LARGEST_COUNT,
    LARGEST_RATE,
    LARGEST_SEED,
    LEAST_RATE,
    MOST_EPOCHS,
    Options,
    option,
)
from capsedge.spec import limits

LARGEST_SIDE = 4096

SCHEDULES = ("one-cycle", "exponential", "multistep")
PAIRS = ("none", "overlap", "diverse")
_RECIPE, _AUGMENTATION = "Recipe", "Augmentation"


# What `--recipe` sets: fields by the name of a paper, or one by one.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "sabour": {"schedule": "exponential", "learning_rate": 1e-3},
    "tsai": {"schedule": "multistep", "learning_rate": 0.1, "average": 0.0},
}
RECIPE_FIELDS = ("schedule", "pairs", "average", "patience")


@dataclass(frozen=True)
class TrainOptions(Options):
    """The model that `capsedge.train` trains, and how it is trained."""

    model: str | None = option(
        None,
        "Name of a model, such as digits-em (see --list), or a checkpoint whose architecture is trained from "
        "random weights. By default, for a folder with one sub-folder per class, a small model for its "
        "images.",
        path="reads or name",
        complete="models",
    )
    size: int | None = option(
        None,
        "Height and width to which images of a folder are resized; by default the model's.",
        min=1,
        max=LARGEST_SIDE,
    )
    iterations: int | None = option(
        None,
        "Routing iterations; by default the model's own.",
        "--iters",
        min=1,
        max=limits.ITERATIONS,
        panel=_RECIPE,
    )
    epochs: int = option(
        10, "Passes over the training images.", min=1, max=MOST_EPOCHS, panel=_RECIPE
    )
    batch: int = option(128, "Images per step.", min=1, max=LARGEST_COUNT, panel=_RECIPE)
    learning_rate: float | None = option(
        None,
        "Peak learning rate; by default 0.003, or that of --recipe.",
        "--lr",
        min=LEAST_RATE,
        max=LARGEST_RATE,
        panel=_RECIPE,
    )
    schedule: str = option(
        "one-cycle",
        "one-cycle (Adam), exponential (Adam, Sabour et al.) or multistep (SGD, Tsai et al.).",
        choices=SCHEDULES,
        python_only=True,
    )
    shift: int = option(
        2,
        "Random shift in pixels, less than the side of an image.",
        min=0,
        max=LARGEST_SIDE,
        panel=_AUGMENTATION,
    )
    rotate: float = option(0.0, "Random rotation in degrees.", min=0, max=180, panel=_AUGMENTATION)
    zoom: float = option(
        0.0, "Random change of size, as a fraction.", min=0, max=0.9, panel=_AUGMENTATION
    )
    flip: bool = option(False, "Random mirroring.", "--flip", panel=_AUGMENTATION)
    pairs: str = option(
        "none",
        "none, overlap (MultiMNIST) or diverse (DiverseMultiMNIST).",
        choices=PAIRS,
        python_only=True,
    )
    average: float = option(
        0.999,
        "Decay of the moving average of the weights, which is kept; 0 keeps the weights as they are.",
        min=0,
        max=0.99999,
        python_only=True,
    )
    seed: int = option(
        1, "Seed of weights, order and augmentation.", min=0, max=LARGEST_SEED, panel=_RECIPE
    )
    fast: bool = option(
        False,
        "Convolutions in BF16, compiled routing; for GPUs and processors with AMX. Needs g++.",
        "--fast",
    )
    init: str | None = option(
        None,
        "Start from the weights of a model of the zoo, such as photos, or of a checkpoint, and train that "
        "model. For other classes, the class capsules start at random.",
        path="reads or name",
        panel=_RECIPE,
        complete="trained",
    )
    limit: int | None = option(
        None,
        "Only N images of each split: the first, or of class folders evenly spaced ones.",
        min=1,
        max=LARGEST_COUNT,
    )
    threads: int | None = option(
        None,
        "Threads for PyTorch; by default its own choice.",
        min=1,
        max=limits.RUN_THREADS,
    )
    patience: int | None = option(
        None,
        "End when so many epochs were not more accurate on the validation images; by default half of the "
        "epochs, but at least 5; 0 never.",
        min=0,
        max=MOST_EPOCHS,
        python_only=True,
    )
    device: str = option(
        "cpu",
        "Where the network is computed: cpu, or cuda for a GPU.",
        complete="devices",
    )
    resume: bool = option(False, "Continue the run in the output folder.", "--resume")
