"""What a comparison measures: numbers an output, decisions an image. Collected batch by batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.verification.tolerance import Tolerance

Array = NDArray[Any]
LISTED_FLIPS = 100  # the certificate lists so many; all are counted


@dataclass
class OutputMetrics:
    """Differences of one output over all images seen.

    Attributes:
        name: of the output.
        tolerance: an element passes when ``|found - reference| <= atol + rtol * size``, the size being the
            largest magnitude along the reference's last axis: rounding follows the size of a pose, not that
            of its smallest element.
        max_abs, mean_abs: of the absolute differences.
        relative: ``max_abs`` over the reference's largest magnitude.
        nmse: ``Σ (found - reference)² / Σ reference²``.
        worst: of all elements, the largest difference as a multiple of what is allowed.
        worst_image: the image that has it.
        over: elements beyond their tolerance.
        not_finite: elements that are NaN or infinite in the artefact and not in the reference.
    """

    name: str
    tolerance: Tolerance
    elements: int = 0
    max_abs: float = 0.0
    worst: float = 0.0
    worst_image: int | None = None
    over: int = 0
    not_finite: int = 0
    _images: int = 0
    _sum_abs: float = 0.0
    _largest: float = 0.0
    _error: float = 0.0
    _signal: float = 0.0

    def update(self, reference: Array, found: Array, noise: Array | None = None) -> None:
        """Add a batch ``[n, ...]``.

        Args:
            noise: what FP32 itself is off by here, as measured against FP64; widens the tolerance.
        """
        wanted, got = reference.astype(np.float64), found.astype(np.float64)
        finite = np.isfinite(wanted)
        lost = finite & ~np.isfinite(got)
        self.not_finite += int(lost.sum())
        both = finite & np.isfinite(got)
        wanted, difference = np.where(both, wanted, 0.0), np.where(both, got - wanted, 0.0)
        size = np.abs(difference)
        size_of_pose = np.abs(wanted).max(axis=-1, keepdims=True, initial=0.0)
        allowed = self.tolerance.atol + self.tolerance.rtol * size_of_pose
        if noise is not None:
            allowed = allowed + noise
        ratio = np.divide(size, allowed, out=np.where(size > 0, np.inf, 0.0), where=allowed > 0)
        self.over += int((ratio > 1).sum())
        if ratio.size and (self.worst_image is None or ratio.max() > self.worst):
            self.worst = float(ratio.max())
            self.worst_image = self._images + int(np.unravel_index(ratio.argmax(), ratio.shape)[0])
        self.elements += size.size
        self.max_abs = max(self.max_abs, float(size.max(initial=0.0)))
        self._sum_abs += float(size.sum())
        self._largest = max(self._largest, float(np.abs(wanted).max(initial=0.0)))
        self._error += float(np.square(difference).sum())
        self._signal += float(np.square(wanted).sum())
        self._images += len(reference)

    @property
    def mean_abs(self) -> float:
        """Mean absolute difference."""
        return self._sum_abs / self.elements if self.elements else 0.0

    @property
    def relative(self) -> float:
        """Largest difference over the reference's largest magnitude."""
        return self.max_abs / self._largest if self._largest else float(self.max_abs > 0)

    @property
    def nmse(self) -> float:
        """Normalised mean squared error; scale-free."""
        return self._error / self._signal if self._signal else float(self._error > 0)

    @property
    def passed(self) -> bool:
        """No element beyond its tolerance, none lost to NaN or infinity."""
        return self.over == 0 and self.not_finite == 0

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "name": self.name,
            "atol": self.tolerance.atol,
            "rtol": self.tolerance.rtol,
            "elements": self.elements,
            "max_abs": self.max_abs,
            "mean_abs": self.mean_abs,
            "relative": self.relative,
            "nmse": self.nmse,
            "worst_over_tolerance": self.worst if math.isfinite(self.worst) else None,
            "worst_image": self.worst_image,
            "over": self.over,
            "not_finite": self.not_finite,
            "passed": self.passed,
        }


@dataclass(frozen=True)
class Flip:
    """An image on which the two decide differently.

    Attributes:
        image: its number.
        reference, found: the classes decided for.
        margin: how sure the reference was: distance to the next class, or to the threshold.
    """

    image: int
    reference: tuple[int, ...]
    found: tuple[int, ...]
    margin: float


@dataclass
class Decisions:
    """Decisions over all images seen.

    Attributes:
        multi_label: decisions are the set of classes with a score above ``threshold``, else the best class.
        tie: a flip counts only if the reference's margin is larger; 0 counts every flip.
        angles: degrees between the poses of the class that the reference decided for.
        lengths: absolute differences of the lengths of all class capsules' poses.
    """

    multi_label: bool = False
    threshold: float = 0.5
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

    def update(self, reference: Array, found: Array, labels: Array | None = None) -> None:
        """Add the scores ``[n, J]`` of a batch."""
        wanted, got = self._decide(reference), self._decide(found)
        for k in np.flatnonzero((wanted != got).any(1)):
            margin = self._margin(reference[k].astype(np.float64))
            if margin <= self.tie:
                self.ties += 1
                continue
            self.flips.append(
                Flip(
                    self.images + int(k),
                    tuple(int(j) for j in np.flatnonzero(wanted[k])),
                    tuple(int(j) for j in np.flatnonzero(got[k])),
                    margin,
                )
            )
        if labels is not None and not self.multi_label:
            self.labelled += len(labels)
            self.correct_reference += int((reference.argmax(1) == labels).sum())
            self.correct_found += int((found.argmax(1) == labels).sum())
        self.images += len(reference)

    def update_poses(self, reference: Array, found: Array, scores: Array) -> None:
        """Add the poses ``[n, J, P]`` of a batch; ``scores`` are the reference's.

        Poses that are not finite have no angle; ``OutputMetrics`` counts them.
        """
        finite = np.isfinite(reference).all((1, 2)) & np.isfinite(found).all((1, 2))
        if not finite.any():
            return
        wanted, got = reference[finite].astype(np.float64), found[finite].astype(np.float64)
        winner = scores[finite].argmax(1)
        angle = angles(wanted[np.arange(len(wanted)), winner], got[np.arange(len(got)), winner])
        self.max_angle = max(self.max_angle, float(angle.max()))
        self._sum_angle += float(angle.sum())
        self._posed += len(wanted)
        error = np.abs(np.linalg.norm(wanted, axis=-1) - np.linalg.norm(got, axis=-1))
        self.max_length_error = max(self.max_length_error, float(error.max()))
        self._sum_length += float(error.sum())
        self._capsules += error.size

    def _decide(self, scores: Array) -> NDArray[np.bool_]:
        if self.multi_label:
            return np.asarray(scores >= self.threshold)
        return np.asarray(np.eye(scores.shape[1], dtype=bool)[scores.argmax(1)])

    def _margin(self, scores: Array) -> float:
        if self.multi_label:
            return float(np.abs(scores - self.threshold).min())
        if len(scores) < 2:
            return math.inf
        second, first = np.partition(scores, -2)[-2:]
        return float(first - second)

    @property
    def agreement(self) -> float:
        """Share of the images with the same decision; ties count as agreement."""
        return 1.0 - len(self.flips) / self.images if self.images else 1.0

    def to_dict(self) -> dict[str, Any]:
        """JSON values only; flips by margin, the surest decision first."""
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
                "accuracy_reference": self.correct_reference / self.labelled,
                "accuracy_found": self.correct_found / self.labelled,
            }
        return document


def angles(a: Array, b: Array) -> NDArray[np.float64]:
    """Degrees between vectors ``[n, P]``; exact for small angles too (Kahan's formula).

    Two vectors of no length have no angle between them; one without length and one with are 90 degrees apart.
    """
    tiny = np.finfo(np.float64).tiny
    na, nb = (np.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
    u, v = a / np.maximum(na, tiny), b / np.maximum(nb, tiny)
    angle = 2 * np.arctan2(np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1))
    return np.asarray(np.degrees(np.where((na + nb)[..., 0] > 0, angle, 0.0)), np.float64)
