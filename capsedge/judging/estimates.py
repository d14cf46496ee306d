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

# The mean error of a value may be this share of the range that the reference takes over the images.
SHARE = {"fp16": 0.01, "int8": 0.05, "mixed": 0.05}
_STILL = 1e-6  # a value that varies by less of its magnitude does not vary


def allowed_share(metadata: ModelMetadata | None) -> float:
    """The share of its range that a value's mean error may have where a file is not meant to be exact."""
    precision = "" if metadata is None else metadata.precision
    return SHARE.get(precision, SHARE["int8"])


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
    def range(self) -> Array:
        """Largest less smallest value over the images ``[K]``; the magnitude of one that does not vary."""
        values = self._all(self._reference)
        span, size = values.max(axis=0) - values.min(axis=0), np.abs(values).max(axis=0)
        return np.asarray(np.where(span > _STILL * size, span, size))

    @property
    def share(self) -> Array:
        """The mean error as a share of the range ``[K]``; infinite where a value that is always 0 changed."""
        error, range_ = self.mean_error, self.range
        unlimited = np.where(error > 0, np.inf, 0.0)
        return np.asarray(np.divide(error, range_, out=unlimited, where=range_ > 0))

    def failures(self, share: float, place: str) -> list[str]:
        """A sentence for every value whose mean error is over ``share`` of its range."""
        rows = zip(self.names, self.units, self.mean_error, self.range, self.share, strict=True)
        return [
            f"{name}: a mean error of {f'{error:.3g} {unit}'.strip()} on the {place}, "
            f"{100 * found:.3g} % of its range ({range_:.3g}); allowed: {100 * share:g} %."
            for name, unit, error, range_, found in rows
            if not found <= share
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        rows = zip(
            self.names, self.units, self.mean_error, self.largest_error, self.range, strict=True
        )
        return {
            "images": self.images,
            "values": [
                {
                    "name": name,
                    "unit": unit,
                    "mean_error": float(mean),
                    "largest_error": float(largest),
                    "range": float(range_),
                }
                for name, unit, mean, largest, range_ in rows
            ],
        }
