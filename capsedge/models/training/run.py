"""A training run from names: model, data set, folder. ``capsedge train``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from capsedge.datasets import ImageSet, read_split
from capsedge.errors import UsageError
from capsedge.models import get_config
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.configs import ModelConfig
from capsedge.models.training.recipe import Recipe
from capsedge.models.training.run_files import MODEL
from capsedge.models.training.train import Progress, train
from capsedge.runtime.files import reading


def train_model(
    model: str,
    data: Path,
    folder: Path,
    recipe: Recipe,
    *,
    iterations: int | None = None,
    init: Path | None = None,
    limit: int | None = None,
    threads: int | None = None,
    resume: bool = False,
    log: Callable[[str], None] = lambda _: None,
    progress: Progress | None = None,
    epoch_done: Callable[[dict[str, Any]], None] | None = None,
) -> Path:
    """Train a model of the registry on a data set.

    Args:
        model: name of the registry, or a checkpoint whose shape is trained anew, from fresh weights.
        data: a data set as `read_split` takes it; without test images, accuracy is measured on the training
            images, and called so.
        folder: of the run: checkpoint, history, state.
        recipe: how to train.
        iterations: of routing; the model's own by default.
        init: checkpoint whose weights the run begins with.
        limit: only the first so many images of each split.
        threads: of torch; its own choice by default.
        resume: go on with the run that the folder holds.
        log: told in words what is trained on.
        progress, epoch_done: as `train` takes them.

    Returns:
        The checkpoint.

    Raises:
        UsageError: a name, the data or the folder is wrong; as `train`.
        ArtefactError: a checkpoint or the run to resume is damaged.
        EnvironmentProblem: the disk is full; the epochs before are kept.
    """
    config = _shape(model)
    if iterations is not None:
        config = config.replace(iterations=iterations)
    initial = load_checkpoint(init) if init else None
    if threads:
        torch.set_num_threads(threads)
    training = read_split(data, "train", config.preprocessing, limit)
    test = _held_out(data, config, limit, log)
    which = "test" if test is None else test.split
    log(f"{model}: {len(training)} training images, {len(test) if test else 0} {which} images")
    train(
        config,
        recipe,
        training,
        test,
        folder,
        initial=initial,
        resume=resume,
        progress=progress,
        epoch_done=epoch_done,
    )
    return folder / MODEL


def _held_out(
    data: Path, config: ModelConfig, limit: int | None, log: Callable[[str], None]
) -> ImageSet | None:
    """The images to test on; None where the data has none apart from the training images."""
    try:
        found = read_split(data, "test", config.preprocessing, limit)
    except UsageError as error:
        why = error.what
    else:
        if found.split:
            return found
        why = f"{data} is not divided into train and test."
    log(f"no test images: {why} Accuracy is measured on the training images.")
    return None


def _shape(model: str) -> ModelConfig:
    """The configuration of a model of the registry, or that of a checkpoint."""
    if reading.path_kind(Path(model)) == reading.FILE:
        return load_checkpoint(Path(model)).config
    return get_config(model)
