"""What an image itself says about its prediction: nothing to see, or colours the other way round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from capsedge.runtime.metadata import ModelMetadata
from capsedge.runtime.nothing import Floats, Measurements, Nothing, measure
from capsedge.runtime.vision.prediction import Prediction

INVERT = "mostly light, and the answer is not confident: try --invert (in Python invert=True)"
CONFIDENT = 0.5  # between the margins 0.1 and 0.9 of the margin loss (Sabour et al. 2017, eq. 4)


def seen(
    predictions: Iterable[Prediction], images: Floats, metadata: ModelMetadata, inverted: bool
) -> Iterator[Prediction]:
    """Predictions with `Prediction.nothing` and `Prediction.hint`.

    Args:
        images: the prepared images, one for each prediction.
        inverted: whether they were inverted, which rules the hint out.
    """
    p, criterion = metadata.preprocessing, metadata.nothing
    for prediction, image in zip(predictions, images, strict=True):
        if p is None:
            yield prediction
            continue
        found = None if criterion is None else measure(image, p.layout)
        nothing = "" if criterion is None or found is None else criterion.reason(found)
        told = ""
        if p.channels == 1 and len(prediction.scores) and not inverted:
            score = 0.0 if nothing else float(prediction.scores.max())
            told = hint(image, p.layout, score, criterion, found)
        yield replace(prediction, nothing=nothing, hint=told) if nothing or told else prediction


def hint(
    image: Floats, layout: str, score: float, criterion: Nothing | None, found: Measurements | None
) -> str:
    """The hint for one prepared grey image ``[1, H, W]`` or ``[H, W, 1]``; empty if there is none.

    Args:
        score: of the best class; 0 if the image has nothing to see.
        criterion: of the model; None if it has none.
        found: the image's measurements, where the model has a criterion.
    """
    if score >= CONFIDENT:
        return ""
    middle = (float(image.min()) + float(image.max())) / 2
    if 2 * np.count_nonzero(image > middle) <= image.size:  # of one value: none is above
        return ""
    return INVERT if _reversed(found or measure(image, layout), criterion) else ""


def _reversed(found: Measurements, criterion: Nothing | None) -> bool:
    """Whether the frame is on the other side of the mean than in training, and the rest is as there.

    Inverting an image changes the sign of its frame's level, and neither contrast nor roughness. Without a
    criterion, a dark frame is taken for the one in training.
    """
    if criterion is None:
        return found.frame_level > 0

    def inside(name: str, value: float) -> bool:
        low, high = getattr(criterion, name)
        return bool(low <= value <= high)

    same = all(inside(name, getattr(found, name)) for name in ("contrast", "roughness"))
    frame = found.frame_level
    return same and inside("frame_level", -frame) and not inside("frame_level", frame)
