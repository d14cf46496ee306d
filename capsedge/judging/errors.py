"""The difference of numbers that are no scores: mean and largest error of an output, run by run.

Errors are absolute, in the output's own unit, and relative to the range that the reference takes: the largest
less the smallest value on all samples, or the largest magnitude where the value does not vary. In an output
``[N, K]`` each of the K values has a range of its own (they may have different units); larger outputs
have one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UnsupportedModelError

Array = NDArray[Any]
COLUMNS = 64  # most values of one output that are judged each by its own range
_STILL = 1e-6  # a value that varies by less of its magnitude does not vary


@dataclass(frozen=True)
class OutputError:
    """The difference of one output from the reference.

    Attributes:
        name: of the output.
        mean, largest: absolute error, in the output's unit.
        mean_share, largest_share: the same as shares of the range; for whole numbers and truth values the
            share of values that differ, and 0. For several values, the worst one's.
        rms_share: root mean squared error as a share of the range, the worst value's.
    """

    name: str
    mean: float
    largest: float
    mean_share: float
    largest_share: float
    rms_share: float

    def to_dict(self) -> dict[str, float | str]:
        """JSON values."""
        return {
            "name": self.name,
            "mean_error": self.mean,
            "largest_error": self.largest,
            "mean_error_percent": 100.0 * self.mean_share,
            "largest_error_percent": 100.0 * self.largest_share,
        }


class ErrorCount:
    """Adds up the differences of one output; values that are not finite in the reference do not count.

    Args:
        name: of the output.
        columns: whether results are ``[n, K]`` whose K values are judged each by its own range.
    """

    def __init__(self, name: str, columns: bool) -> None:
        self.name, self._columns = name, columns
        self._exact = False
        zero = np.zeros(1)
        self._number, self._sum, self._squares, self._largest = zero, zero, zero, zero
        self._low, self._high = np.full(1, np.inf), np.full(1, -np.inf)

    def update(self, reference: Array, found: Array) -> None:
        """Add the results of one run.

        Raises:
            UnsupportedModelError: their sizes differ.
        """
        if reference.shape != found.shape:
            raise UnsupportedModelError(
                f"Output '{self.name}' cannot be compared.",
                f"Its size depends on its values: it is {list(reference.shape)} in FP32 and "
                f"{list(found.shape)} afterwards.",
                "Quantize the part of the network before the selection.",
            )
        if reference.dtype.kind not in "f":
            self._exact = True
            expected, actual = np.zeros(reference.shape), (reference != found).astype(np.float64)
        else:
            expected, actual = reference.astype(np.float64), found.astype(np.float64)
        wide = int(reference.shape[-1]) if self._columns and reference.ndim else 1
        expected, actual = (np.reshape(v, (-1, wide)) for v in (expected, actual))
        known = np.isfinite(expected)
        difference = np.where(known, np.abs(actual - np.where(known, expected, 0.0)), 0.0)
        self._number = self._number + known.sum(0)
        self._sum = self._sum + difference.sum(0)
        self._squares = self._squares + np.square(difference).sum(0)
        self._largest = np.maximum(self._largest, difference.max(0, initial=0.0))
        self._low = np.minimum(self._low, np.where(known, expected, np.inf).min(0, initial=np.inf))
        self._high = np.maximum(
            self._high, np.where(known, expected, -np.inf).max(0, initial=-np.inf)
        )

    def result(self) -> OutputError:
        """The errors over all runs."""
        number = np.maximum(self._number, 1)
        mean, rms = self._sum / number, np.sqrt(self._squares / number)
        if self._exact:
            share = float(mean.max())
            return OutputError(self.name, share, float(self._largest.max()), share, 0.0, share)
        span = np.where(self._number > 0, self._high - self._low, 0.0)
        size = np.where(self._number > 0, np.maximum(np.abs(self._high), np.abs(self._low)), 0.0)
        range_ = np.where(span > _STILL * size, span, size)
        shares = (_share(value, range_) for value in (mean, self._largest, rms))
        return OutputError(self.name, float(mean.max()), float(self._largest.max()), *shares)


def _share(error: Array, range_: Array) -> float:
    """The largest error as a share of its range; infinite where a value that is always 0 changed."""
    unlimited = np.where(error > 0, np.inf, 0.0)
    return float(np.divide(error, range_, out=unlimited, where=range_ > 0).max())
