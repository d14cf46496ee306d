"""Define predictions and what makes them, and find images that may need to be inverted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.images.preprocessing import colour_pixels
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.metadata.typical_input import (
    Floats,
    Measurements,
    TypicalInput,
    measure,
    measure_all,
)
from capsedge.runtime.result_summary import Row, Summarized, Summary, shortened_name
from capsedge.runtime.session.masks import ClassArea, class_areas, mask_values, overlaid
from capsedge.spec.fields import CONFIDENT

DEFAULT_THRESHOLD = CONFIDENT
INVERT = "mostly light, and the answer is not confident: try --invert (in Python invert=True)"
KEEP = "mostly light once inverted, and the answer is not confident: try without --invert"
_SHOWN = 5  # labels and values in a summary


@dataclass(frozen=True, eq=False, repr=False)
class Label:
    """One class found in an image.

    Attributes:
        name: the class.
        index: its number.
        score: length of the capsule, or probability (`Prediction.score_kind`).
        pose: ``[P]``, the pose of the class capsule; empty if the model has no poses.
    """

    name: str
    index: int
    score: float
    pose: NDArray[np.float32]

    def __repr__(self) -> str:
        return f"<Label {self}>"

    def __str__(self) -> str:
        return f"'{shortened_name(self.name)}' {self.score:.3f}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "label": self.name,
            "index": self.index,
            "score": self.score,
            "pose": [float(v) for v in self.pose],
        }


@dataclass(frozen=True)
class RegressionValue:
    """One value of a regression.

    Attributes:
        name: such as ``yaw``.
        value: the number.
        unit: such as ``degrees``; empty if the file does not state it.
    """

    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.name} {with_unit(self.value, self.unit)}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"name": self.name, "value": self.value, "unit": self.unit}


def with_unit(value: float, unit: str) -> str:
    """A value for people, such as ``-3.2°``."""
    number = f"{value:.4g}"
    return f"{number}°" if unit == "degrees" else f"{number} {unit}".rstrip()


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(Summarized):
    """The prediction of a model for one image.

    Attributes:
        labels: the requested classes, best first; empty if none reaches the threshold, for a regression and
            for a segmentation.
        scores: ``[J]``, one per class; empty for a regression and for a segmentation.
        poses: ``[J, P]``, one per class; ``[J, 0]`` if the model has no poses.
        score_kind: ``length`` of the class capsule, or ``probability`` (of logits the softmax for a
            single-label model, the sigmoid for a multi-label model); empty for a regression and for a
            segmentation.
        values: the values of a regression; empty for a classification.
        atypical: why the image is unlike the training images, by the model's criterion
            (docs/reference/metadata.md); empty if it is typical, or if the model has no criterion. Labels and
            scores are not affected.
        escalated: for a cascade, whether its large network decided; None for other models.
        hint: a suggestion, such as inverting the image; empty if there is none.
        mask: of a segmentation, the class of each pixel of the image ``[H, W]``, uint8; 255 where the network
            did not see the image, which `Preprocessing.resize` had cropped. None for other models.
        mask_classes: names of the classes in the mask, by number.
    """

    labels: tuple[Label, ...]
    scores: NDArray[np.float64]
    poses: NDArray[np.float32]
    score_kind: str
    values: tuple[RegressionValue, ...] = ()
    atypical: str = ""
    hint: str = ""
    escalated: bool | None = None
    mask: NDArray[np.uint8] | None = None
    mask_classes: tuple[str, ...] = ()

    @property
    def areas(self) -> tuple[ClassArea, ...]:
        """The area of each class in the mask; empty for other models."""
        return () if self.mask is None else class_areas(self.mask, self.mask_classes)

    def overlay(self, image: object) -> NDArray[np.uint8]:
        """The image with the colours of the mask over it, ``[H, W, 3]``.

        Args:
            image: the image that was predicted, as for `LoadedModel.predict`.

        Raises:
            UsageError: there is no mask, or the image cannot be read.
            ShapeError: the image has another size than the mask.
        """
        if self.mask is None:
            raise UsageError(
                "The prediction has no mask.",
                "The model does not segment images.",
                "Load a model with the task segmentation.",
            )
        return overlaid(colour_pixels(image), self.mask)

    @property
    def label(self) -> str | None:
        """The best label; None if no class reaches the threshold."""
        return self.labels[0].name if self.labels else None

    @property
    def score(self) -> float | None:
        """The best label's score; None if no class reaches the threshold."""
        return self.labels[0].score if self.labels else None

    def _summary(self) -> Summary:
        shown = self.labels[:_SHOWN]
        rows = [
            Row(shortened_name(label.name), f"{label.score:.3f}", label.score) for label in shown
        ]
        if self.values:
            shown_values = self.values[:_SHOWN]
            text = ", ".join(
                f"{shortened_name(v.name)} {with_unit(v.value, v.unit)}" for v in shown_values
            )
            rows = [Row(shortened_name(v.name), with_unit(v.value, v.unit)) for v in shown_values]
            left = len(self.values) - len(rows)
        elif self.mask is not None:
            largest = sorted(self.areas, key=lambda area: -area.pixels)
            shown_areas = [area for area in largest if area.pixels][:_SHOWN]
            text = f"mask {self.mask.shape[0]}x{self.mask.shape[1]}: " + ", ".join(
                f"{shortened_name(area.name)} {area.share:.1%}" for area in shown_areas
            )
            rows = [Row(shortened_name(a.name), f"{a.share:.1%}", a.share) for a in shown_areas]
            left = sum(area.pixels > 0 for area in largest) - len(rows)
        else:
            text = ", ".join(map(str, shown)) or "without a label: no score reaches the threshold"
            text += f" ({self.score_kind})"
            left = len(self.labels) - len(rows)
        if left:
            rows.append(Row("", f"and {left} more"))
            text += f" and {left} more"
        return Summary("Prediction", [text], rows)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        remarks: dict[str, Any] = {"atypical": self.atypical or None, "hint": self.hint or None}
        if self.escalated is not None:
            remarks["escalated"] = self.escalated
        if self.values:
            return {"values": [value.to_dict() for value in self.values], **remarks}
        if self.mask is not None:
            return {"mask": mask_values(self.mask, self.mask_classes), **remarks}
        return {
            "labels": [label.to_dict() for label in self.labels],
            "scores": [float(v) for v in self.scores],
            "score_kind": self.score_kind,
            **remarks,
        }


def with_hints(
    predictions: Iterable[Prediction], images: Floats, metadata: ModelMetadata, inverted: bool
) -> Iterator[Prediction]:
    """Predictions with `Prediction.atypical` and `Prediction.hint`, from the prepared images."""
    p, criterion = metadata.preprocessing, metadata.typical_input
    if p is None:
        yield from predictions
        return
    measured = repeat(None, len(images)) if criterion is None else measure_all(images, p.layout)
    for prediction, image, measurements in zip(predictions, images, measured, strict=True):
        typical = (
            ""
            if criterion is None or measurements is None
            else criterion.atypical_reason(measurements)
        )
        hint = ""
        if p.channels == 1 and len(prediction.scores):
            score = 0.0 if typical else float(prediction.scores.max())
            if to_invert(image, p.layout, score, criterion, measurements):
                hint = KEEP if inverted else INVERT
        yield replace(prediction, atypical=typical, hint=hint) if typical or hint else prediction


def to_invert(
    image: Floats,
    layout: str,
    score: float,
    criterion: TypicalInput | None,
    measured: Measurements | None,
) -> bool:
    """Whether a prepared grey image ``[1, H, W]`` or ``[H, W, 1]`` may need to be inverted.

    Its answer is not confident, most of its values are over the middle of the least and the largest, and its
    frame is on the other side of the mean than in training, with contrast and roughness as there. Without a
    criterion, the frame in training is taken to be dark.

    Args:
        score: score of the best class; 0 if the image has nothing to see.
        criterion: criterion of the model; None if it has none.
        measured: the image's measurements, where the model has a criterion.
    """
    if score >= CONFIDENT:
        return False
    middle = (float(image.min()) + float(image.max())) / 2
    if 2 * np.count_nonzero(image > middle) <= image.size:  # all values are equal: none is above
        return False
    measured = measured or measure(image, layout)
    if criterion is None:
        return measured.frame_level > 0
    inverted = replace(measured, frame_level=-measured.frame_level)
    same = all(
        criterion.contains(name, inverted) for name in ("contrast", "roughness", "frame_level")
    )
    return same and not criterion.contains("frame_level", measured)
