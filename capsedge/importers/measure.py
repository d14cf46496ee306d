"""Measure an imported network on data, along with the networks that it might be confused with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from capsedge.datasets import ImageSet
from capsedge.models import CapsuleModel
from capsedge.runtime.metadata.metadata import Outputs
from capsedge.spec.vocabularies import REGRESSION

GAIN = 0.01  # an alternative is clearly better if it gains at least this share of the images,
SHARE = 0.05  # for values at least this share of the error,
ERRORS = 3.0  # and at least this many standard errors
_BATCH = 50
Losses = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """Accuracy, or the errors of values.

    Attributes:
        images: their number.
        accuracy: share of correct decisions; None for a regression.
        errors: mean absolute error of each value, in its unit; angles are measured the shorter way round.
        units: units of the values.
        better: accuracy, or mean of the errors, of each alternative that is clearly better, by description.
        data: name of the images.
        useless: values whose error is no lower than that of the mean of the targets.
    """

    images: int
    accuracy: float | None
    better: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    units: tuple[str, ...] = ()
    useless: tuple[str, ...] = ()
    data: str = ""

    def facts(self) -> list[tuple[str, str]]:
        """A row of an `ImportReport`."""
        if self.accuracy is not None:
            return [
                ("accuracy", f"{100 * self.accuracy:.2f} % of {self.images} images ({self.data})")
            ]
        named = zip(self.errors.items(), self.units, strict=True)
        errors = ", ".join(f"{name} {error:.4g} {unit}".rstrip() for (name, error), unit in named)
        return [("mean error", f"{errors}; {self.images} images ({self.data})")]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user."""
        own = _in_words(self.accuracy, float(np.mean([*self.errors.values()] or [0.0])), self.units)
        return (
            *(
                f"{words} is clearly better on the data: {self.in_words(found)} instead of {own}"
                for words, found in self.better.items()
            ),
            *(
                f"{name}: the error on the data is no lower than that of a constant; check its sign, its "
                "unit and the order of the values"
                for name in self.useless
            ),
        )

    def in_words(self, found: float) -> str:
        """The accuracy or mean error of an alternative, in words."""
        return _in_words(None if self.accuracy is None else found, found, self.units)


def measure(
    model: CapsuleModel, alternatives: Mapping[str, CapsuleModel], images: ImageSet
) -> Measured:
    """Measure a network on labelled images, or on images with values, and find better alternatives."""
    regression = model.config.task == REGRESSION
    own = losses(model, images)
    better = {}
    for words, other in alternatives.items():
        found = losses(other, images)
        if _clearly_better(found, own, regression):
            better[words] = score(found, regression)
    if not regression:
        return Measured(len(images), score(own, regression), better, data=images.described)
    outputs = model.config.outputs or Outputs()
    targets = _targets(images)
    middle = np.broadcast_to(np.median(targets, 0), targets.shape)
    constant = _distances(middle, targets, outputs.units).mean(0)
    errors = dict(zip(outputs.names, map(float, own.mean(0)), strict=True))
    useless = [
        n for n, least in zip(outputs.names, constant, strict=True) if errors[n] >= least > 0
    ]
    return Measured(
        len(images), None, better, errors, outputs.units, tuple(useless), images.described
    )


def clearly_best(
    models: Mapping[str, CapsuleModel], images: ImageSet
) -> tuple[str | None, dict[str, str]]:
    """The network that is clearly better than all others, if there is one, and what each achieves."""
    config = next(iter(models.values())).config
    regression = config.task == REGRESSION
    units = config.outputs.units if config.outputs is not None else ()
    found = {words: losses(model, images) for words, model in models.items()}
    best = min(found, key=lambda words: float(found[words].sum()))
    alone = all(_clearly_better(found[best], found[o], regression) for o in found if o != best)
    scores = {words: score(each, regression) for words, each in found.items()}
    texts = {w: _in_words(None if regression else s, s, units) for w, s in scores.items()}
    return best if alone else None, texts


def losses(model: CapsuleModel, images: ImageSet) -> Losses:
    """For each image, 1 for a wrong class ``[N, 1]``, or the absolute errors of its values ``[N, K]``."""
    prep = None if images.preprocessing is None else model.config.preprocessing
    batch = model.config.fixed_batch or _BATCH
    found = []
    with torch.inference_mode():
        for part in replace(images, preprocessing=prep).batches(batch):
            found.append(model(torch.from_numpy(part)).scores.numpy())
    scores = np.concatenate(found)
    if model.config.task != REGRESSION:
        return np.asarray(scores.argmax(1) != images.classes, np.float64)[:, None]
    outputs = model.config.outputs or Outputs()
    return _distances(scores, _targets(images), outputs.units)


def score(found: Losses, regression: bool) -> float:
    """The mean of all errors, or the accuracy."""
    return float(found.mean()) if regression else 1.0 - float(found.mean())


def _targets(images: ImageSet) -> NDArray[np.float64]:
    assert images.targets is not None  # `read_targets` has read them
    return images.targets


def _distances(
    values: NDArray[np.floating], targets: NDArray[np.float64], units: tuple[str, ...]
) -> Losses:
    """Absolute differences ``[N, K]``; angles in degrees the shorter way round."""
    apart = np.abs(values.astype(np.float64) - targets)
    angles = [unit == "degrees" for unit in units]
    turned = apart % 360.0
    return np.where(angles, np.minimum(turned, 360.0 - turned), apart)


def _clearly_better(found: Losses, chosen: Losses, regression: bool) -> bool:
    """Whether the sum of paired differences exceeds chance; McNemar's test if losses are 0 or 1."""
    won = chosen.mean(1) - found.mean(1)
    least = SHARE * chosen.mean(1).sum() if regression else GAIN * len(chosen)
    return bool(won.sum() > max(least, ERRORS * math.sqrt(float((won**2).sum()))))


def _in_words(accuracy: float | None, error: float, units: tuple[str, ...]) -> str:
    if accuracy is not None:
        return f"{100 * accuracy:.2f} %"
    unit = units[0] if len(set(units)) == 1 else ""
    return f"a mean error of {f'{error:.4g} {unit}'.strip()}"
