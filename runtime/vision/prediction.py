"""The prediction of a model for one image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.summary import Row, Summarized, Summary, short

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
        return f"'{short(self.name)}' {self.score:.3f}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "label": self.name,
            "index": self.index,
            "score": self.score,
            "pose": [float(v) for v in self.pose],
        }


@dataclass(frozen=True)
class Value:
    """One value of a regression.

    Attributes:
        name: what it is, such as ``yaw``.
        value: its size.
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
        labels: the requested classes, best first; empty if none reaches the threshold, and for a regression.
        scores: ``[J]``, one per class; empty for a regression.
        poses: ``[J, P]``, one per class; ``[J, 0]`` if the model has no poses.
        score_kind: ``length`` of the class capsule, or ``probability`` (of logits the softmax for a
            single-label model, the sigmoid for a multi-label model); empty for a regression.
        values: the values of a regression; empty for a classification.
        nothing: why there is nothing to see in the image, by the criterion of the model
            (docs/reference/metadata.md); empty if there is something, or the model has no criterion.
            Labels and scores are as without.
        long_way: of a cascade, whether its large network decided; None for other models.
        hint: what to try, such as inverting the image; empty if there is nothing to advise.
    """

    labels: tuple[Label, ...]
    scores: NDArray[np.float64]
    poses: NDArray[np.float32]
    score_kind: str
    values: tuple[Value, ...] = ()
    nothing: str = ""
    hint: str = ""
    long_way: bool | None = None

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
        rows = [Row(short(label.name), f"{label.score:.3f}", label.score) for label in shown]
        if self.values:
            shown_values = self.values[:_SHOWN]
            found = ", ".join(f"{short(v.name)} {with_unit(v.value, v.unit)}" for v in shown_values)
            rows = [Row(short(v.name), with_unit(v.value, v.unit)) for v in shown_values]
            left = len(self.values) - len(rows)
        else:
            found = ", ".join(map(str, shown)) or "without a label: no score reaches the threshold"
            found += f" ({self.score_kind})"
            left = len(self.labels) - len(rows)
        if left:
            rows.append(Row("", f"and {left} more"))
            found += f" and {left} more"
        return Summary("Prediction", [found], rows)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        said: dict[str, Any] = {"nothing": self.nothing or None, "hint": self.hint or None}
        if self.long_way is not None:
            said["long_way"] = self.long_way
        if self.values:
            return {"values": [value.to_dict() for value in self.values], **said}
        return {
            "labels": [label.to_dict() for label in self.labels],
            "scores": [float(v) for v in self.scores],
            "score_kind": self.score_kind,
            **said,
        }


def scores_of(
    output: NDArray[Any], kind: str, multi_label: bool
) -> tuple[NDArray[np.float64], str]:
    """Scores ``[N, J]`` and their kind, from the model's output of ``length``, ``logits`` or ``probability``.

    docs/reference/runtime.md ("Scores") specifies them, so that C++ computes the same bits.
    """
    values = output.astype(np.float64)
    if kind != "logits":
        return values, kind
    if multi_label:
        # the two halves never overflow
        small = _exp(-np.abs(values))
        return np.where(values >= 0, 1.0, small) / (1.0 + small), "probability"
    values = _exp(values - values.max(axis=-1, keepdims=True))
    # sum() would add in another order
    return values / np.add.accumulate(values, axis=-1)[..., -1:], "probability"


def _exp(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The C library's ``exp``, as in C++; numpy's own differs in the last bit between processors."""
    return np.array([math.exp(v) for v in values.ravel()], np.float64).reshape(values.shape)


def choose(scores: NDArray[np.float64], top_k: int | None, threshold: float | None) -> list[int]:
    """Class numbers, best first, ties in ascending order: scores of at least ``threshold``, at most
    ``top_k`` classes."""
    order = [int(j) for j in np.argsort(-scores, kind="stable")]
    if threshold is not None:
        order = [j for j in order if scores[j] >= threshold]
    return order[:top_k]
