"""The comparison of a regression's values, each in its own unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from capsedge.judging.numeric import ErrorCount
from capsedge.runtime.metadata import ModelMetadata

if TYPE_CHECKING:
    from capsedge.runtime.session import Session

# The mean error of a value may be this share of the range that the reference takes over the images.
SHARE = {"fp16": 0.01, "int8": 0.05, "mixed": 0.05}


def allowed_share(metadata: ModelMetadata | None) -> float:
    """The share of its range that a value's mean error may have where a file is not meant to be exact."""
    precision = "" if metadata is None else metadata.precision
    return SHARE.get(precision, SHARE["int8"])


@dataclass
class RegressionErrors:
    """Errors of a regression's values over all images seen.

    Attributes:
        names, units: of the values.
        images: number of images seen.
        errors: of the values ``[K]``, each with a range of its own.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    images: int = 0
    errors: ErrorCount = field(default_factory=lambda: ErrorCount("values", columns=True))

    @classmethod
    def of(cls, session: Session) -> RegressionErrors | None:
        """The errors of a regression; None for a classification, and without metadata."""
        outputs = None if session.metadata is None else session.metadata.outputs
        if outputs is None or not outputs.values:
            return None
        return cls(outputs.names, outputs.units)

    def update(self, reference: NDArray[Any], found: NDArray[Any]) -> None:
        """Add the values ``[n, K]`` of a batch (`Session.values_of`)."""
        self.errors.update(reference, found)
        self.images += len(reference)

    def failures(self, share: float, place: str) -> list[str]:
        """A sentence for every value whose mean error is over ``share`` of its range."""
        mean = self.errors.mean
        rows = zip(
            self.names, self.units, mean, self.errors.range, self.errors.share(mean), strict=True
        )
        return [
            f"{name}: a mean error of {f'{error:.3g} {unit}'.strip()} on the {place}, "
            f"{100 * found:.3g} % of its range ({range_:.3g}); allowed: {100 * share:g} %."
            for name, unit, error, range_, found in rows
            if not found <= share
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        errors = self.errors
        rows = zip(self.names, self.units, errors.mean, errors.largest, errors.range, strict=True)
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
