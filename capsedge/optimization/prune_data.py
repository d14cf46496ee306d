"""Read the images for pruning: for fine-tuning, search and report, and evaluate pruned networks on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capsedge.calibration.accuracy import Outcome, of_scores
from capsedge.datasets import ImageSet, read_split
from capsedge.errors import UsageError
from capsedge.metrics import check_above_chance
from capsedge.models import CapsuleModel
from capsedge.models.training.evaluate import predict_all
from capsedge.runtime.predictions import DEFAULT_THRESHOLD

_HELD_OUT = 1 / 12  # share of the training images: 5,000 of MNIST's
_FEWEST = 20  # images held out


@dataclass(frozen=True)
class PruningImages:
    """The training images of a data set, in two parts.

    Attributes:
        training: images for fine-tuning and for the criterion.
        held_out: images for the decisions of the search.
    """

    training: ImageSet
    held_out: ImageSet


def read(data: Path, model: CapsuleModel, limit: int | None, seed: int) -> PruningImages:
    """Read and divide the training images; the test images are not touched.

    Args:
        limit: maximum number of images.

    Raises:
        UsageError: they cannot be read, have no labels, or are too few.
    """
    config = model.config
    whole = read_split(data, "train", config.preprocessing, limit, model.training_split)
    if whole.classes.max(initial=0) >= config.classes:
        raise UsageError(
            f"The data has class {whole.classes.max()}.",
            f"The model has {config.classes} classes.",
        )
    count = int(len(whole) * _HELD_OUT)
    if count < _FEWEST:
        raise UsageError(
            f"{len(whole)} training images are too few for pruning.",
            f"A twelfth of them is held out to decide how far to prune; at least {_FEWEST} are needed.",
            f"Give {12 * _FEWEST} or more. Without data, only units that no output depends on are removed.",
        )
    order = np.random.default_rng(seed).permutation(len(whole))
    return PruningImages(whole.take(np.sort(order[count:])), whole.take(np.sort(order[:count])))


def read_test(
    data: Path, model: CapsuleModel, limit: int | None, images: PruningImages
) -> ImageSet | None:
    """The test images, which are read only once, at the end; None if the data has none.

    Raises:
        UsageError: some are among the training images.
    """
    try:
        test = read_split(data, "test", model.config.preprocessing, limit, model.training_split)
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
