"""What an image itself says about its prediction: nothing to see, or colours the other way round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import repeat

import numpy as np

from capsedge.runtime.metadata import ModelMetadata
from capsedge.runtime.nothing import Floats, Measurements, TypicalInput, measure, measure_all
from capsedge.runtime.vision.prediction import Prediction

INVERT = "mostly light, and the answer is not confident: try --invert (in Python invert=True)"
KEEP = "mostly light once inverted, and the answer is not confident: try without --invert"
CONFIDENT = 0.5  # between the margins 0.1 and 0.9 of the margin loss (Sabour et al. 2017, eq. 4)


def seen(
    predictions: Iterable[Prediction], images: Floats, metadata: ModelMetadata, inverted: bool
) -> Iterator[Prediction]:
    """Predictions with `Prediction.nothing` and `Prediction.hint`.

    Args:
        images: the prepared images, one for each prediction.
        inverted: whether they were inverted.
    """
    p, criterion = metadata.preprocessing, metadata.typical_input
    if p is None:
        yield from predictions
        return
    measured = repeat(None, len(images)) if criterion is None else measure_all(images, p.layout)
    for prediction, image, found in zip(predictions, images, measured, strict=True):
        nothing = "" if criterion is None or found is None else criterion.reason(found)
        told = ""
        if p.channels == 1 and len(prediction.scores):
            score = 0.0 if nothing else float(prediction.scores.max())
            if to_invert(image, p.layout, score, criterion, found):
                told = KEEP if inverted else INVERT
        yield replace(prediction, nothing=nothing, hint=told) if nothing or told else prediction


def to_invert(
    image: Floats,
    layout: str,
    score: float,
    criterion: TypicalInput | None,
    found: Measurements | None,
) -> bool:
    """Whether a prepared grey image ``[1, H, W]`` or ``[H, W, 1]`` may have its colours the other way round.

    Its answer is not confident, most of its values are over the middle of the least and the largest, and its
    frame is on the other side of the mean than in training, with contrast and roughness as there. Without a
    criterion, the frame in training is taken to be dark.

    Args:
        score: of the best class; 0 if the image has nothing to see.
        criterion: of the model; None if it has none.
        found: the image's measurements, where the model has a criterion.
    """
    if score >= CONFIDENT:
        return False
    middle = (float(image.min()) + float(image.max())) / 2
    if 2 * np.count_nonzero(image > middle) <= image.size:  # of one value: none is above
        return False
    found = found or measure(image, layout)
    if criterion is None:
        return found.frame_level > 0
    inverted = replace(found, frame_level=-found.frame_level)
    same = all(criterion.has(name, inverted) for name in ("contrast", "roughness", "frame_level"))
    return same and not criterion.has("frame_level", found)
