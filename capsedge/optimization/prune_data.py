"""Read the images for pruning: for fine-tuning, search and report, and evaluate pruned networks on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.calibration.accuracy import Criterion, Outcome, compare_class_scores, of_masks
from capsedge.datasets import ImageSet, class_names, read_split
from capsedge.datasets.image_set import UNTRAINED
from capsedge.datasets.mask_folders import read_mask_split
from capsedge.errors import UsageError
from capsedge.metrics import check_above_chance
from capsedge.models import CapsuleModel
from capsedge.models.training.evaluate import predict_all
from capsedge.models.training.mask_training import masks_of, overlap_between
from capsedge.runtime.session.masks import check_above_constant
from capsedge.runtime.session.predictions import DEFAULT_THRESHOLD
from capsedge.spec.vocabularies import SEGMENTATION

_HELD_OUT = 1 / 12  # share of the training images: 5,000 of MNIST's
_USUAL = 20  # images held out, if this is at most a quarter
_MOST = 1 / 4  # share of few training images
_FEWEST = 10  # images held out; of fewer, a loss of a tenth may go unseen
_FEW = 100  # images held out; one of fewer is more than a percentage point


@dataclass(frozen=True)
class PruningImages:
    """The images of a data set without its test images, in two parts.

    Attributes:
        training: images for fine-tuning and for the criterion.
        held_out: images for the decisions of the search.
        unseen: whether the parent was not trained on the images held out.
    """

    training: ImageSet
    held_out: ImageSet
    unseen: bool

    @property
    def warnings(self) -> list[str]:
        """Why the accuracy, or Dice, on the images held out may mislead."""
        warnings = []
        if not self.unseen:
            warnings.append(
                f"the parent may have been trained on the held-out images, so its {self.measure} there "
                "may be too high"
            )
        if (count := len(self.held_out)) < _FEW:
            each = "" if self.training.masks is not None else f": each is {100 / count:.2g} points"
            warnings.append(f"only {count} images are held out for the search{each}")
        return warnings

    @property
    def measure(self) -> str:
        """What is measured on them."""
        return "accuracy" if self.training.masks is None else "mean Dice"


def read(data: Path, model: CapsuleModel, limit: int | None, seed: int) -> PruningImages:
    """Read the images without the test images, and divide them.

    The validation images that were held out when the model was trained are held out again, if there are
    enough; otherwise some of the training images.

    Args:
        limit: maximum number of images of each split.
    """
    config = model.config
    whole = _part(data, "train", model, limit)
    if whole.masks is None and whole.classes.max(initial=0) >= config.classes:
        raise UsageError(
            f"The data has class {whole.classes.max()}.",
            f"The model has {config.classes} classes.",
        )
    if whole.known:  # the model was trained on these images
        validation = _validation(data, model, limit)
        if validation is not None and len(validation) >= _FEWEST:
            return PruningImages(whole, validation, unseen=True)
    count = max(int(len(whole) * _HELD_OUT), min(_USUAL, int(len(whole) * _MOST)))
    if count < _FEWEST:
        raise UsageError(
            f"{len(whole)} training images are too few for pruning.",
            f"Some are held out to decide how far to prune: at least {_FEWEST}, at most a quarter.",
            f"Give {int(_FEWEST / _MOST)} or more. Without data, only units that no output depends on are "
            "removed.",
        )
    order = np.random.default_rng(seed).permutation(len(whole))
    known = "held out from fine-tuning only"
    held_out = replace(whole.take(np.sort(order[:count])), known=known, total=len(whole))
    return PruningImages(whole.take(np.sort(order[count:])), held_out, unseen=False)


def _part(data: Path, part: str, model: CapsuleModel, limit: int | None) -> ImageSet:
    """A part of the data as the model takes it, divided as when the model was trained."""
    config = model.config
    if config.task == SEGMENTATION:
        names, rule = config.class_names, model.training_split
        return read_mask_split(data, part, config.preprocessing, names, limit, rule)
    return read_split(
        data, part, config.preprocessing, limit, model.training_split, config.class_names
    )


def _validation(data: Path, model: CapsuleModel, limit: int | None) -> ImageSet | None:
    """The images that chose the model's epoch; None if the data has none."""
    try:
        images = _part(data, "validation", model, limit)
    except UsageError:
        return None
    # Of other data, such a split takes the place of test images.
    own = images.split == "validation" if images.masks is not None else bool(class_names(data))
    return images if images.known == UNTRAINED or own else None


def read_test(
    data: Path, model: CapsuleModel, limit: int | None, images: PruningImages
) -> ImageSet | None:
    """The test images, which are read only once, at the end; None if the data has none."""
    try:
        test = _part(data, "test", model, limit)
    except UsageError:
        return None
    if not test.split:
        return None  # the data is a single set, used for training
    common = int((test.occurs_in(images.training) | test.occurs_in(images.held_out)).sum())
    if common:
        raise UsageError(
            "The test images are among the training images.",
            f"{common} of {len(test)} are.",
            "Use a data set whose splits have no image in common.",
        )
    return test


class Evaluator:
    """The parent's results on some images, computed once, with which pruned networks are compared."""

    def __init__(self, parent: CapsuleModel, data: ImageSet) -> None:
        self._data, self._config = data, parent.config
        self._expected = self._results(parent)
        self._multi_label = parent.config.task == "multi-label"
        self._threshold = 0.0 if parent.score_name == "logits" else DEFAULT_THRESHOLD

    def _results(self, model: CapsuleModel) -> NDArray[Any]:
        """Scores ``[N, J]``, or masks ``[N, H, W]``."""
        if self._data.masks is not None:
            return masks_of(model, self._data)
        scores: NDArray[Any] = predict_all(model, self._data).numpy()
        return scores

    def check_parent(self) -> list[str]:
        """Refuse a parent no better than chance; returns warnings if the images are too few."""
        labels, source = self._data.labels, self._data.source
        if self._data.masks is not None:
            overlap = overlap_between(self._config, self._data.masks, self._expected)
            check_above_constant(overlap, "the checkpoint", source)
            return []
        if self._multi_label or labels is None:
            return []
        accuracy = float((self._expected.argmax(1) == labels).mean())
        classes = self._expected.shape[1]
        return check_above_chance(
            accuracy, len(labels), classes, "the scores", source, "the checkpoint"
        )

    def outcome(self, pruned: CapsuleModel) -> Outcome:
        """Compare a pruned network's results with the parent's."""
        found, masks = self._results(pruned), self._data.masks
        if masks is not None:
            names, one = self._config.class_names, self._config.classes == 2
            criterion = Criterion(None, classes=names, background=one)
            return of_masks(self._expected, found, masks, criterion)
        labels = None if self._multi_label else self._data.labels
        return compare_class_scores(
            self._expected, found, labels, self._multi_label, self._threshold
        )
