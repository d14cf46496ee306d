"""Accuracy of an imported network on data, and of the networks that it might be mistaken for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from capsedge.models import CapsuleModel

GAIN = 0.01  # an alternative is clearly better from this on ...
ERRORS = 3.0  # ... and from so many standard errors on
_BATCH = 50
Hits = NDArray[np.bool_]


@dataclass(frozen=True)
class Measured:
    """Accuracies.

    Attributes:
        images: how many.
        accuracy: share of right decisions.
        better: accuracy of every alternative that is clearly better, by its words.
    """

    images: int
    accuracy: float
    better: Mapping[str, float]


def measure(
    model: CapsuleModel,
    alternatives: Mapping[str, CapsuleModel],
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
) -> Measured:
    """Classify images with a network and with its alternatives."""
    own = _hits(model, images, labels)
    better = {}
    for words, other in alternatives.items():
        hits = _hits(other, images, labels)
        won, lost = int((hits & ~own).sum()), int((own & ~hits).sum())
        # McNemar: of the images on which they differ, each is as likely to win if they are equally good.
        if won - lost > max(GAIN * len(labels), ERRORS * (won + lost) ** 0.5):
            better[words] = float(hits.mean())
    return Measured(len(labels), float(own.mean()), better)


def _hits(model: CapsuleModel, images: NDArray[np.float32], labels: NDArray[np.int64]) -> Hits:
    found = []
    with torch.inference_mode():
        for part in torch.split(torch.from_numpy(images), _BATCH):
            found.append(model(part).scores.argmax(1).numpy())
    return np.asarray(np.concatenate(found) == labels)
