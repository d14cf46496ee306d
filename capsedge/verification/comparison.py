"""Compare the outputs of an artefact with the reference's, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError
from capsedge.metrics import Decisions, ErrorCount, RegressionErrors, has_columns
from capsedge.runtime.session.masks import MaskOverlap
from capsedge.runtime.session.session import Session
from capsedge.tolerance import Tolerance, excess, nearest_ratio, undefined
from capsedge.verification.certificate import ComparisonDocument, OutputDocument
from capsedge.verification.reference import Arrays

Array = NDArray[Any]


@dataclass
class OutputMetrics:
    """Differences of one output over all images seen.

    Attributes:
        name: name of the output.
        tolerance: an element passes if its ``tolerance.excess`` is at most 1.
        max_abs, mean_abs: largest and mean absolute difference.
        relative: ``max_abs`` over the reference's largest magnitude.
        nmse: ``Σ (found - reference)² / Σ reference²``.
        worst: the largest difference of any element, as a multiple of the allowed one.
        worst_image: number of the image with the worst element.
        over: elements beyond their tolerance.
        undefined: elements beyond it where rounding alone moves FP64 by more than a tolerance may grow.
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
    undefined: int = 0
    _images: int = 0
    _sum_abs: float = 0.0
    _largest: float = 0.0
    _error: float = 0.0
    _signal: float = 0.0

    def images_over(self, reference: Array, artefact: Array, noise: Array | float = 0.0) -> Array:
        """Which images of a batch ``[n, ...]`` are beyond the tolerance ``[n]``; nothing is added."""
        expected = np.nan_to_num(reference.astype(np.float64))
        difference = np.nan_to_num(artefact.astype(np.float64)) - expected
        ratio = excess(difference, expected, self.tolerance, noise)
        return np.asarray((ratio > 1).reshape(len(ratio), -1).any(1))

    def update(
        self,
        reference: Array,
        artefact: Array,
        noise: Array | float = 0.0,
        exact: Array | None = None,
        conditioning: Array | float = 0.0,
    ) -> None:
        """Add a batch ``[n, ...]``.

        Args:
            noise: the error of FP32 itself, measured against FP64; widens the tolerance.
            exact: the reference in FP64: an element passes that is near enough to it, too.
            conditioning: how far rounding moves the exact values; widens the tolerance around them.
        """
        expected, actual = reference.astype(np.float64), artefact.astype(np.float64)
        finite = np.isfinite(expected)
        lost = finite & ~np.isfinite(actual)
        self.not_finite += int(lost.sum())
        both = finite & ~lost
        difference = np.subtract(actual, expected, out=np.zeros_like(expected), where=both)
        expected = np.where(both, expected, 0.0)
        size = np.abs(difference)
        ratio = excess(difference, expected, self.tolerance, noise)
        if exact is not None:
            truth = np.where(both, np.nan_to_num(exact), 0.0)
            found_there = np.where(both, actual, 0.0)
            ratio = nearest_ratio(ratio, found_there, truth, self.tolerance, conditioning)
            self.undefined += int((undefined(truth, conditioning) & (ratio > 1)).sum())
        self.over += int((ratio > 1).sum())
        if ratio.size and (self.worst_image is None or ratio.max() > self.worst):
            self.worst = float(ratio.max())
            self.worst_image = self._images + int(np.unravel_index(ratio.argmax(), ratio.shape)[0])
        self.elements += size.size
        self.max_abs = max(self.max_abs, float(size.max(initial=0.0)))
        self._sum_abs += float(size.sum())
        self._largest = max(self._largest, float(np.abs(expected).max(initial=0.0)))
        self._error += float(np.square(difference).sum())
        self._signal += float(np.square(expected).sum())
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
        """Whether all elements are within tolerance and finite."""
        return self.over == 0 and self.not_finite == 0

    def to_dict(self) -> OutputDocument:
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


@dataclass
class OutputComparison:
    """The comparison of an artefact's outputs with the reference's on one set of images."""

    session: Session
    outputs: dict[str, OutputMetrics]
    decisions: Decisions | None
    regression: RegressionErrors | None
    masks: MaskOverlap | None
    errors: dict[str, ErrorCount]

    @classmethod
    def of(
        cls, session: Session, tolerances: Mapping[str, Tolerance], tie: float = 0.0
    ) -> OutputComparison:
        """A comparison of no images yet; ``tie`` as for `Decisions`."""
        outputs = {name: OutputMetrics(name, each) for name, each in tolerances.items()}
        errors = {
            port.name: ErrorCount(port.name, has_columns([port.shape], batched=True))
            for port in session.outputs
            if port.name in tolerances
        }
        return cls(
            session, outputs, Decisions.of(session, tie), RegressionErrors.of(session),
            MaskOverlap.of(session), errors,
        )  # fmt: skip

    def images_over(
        self,
        expected: Arrays,
        artefact: Arrays,
        noise: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> NDArray[np.intp]:
        """The images of a batch with an output beyond its tolerance; nothing is added."""
        over = [
            m.images_over(expected[n], artefact[n], 0.0 if noise is None else noise[n])
            for n, m in self.outputs.items()
            if expected[n].shape == artefact[n].shape and expected[n].ndim
        ]
        return np.flatnonzero(np.any(over, axis=0)) if over else np.zeros(0, np.intp)

    def update(
        self,
        expected: Arrays,
        artefact: Arrays,
        noise: Mapping[str, NDArray[np.float64]] | None = None,
        labels: NDArray[np.int64] | None = None,
        exact: Arrays | None = None,
        conditioning: Arrays | None = None,
    ) -> None:
        """Add a batch of the reference's and the artefact's outputs; as `OutputMetrics.update`.

        Raises:
            ArtefactError: an output's shape is not that of the reference.
        """
        for name, metrics in self.outputs.items():
            if expected[name].shape != artefact[name].shape:
                raise ArtefactError(
                    f"Output '{name}' has the shape {list(artefact[name].shape)}.",
                    f"The reference's has {list(expected[name].shape)}.",
                    "Pass the checkpoint that the file was exported from with --checkpoint.",
                )
            metrics.update(
                expected[name],
                artefact[name],
                0.0 if noise is None else noise[name],
                None if exact is None else exact[name],
                0.0 if conditioning is None else conditioning[name],
            )
            self.errors[name].update(expected[name], artefact[name])
        scores, poses = self.session.roles.scores, self.session.roles.poses
        if self.decisions is not None and scores is not None:
            self.decisions.update(expected[scores], artefact[scores], labels)
            if poses is not None and expected[poses].ndim > 2:
                self.decisions.update_poses(expected[poses], artefact[poses], expected[scores])
        if self.masks is not None:
            roles = self.session.roles
            self.masks.update(roles.input_masks(expected), roles.input_masks(artefact))
        if self.regression is not None:
            self.regression.update(
                self.session.roles.estimates(expected), self.session.roles.estimates(artefact)
            )

    def to_dict(self, names: Sequence[str] = ()) -> ComparisonDocument:
        """JSON values only; ``names`` are those of the images."""
        decided = self.decisions
        document: ComparisonDocument = {
            "outputs": [m.to_dict() for m in self.outputs.values()],
            "decisions": None
            if decided is None
            else decided.to_dict(names, self.session.class_name),
        }
        if self.regression is not None:
            document["estimates"] = self.regression.to_dict()
        if self.masks is not None:
            document["masks"] = self.masks.to_dict()
        return document
