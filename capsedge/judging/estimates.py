"""The comparison of a regression's values, each in its own unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.metadata import ModelMetadata

if TYPE_CHECKING:
    from capsedge.runtime.session import Session

Array = NDArray[np.float64]

# The mean error of a value may be this share of its spread: the standard deviation over the images.
# INT8 changes about as much as the decisions of a classification may change (`tolerance.AGREEMENT`).
SPREAD = {"fp16": 0.02, "int8": 0.1, "mixed": 0.1}


def allowed_share(metadata: ModelMetadata | None) -> float:
    """The share of the spread that a value's mean error may have where a file is not meant to be exact."""
    precision = "" if metadata is None else metadata.precision
    return SPREAD.get(precision, SPREAD["int8"])


@dataclass
class Estimates:
    """Errors of a regression's values over all images seen.

    Attributes:
        names, units: of the values.
        images: number of images seen.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    images: int = 0
    _errors: list[Array] = field(default_factory=list)
    _reference: list[Array] = field(default_factory=list)

    @classmethod
    def of(cls, session: Session) -> Estimates | None:
        """Estimates of a regression; None for a classification, and without metadata."""
        outputs = None if session.metadata is None else session.metadata.outputs
        if outputs is None or not outputs.values:
            return None
        return cls(outputs.names, outputs.units)

    def update(self, reference: NDArray[Any], found: NDArray[Any]) -> None:
        """Add the values ``[n, K]`` of a batch (`Session.values_of`)."""
        exact = reference.astype(np.float64)
        self._reference.append(exact)
        self._errors.append(np.abs(found.astype(np.float64) - exact))
        self.images += len(exact)

    def _all(self, parts: list[Array]) -> Array:
        return np.concatenate(parts) if parts else np.zeros((1, len(self.names)))

    @property
    def mean_error(self) -> Array:
        """Mean absolute error of each value ``[K]``, in its unit."""
        return np.asarray(self._all(self._errors).mean(axis=0))

    @property
    def largest_error(self) -> Array:
        """Largest absolute error of each value ``[K]``, in its unit."""
        return np.asarray(self._all(self._errors).max(axis=0))

    @property
    def spread(self) -> Array:
        """Standard deviation of each value over the images ``[K]``; its size if it is the same for all."""
        values = self._all(self._reference)
        deviation = values.std(axis=0)
        return np.asarray(np.where(deviation > 0, deviation, np.abs(values).max(axis=0)))

    @property
    def share(self) -> Array:
        """The mean error as a share of the spread ``[K]``; infinite for an error where there is no spread."""
        error, spread = self.mean_error, self.spread
        unlimited = np.where(error > 0, np.inf, 0.0)
        return np.asarray(np.divide(error, spread, out=unlimited, where=spread > 0))

    def failures(self, share: float, place: str) -> list[str]:
        """A sentence for every value whose mean error is over ``share`` of its spread."""
        rows = zip(self.names, self.units, self.mean_error, self.spread, self.share, strict=True)
        return [
            f"{name}: a mean error of {f'{error:.3g} {unit}'.strip()} on the {place}, "
            f"{100 * found:.3g} % of the spread ({spread:.3g}); allowed: {100 * share:g} %."
            for name, unit, error, spread, found in rows
            if not found <= share
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        rows = zip(
            self.names, self.units, self.mean_error, self.largest_error, self.spread, strict=True
        )
        return {
            "images": self.images,
            "values": [
                {
                    "name": name,
                    "unit": unit,
                    "mean_error": float(mean),
                    "largest_error": float(largest),
                    "spread": float(spread),
                }
                for name, unit, mean, largest, spread in rows
            ],
        }
