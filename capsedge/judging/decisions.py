"""The comparison of each image's decision, its margin, and the poses of the class decided for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.predictions import DEFAULT_THRESHOLD

if TYPE_CHECKING:
    from capsedge.runtime.session import Session

Array = NDArray[Any]
LISTED_FLIPS = 100  # the certificate lists this many; all are counted


@dataclass(frozen=True)
class Flip:
    """An image on which the reference and the artefact decide differently.

    Attributes:
        image: its number.
        reference, found: the classes decided for.
        margin: the reference's distance to the next class, or to the threshold.
    """

    image: int
    reference: tuple[int, ...]
    found: tuple[int, ...]
    margin: float


@dataclass
class Decisions:
    """Decisions over all images seen.

    Attributes:
        multi_label: whether a decision is the set of classes with a score above ``threshold``, not the best
            class.
        tie: a flip counts only if the reference's margin is larger; 0 counts every flip.
        images: number of images seen.
        flips: images with another decision; those within ``tie`` are counted as ``ties``.
        labelled: number of images with a label, for a single-label model.
        correct_reference, correct_found: correct decisions among them.
        max_angle: largest angle, in degrees, between the poses of the class that the reference decided for.
        max_length_error: absolute difference of the lengths of a class capsule's poses.
    """

    multi_label: bool = False
    threshold: float = DEFAULT_THRESHOLD
    tie: float = 0.0
    images: int = 0
    flips: list[Flip] = field(default_factory=list)
    ties: int = 0
    labelled: int = 0
    correct_reference: int = 0
    correct_found: int = 0
    max_angle: float = 0.0
    max_length_error: float = 0.0
    _sum_angle: float = 0.0
    _sum_length: float = 0.0
    _capsules: int = 0
    _posed: int = 0

    @classmethod
    def of(cls, session: Session, tie: float = 0.0) -> Decisions | None:
        """Decisions as a model makes them by default; None if no output decides the class.

        Args:
            session: defines the task and the output that decides.
            tie: see above.
        """
        if session.roles.scores is None:
            return None
        # A logit of 0 is a probability of one half.
        threshold = 0.0 if session.roles.kind == "logits" else DEFAULT_THRESHOLD
        return cls(session.roles.multi_label, threshold, tie)

    def update(self, reference: Array, found: Array, labels: Array | None = None) -> None:
        """Add the scores ``[n, J]`` of a batch."""
        expected, actual = self._decide(reference), self._decide(found)
        for k in np.flatnonzero((expected != actual).any(1)):
            margin = float(self.margins(reference[k : k + 1])[0])
            if margin <= self.tie:
                self.ties += 1
                continue
            self.flips.append(
                Flip(
                    self.images + int(k),
                    tuple(int(j) for j in np.flatnonzero(expected[k])),
                    tuple(int(j) for j in np.flatnonzero(actual[k])),
                    margin,
                )
            )
        if labels is not None and not self.multi_label:
            self.labelled += len(labels)
            self.correct_reference += int((reference.argmax(1) == labels).sum())
            self.correct_found += int((found.argmax(1) == labels).sum())
        self.images += len(reference)

    def update_poses(self, reference: Array, found: Array, scores: Array) -> None:
        """Add the poses ``[n, J, ...]`` of a batch; ``scores`` are the reference's.

        Poses that are not finite have no angle; ``OutputMetrics`` counts them.
        """
        reference, found = (x.reshape(*x.shape[:2], -1) for x in (reference, found))
        finite = np.isfinite(reference).all((1, 2)) & np.isfinite(found).all((1, 2))
        if not finite.any():
            return
        expected, actual = reference[finite].astype(np.float64), found[finite].astype(np.float64)
        rows, winner = np.arange(len(expected)), scores[finite].argmax(1)
        angle = angles(expected[rows, winner], actual[rows, winner])
        self.max_angle = max(self.max_angle, float(angle.max()))
        self._sum_angle += float(angle.sum())
        self._posed += len(expected)
        error = np.abs(np.linalg.norm(expected, axis=-1) - np.linalg.norm(actual, axis=-1))
        self.max_length_error = max(self.max_length_error, float(error.max()))
        self._sum_length += float(error.sum())
        self._capsules += error.size

    def _decide(self, scores: Array) -> NDArray[np.bool_]:
        if self.multi_label:
            return np.asarray(scores >= self.threshold)
        return np.asarray(np.eye(scores.shape[1], dtype=bool)[scores.argmax(1)])

    def margins(self, scores: Array) -> NDArray[np.float64]:
        """How far each decision ``[n]`` for scores ``[n, J]`` is from another one; infinite for one class."""
        values = scores.astype(np.float64)
        if self.multi_label:
            return np.asarray(np.abs(values - self.threshold).min(1))
        if values.shape[1] < 2:
            return np.full(len(values), math.inf)
        parts = np.partition(values, -2, axis=1)
        return np.asarray(parts[:, -1] - parts[:, -2])

    @property
    def accuracy_reference(self) -> float | None:
        """The reference's share of correct decisions; None without labels."""
        return self.correct_reference / self.labelled if self.labelled else None

    @property
    def accuracy_found(self) -> float | None:
        """The artefact's share of correct decisions; None without labels."""
        return self.correct_found / self.labelled if self.labelled else None

    @property
    def agreement(self) -> float:
        """Share of the images with the same decision; ties count as agreement."""
        return 1.0 - len(self.flips) / self.images if self.images else 1.0

    def to_dict(self) -> dict[str, Any]:
        """JSON values only; flips by margin, the largest first."""
        flips = sorted(self.flips, key=lambda f: -f.margin)
        document: dict[str, Any] = {
            "kind": "label set" if self.multi_label else "top-1",
            "images": self.images,
            "agreement": self.agreement,
            "flips": len(flips),
            "flips_by_margin": [
                {
                    "image": f.image,
                    "reference": list(f.reference),
                    "found": list(f.found),
                    "margin": f.margin if math.isfinite(f.margin) else None,
                }
                for f in flips[:LISTED_FLIPS]
            ],
            "ties": self.ties,
        }
        if self._capsules:
            document |= {
                "pose_angle_max_degrees": self.max_angle,
                "pose_angle_mean_degrees": self._sum_angle / self._posed,
                "length_error_max": self.max_length_error,
                "length_error_mean": self._sum_length / self._capsules,
            }
        if self.labelled:
            document |= {
                "accuracy_reference": self.accuracy_reference,
                "accuracy_found": self.accuracy_found,
            }
        return document


def angles(a: Array, b: Array) -> NDArray[np.float64]:
    """Degrees between vectors ``[n, P]``; also exact for small angles (Kahan's formula).

    The angle between two zero vectors is 0; between a zero vector and another it is 90 degrees.
    """
    tiny = np.finfo(np.float64).tiny
    na, nb = (np.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
    u, v = a / np.maximum(na, tiny), b / np.maximum(nb, tiny)
    angle = 2 * np.arctan2(np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1))
    return np.asarray(np.degrees(np.where((na + nb)[..., 0] > 0, angle, 0.0)), np.float64)
