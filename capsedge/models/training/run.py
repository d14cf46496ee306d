"""A training run from names: model, data set, folder. ``capsedge train``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from capsedge.datasets import ImageSet, class_names, colour_of, read_split
from capsedge.datasets.class_folders import classes_of
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.models import CapsuleModel, get_config
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.configs import ModelConfig
from capsedge.models.training import user_images
from capsedge.models.training.confusion import by_class, confusion, draw
from capsedge.models.training.evaluate import predict_all
from capsedge.models.training.recipe import Recipe
from capsedge.models.training.run_files import CONFUSION, MODEL
from capsedge.models.training.train import Progress, train
from capsedge.runtime.files import reading


def train_model(
    model: str | None,
    data: Path,
    folder: Path,
    recipe: Recipe,
    *,
    size: int | None = None,
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
        model: name of the registry, or a checkpoint whose shape is trained anew, from fresh weights; None
            for a small one that fits the images of a folder with one sub-folder per class.
        data: a data set as `read_split` takes it. The classes, the colours, the mean and the deviation of a
            folder with one sub-folder per class become the model's, unless its classes are. Without test
            images, about 15 % of each of its classes are held out; of other data, accuracy is measured on the
            training images, and called so.
        folder: of the run: checkpoint, history, state.
        recipe: how to train.
        size: rows and columns of the input; the model's own by default.
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
    model = model or default_model(data)
    given = _shape(model)
    config = user_images.fitted(given, data, size)
    if iterations is not None:
        config = config.replace(iterations=iterations)
    initial = load_checkpoint(init) if init else None
    if threads:
        torch.set_num_threads(threads)
    training = read_split(data, "train", config.preprocessing, limit)
    own = config.preprocessing != given.preprocessing or config.class_names != given.class_names
    if own:
        user_images.check_classes(config.class_names, training, log)
    test = _held_out(data, config, limit, log)
    if class_names(data):
        training, test = _divided(training, test, recipe.seed, log)
    if own:
        config = user_images.normalized(config, training.images)
        log(_described(config))
        if recipe.batch > len(training):
            recipe = replace(recipe, batch=max(1, len(training) // 8))
            log(f"batches of {recipe.batch}: there are {len(training)} training images")
    which = "test" if test is None else test.split
    log(f"{model}: {len(training)} training images, {len(test) if test else 0} {which} images")
    trained = train(
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
    if own and test is not None and recipe.pairs == "none":
        _report(trained, test, folder, log)
    return folder / MODEL


def _report(model: CapsuleModel, test: ImageSet, folder: Path, log: Callable[[str], None]) -> None:
    """Say how many images of each class are classified correctly, and draw what they are taken for."""
    names = model.config.class_names
    found = predict_all(model, test).argmax(1).numpy()
    matrix = confusion(test.classes, found, len(names))
    for line in by_class(names, matrix):
        log(line)
    try:
        draw(names, matrix, folder / CONFUSION)
    except EnvironmentProblem as problem:
        log(f"no confusion matrix: {problem.what} {problem.fix}")
    else:
        log(f"confusion matrix: {folder / CONFUSION}")


def _held_out(
    data: Path, config: ModelConfig, limit: int | None, log: Callable[[str], None]
) -> ImageSet | None:
    """The images to test on; None where the data has none apart from the training images."""
    if class_names(data):
        divided = classes_of(data, "test")[1]
        return read_split(data, "test", config.preprocessing, limit) if divided else None
    try:
        found = read_split(data, "test", config.preprocessing, limit)
    except UsageError as error:
        why = error.what
    else:
        if found.split:
            return found
        why = f"{data} is not divided into training and test images."
    log(f"no test images: {why} Accuracy is measured on the training images.")
    return None


def _divided(
    training: ImageSet, test: ImageSet | None, seed: int, log: Callable[[str], None]
) -> tuple[ImageSet, ImageSet]:
    """Images of a folder to train and to test on, none of them in both."""
    if test is None:
        training, test = user_images.split(training, seed)
        share = f"about {user_images.TEST_SHARE:.0%} of each class, drawn by the seed {seed}"
        log(f"no test images: {len(test)} images are held out, {share}")
        return training, test
    kept = test.without(training)
    if left_out := len(test) - len(kept):
        log(f"{left_out} {test.split} images are left out: they are training images too")
    return training, kept


def default_model(data: Path) -> str:
    """A small network for the images of a folder with one sub-folder per class.

    Raises:
        UsageError: it is no such folder.
    """
    if not class_names(data):
        raise UsageError(
            f"{data} does not determine which model to train.",
            "A model is chosen only for a folder with one sub-folder of images per class.",
            "Choose one with --model; an unknown name prints the list.",
        )
    return user_images.DEFAULT_COLOUR if colour_of(data) else user_images.DEFAULT_GREY


def _described(config: ModelConfig) -> str:
    """What was taken from the images."""
    prep = config.preprocessing
    kind = "grey" if prep.channels == 1 else "colour"
    shown = ", ".join(config.class_names[:10]) + (", ..." if config.classes > 10 else "")
    return f"{config.classes} classes ({shown}); {kind}, resized to {prep.height}x{prep.width}"


def _shape(model: str) -> ModelConfig:
    """The configuration of a model of the registry, or that of a checkpoint."""
    if reading.path_kind(Path(model)) == reading.FILE:
        return load_checkpoint(Path(model)).config
    return get_config(model)
