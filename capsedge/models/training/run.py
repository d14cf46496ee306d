"""Run a training from the names of model, data set and folder (``capsedge train``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from capsedge.datasets import ImageSet, class_names, read_split
from capsedge.datasets.class_folders import classes_of
from capsedge.datasets.image_set import divided, holdout_rule
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.models import CapsuleModel, build, get_config
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.configs import ModelConfig
from capsedge.models.find import find_checkpoint_of
from capsedge.models.training import mask_training, user_images
from capsedge.models.training.evaluate import by_class, confusion, draw_confusion, predict_all
from capsedge.models.training.recipe import CONFUSION, HISTORY, MODEL, Recipe, training_of
from capsedge.models.training.state import transferable_weights
from capsedge.models.training.train import train as train_epochs
from capsedge.models.training.train_options import TrainOptions
from capsedge.options import takes_options
from capsedge.runtime.files import reading
from capsedge.runtime.metadata.origin import TrainingSplit
from capsedge.runtime.progress import Progress, silent
from capsedge.spec.vocabularies import SEGMENTATION

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import TrainKeywords


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
        checkpoint: the file with the weights that the run kept.
        test_accuracy: share of the test images that it classifies correctly; None if there are no test
            images, or if they were measured after every epoch.
        test_images: their number.
        test_data: which images they are, in words.
        test_dice: of a segmentation, the mean Dice on the test images in place of the accuracy; else None.
    """

    checkpoint: Path
    test_accuracy: float | None = None
    test_images: int = 0
    test_data: str = ""
    test_dice: float | None = None


@takes_options(TrainOptions)
def train(
    data: str | Path,
    folder: str | Path,
    options: TrainOptions = TrainOptions(),
    *,
    log: Callable[[str], None] = lambda _: None,
    progress: Progress = silent,
    epoch_done: Callable[[dict[str, Any]], None] | None = None,
    **_keywords: Unpack[TrainKeywords],
) -> Trained:
    """Train a model of the registry on a data set.

    Args:
        data: a data set as `read_split` takes it; for a model that segments images, a folder with ``images``
            and ``masks``. A folder with one sub-folder per class determines the
            model's classes, colours, mean and deviation, unless the model already has these classes. If the
            data has no test images, about 15 % of each class are held out; if it has no validation images
            either, or is a folder, 10 % of the rest. The validation images choose the epoch that is kept; the
            test images are not used for any choice.
        folder: the folder for the checkpoint, history and state.
        log: called with a description of the training data.
        progress: called after every step with the epoch, the step, the number of steps per epoch, and the
            loss.
        epoch_done: called after every epoch with its line of the history.

    Returns:
        The checkpoint of the epoch that is kept, and its accuracy on the test images.

    Raises:
        UsageError: a name, the data or the folder is wrong.
        ArtefactError: a checkpoint or the run to resume is damaged.
        EnvironmentProblem: the disk is full; earlier epochs are kept.

    Example:
        >>> trained = capsedge.train("flowers/", "run/", epochs=3)
        >>> trained.checkpoint, trained.test_accuracy
    """
    job = _job(Path(data), Path(folder), options)
    sets = _read(job, log)
    job = _fitted(job, sets, log)
    log(f"{job.model}: {sets.counted}")
    if job.initial is not None and not options.resume:
        log(_started(job.config, job.initial))
    model = train_epochs(
        job.config,
        job.recipe,
        sets.training,
        sets.measured,
        job.folder,
        initial=job.initial,
        resume=options.resume,
        training_split=sets.rule,
        device=options.device,
        progress=progress,
        epoch_done=epoch_done,
    )
    return _finished(job, sets, model, log)


# --- 1. The job ---


@dataclass(frozen=True)
class _TrainingJob:
    """What to train.

    Attributes:
        data: the name or folder of the images.
        folder: the folder to write into.
        options: as for `train`.
        model: name of the model, or its checkpoint.
        config, recipe: how it is built and trained.
        fits_data: whether classes and preprocessing follow the data, not the model.
        initial: the network that it starts from; None for random weights.
    """

    data: Path
    folder: Path
    options: TrainOptions
    model: str
    config: ModelConfig
    recipe: Recipe
    fits_data: bool
    initial: CapsuleModel | None


def _job(data: Path, folder: Path, options: TrainOptions) -> _TrainingJob:
    """What the names mean; no image of ``data`` is read yet."""
    recipe = _recipe(options)
    initial = load_checkpoint(find_checkpoint_of(options.init)) if options.init else None
    model, size = options.model or options.init, options.size
    if model is None:
        model, usual = user_images.default_model(data)
        size = size or usual
    usual_config = _shape(model)
    segments = usual_config.task == SEGMENTATION
    config = (mask_training if segments else user_images).fitted(usual_config, data, size)
    _check_size(config)
    if options.iterations is not None:
        config = config.replace(iterations=options.iterations)
    if options.threads:
        torch.set_num_threads(options.threads)
    fits_data = (
        config.preprocessing != usual_config.preprocessing
        or config.class_names != usual_config.class_names
    )
    if fits_data and recipe.pairs == "none" and not segments:  # a folder gives each image one class
        config = config.replace(task="single-label")
    return _TrainingJob(data, folder, options, model, config, recipe, fits_data, initial)


# --- 2. The images ---


@dataclass(frozen=True)
class _Sets:
    """Images without overlap.

    Attributes:
        measured: those on which the accuracy is measured after every epoch; None for the training images.
        test: those for the end; None if the data has none.
        rule: what was held out, and how.
        divides: whether the data has no splits of its own.
    """

    training: ImageSet
    measured: ImageSet | None
    test: ImageSet | None
    rule: TrainingSplit
    divides: bool

    @property
    def counted(self) -> str:
        """The number of images in each split, in words."""
        others = [self.measured, None if self.test is self.measured else self.test]
        sets = [f"{len(each)} {each.split} images" for each in others if each is not None]
        return ", ".join([f"{len(self.training)} training images", *sets])


def _read(job: _TrainingJob, log: Callable[[str], None]) -> _Sets:
    """Read the images, and divide those without splits.

    Raises:
        UsageError: there are none, they are too few, or they do not fit.
    """
    data, config, limit = job.data, job.config, job.options.limit
    if config.task == SEGMENTATION:
        shares = user_images.TEST_SHARE, user_images.VALIDATION_SHARE
        kept, chosen, tested, rule = mask_training.read_sets(
            data, config, limit, job.recipe.seed, log, shares
        )
        return _Sets(kept, chosen if len(chosen) else None, tested, rule, divides=True)
    training = read_split(data, "train", config.preprocessing, limit)
    if job.fits_data:
        user_images.check_class_balance(config.class_names, training, log)
    test = _held_out(data, config, limit, log)
    if not class_names(data) and test is not None:
        rule = holdout_rule(training, config.classes, {}, job.recipe.seed)
        return _Sets(training, test, test, rule, divides=False)
    training, validation, test, rule = _divided(
        data, config, limit, training, test, job.recipe.seed, log
    )
    return _Sets(training, validation if len(validation) else None, test, rule, divides=True)


# --- 3. Configuration and recipe for these images ---


def _fitted(job: _TrainingJob, sets: _Sets, log: Callable[[str], None]) -> _TrainingJob:
    """The job with mean and deviation, batch and patience by the images.

    Raises:
        UsageError: patience is set, and there are no validation images.
    """
    config, recipe, patience = job.config, job.recipe, job.options.patience
    training, measured = sets.training, sets.measured
    if job.fits_data:
        initial = job.initial
        if (
            initial is not None
            and initial.config.preprocessing.channels == training.images.shape[3]
        ):
            config = user_images.normalized_as(config, initial.config)
        else:
            config = user_images.normalized(config, training.images)
        log(_described(config))
    if sets.divides and recipe.batch > len(training):
        recipe = replace(recipe, batch=max(1, len(training) // 8))
        log(f"batches of {recipe.batch}: there are {len(training)} training images")
    if measured is not None and measured.split == "validation":
        least = max(user_images.PATIENCE, recipe.epochs // 2)
        recipe = replace(recipe, patience=least if patience is None else patience)
    elif patience:
        raise UsageError(
            f"patience does not apply to {job.data}.",
            "Training ends early by the accuracy on validation images, which it does not have.",
            "Leave it out.",
        )
    return replace(job, config=config, recipe=recipe)


# --- 4. The end ---


def _finished(
    job: _TrainingJob, sets: _Sets, model: CapsuleModel, log: Callable[[str], None]
) -> Trained:
    """Measure the trained model on test images that were not measured on before."""
    checkpoint, test = job.folder / MODEL, sets.test
    done = len((job.folder / HISTORY).read_text(encoding="utf-8").splitlines())
    if done < job.recipe.epochs:
        waited = job.recipe.patience
        log(f"stopped after epoch {done}: accuracy did not improve in the last {waited}")
    if not sets.divides or test is None or not len(test) or job.recipe.pairs != "none":
        return Trained(checkpoint)
    if test.masks is not None:
        dice = mask_training.report(model, test, log)
        return Trained(checkpoint, None, len(test), test.described, dice)
    accuracy = _report(model, test, job.folder, log)
    return Trained(checkpoint, accuracy, len(test), test.described)


def _recipe(options: TrainOptions) -> Recipe:
    """The recipe from the options; the data determines the patience."""
    stated = [name for name in Recipe.__dataclass_fields__ if name != "patience"]
    given = {name: getattr(options, name) for name in stated}
    return Recipe(**{name: value for name, value in given.items() if value is not None})


def _check_size(config: ModelConfig) -> None:
    """Raise before any image is read if the network cannot be built for images of this size."""
    try:
        with torch.device("meta"):
            build(config)
    except UsageError as error:
        size = f"{config.preprocessing.height}x{config.preprocessing.width}"
        raise UsageError(
            f"The model is too deep for images of {size} pixels.",
            error.what,
            "Use a larger --size, or another --model.",
        ) from error


def _started(config: ModelConfig, initial: CapsuleModel) -> str:
    """How many of the parameters start from another network's, in words."""
    with torch.device("meta"):
        sizes = {name: value.numel() for name, value in build(config).named_parameters()}
    taken = sum(sizes.get(name, 0) for name in transferable_weights(config, initial))
    rest = "" if taken == sum(sizes.values()) else "; the others start at random"
    return f"{taken:,} of {sum(sizes.values()):,} parameters are trained further{rest}"


def _report(model: CapsuleModel, test: ImageSet, folder: Path, log: Callable[[str], None]) -> float:
    """Report how many images of each class are classified correctly, and draw the confusion matrix.

    Returns:
        The share of correct ones over all classes.
    """
    stored = training_of(folder / MODEL)
    assert stored is not None
    epoch = stored.last["epoch"]
    names = model.config.class_names
    found = predict_all(model, test).argmax(1).numpy()
    matrix = confusion(test.classes, found, len(names))
    accuracy = float(np.trace(matrix)) / len(test)
    log(f"{test.split} accuracy of epoch {epoch}, which is kept: {accuracy:.4f} ({test.described})")
    for line in by_class(names, matrix):
        log(line)
    try:
        draw_confusion(names, matrix, folder / CONFUSION)
    except EnvironmentProblem as problem:
        log(f"no confusion matrix: {problem.what} {problem.fix}")
    else:
        log(f"confusion matrix: {folder / CONFUSION}")
    return accuracy


def _held_out(
    data: Path, config: ModelConfig, limit: int | None, log: Callable[[str], None]
) -> ImageSet | None:
    """The images to test on; None if the data has none apart from the training images."""
    if class_names(data):
        divided = classes_of(data, "test")[1] == "test"
        return read_split(data, "test", config.preprocessing, limit) if divided else None
    try:
        found = read_split(data, "test", config.preprocessing, limit)
    except UsageError as error:
        log(error.what)
        return None
    return found if found.split else None


def _divided(
    data: Path,
    config: ModelConfig,
    limit: int | None,
    training: ImageSet,
    test: ImageSet | None,
    seed: int,
    log: Callable[[str], None],
) -> tuple[ImageSet, ImageSet, ImageSet, TrainingSplit]:
    """Divide the images into training, validation and test images without overlap.

    Returns:
        They, and the rule of what was held out.
    """

    def apart(images: ImageSet, other: ImageSet, are: str) -> ImageSet:
        kept = images.without(other)
        if left_out := len(images) - len(kept):
            which = (
                f"1 {images.split} image is"
                if left_out == 1
                else f"{left_out} {images.split} images are"
            )
            log(
                f"{which} left out: {'it is' if left_out == 1 else 'they are'} also among the {are} images"
            )
        return kept

    given = None
    if classes_of(data, "validation")[1]:
        given = read_split(data, "validation", config.preprocessing, limit)
    shares = {"test": user_images.TEST_SHARE} if test is None else {}
    shares |= {"validation": user_images.VALIDATION_SHARE} if given is None else {}
    drawn: dict[str, ImageSet] = {}
    rule = holdout_rule(training, config.classes, shares, seed)
    if shares:
        drawn = divided(training, rule)
        training = drawn["train"]
    for name, out in ((each, drawn[each]) for each in shares):
        share = f"about {shares[name]:.0%} of each class, drawn with seed {seed}"
        log(f"no {name} images: {len(out)} training images are held out, {share}")
    validation = drawn["validation"] if given is None else apart(given, training, "training")
    test = drawn["test"] if test is None else apart(test, training, "training")
    return training, validation, apart(test, validation, "validation"), rule


def _described(config: ModelConfig) -> str:
    """Describe the properties taken from the images."""
    prep = config.preprocessing
    kind = "grey" if prep.channels == 1 else "colour"
    shown = ", ".join(config.class_names[:10]) + (", ..." if config.classes > 10 else "")
    return f"{config.classes} classes ({shown}); {kind}, resized to {prep.height}x{prep.width} (--size)"


def _shape(model: str) -> ModelConfig:
    """The configuration of a model of the registry, or that of a checkpoint."""
    if reading.path_kind(Path(model)) == reading.FILE:
        return load_checkpoint(Path(model)).config
    return get_config(model)
