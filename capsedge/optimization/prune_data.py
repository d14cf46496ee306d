"""Read the images for pruning: for fine-tuning, search and report, and evaluate pruned networks on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from capsedge.calibration.accuracy import Outcome, of_scores
from capsedge.datasets import ImageSet, class_names, read_split
from capsedge.datasets.division import UNTRAINED
from capsedge.errors import UsageError
from capsedge.metrics import check_above_chance
from capsedge.models import CapsuleModel
from capsedge.models.training.evaluate import predict_all
from capsedge.runtime.session.predictions import DEFAULT_THRESHOLD

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
        """Why the accuracy on the images held out may mislead."""
        found = []
        if not self.unseen:
            found.append(
                "the parent may have been trained on the held-out images, so its accuracy there may be "
                "too high"
            )
        if (count := len(self.held_out)) < _FEW:
            found.append(
                f"only {count} images are held out for the search: each is {100 / count:.2g} points"
            )
        return found


def read(data: Path, model: CapsuleModel, limit: int | None, seed: int) -> PruningImages:
    """Read the images without the test images, and divide them.

    The validation images that were held out when the model was trained are held out again, if there are
    enough; otherwise some of the training images.

    Args:
        limit: maximum number of images of each split.

    Raises:
        UsageError: they cannot be read, have no labels, or are too few.
    """
    config = model.config
    whole = _part(data, "train", model, limit)
    if whole.classes.max(initial=0) >= config.classes:
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
    return read_split(
        data, part, config.preprocessing, limit, model.training_split, config.class_names
    )


def _validation(data: Path, model: CapsuleModel, limit: int | None) -> ImageSet | None:
    """The images that chose the model's epoch; None if the data has none."""
    try:
        found = _part(data, "validation", model, limit)
    except UsageError:
        return None
    # Of other data, such a split takes the place of test images.
    return found if found.known == UNTRAINED or class_names(data) else None


def read_test(
    data: Path, model: CapsuleModel, limit: int | None, images: PruningImages
) -> ImageSet | None:
    """The test images, which are read only once, at the end; None if the data has none.

    Raises:
        UsageError: some are among the training images.
    """
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
        self._data, self._expected = data, predict_all(parent, data).numpy()
        self._multi_label = parent.config.task == "multi-label"
        self._threshold = 0.0 if parent.score_name == "logits" else DEFAULT_THRESHOLD

    def check_parent(self) -> list[str]:
        """Refuse an accuracy that is no better than chance; returns warnings if the images are too few to
        decide.

        Raises:
            UsageError: the parent is no more accurate than chance.
        """
        labels = self._data.labels
        if self._multi_label or labels is None:
            return []
        accuracy = float((self._expected.argmax(1) == labels).mean())
        classes = self._expected.shape[1]
        return check_above_chance(
            accuracy, len(labels), classes, "the scores", self._data.source, "the checkpoint"
        )

    def outcome(self, pruned: CapsuleModel) -> Outcome:
        """Compare a pruned network's results with the parent's."""
        labels = None if self._multi_label else self._data.labels
        removable = predict_all(pruned, self._data).numpy()
        return of_scores(self._expected, removable, labels, self._multi_label, self._threshold)
