"""Differences of outputs that are compared as numbers: mean and largest error, run by run.

Errors are absolute, in the output's own unit, and relative to the range that the reference takes: the largest
less the smallest value on all samples, or the largest magnitude where the value does not vary. In an output
``[N, K]`` each of the K values has a range of its own (they may have different units); larger outputs
have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UnsupportedModelError

Array = NDArray[Any]
COLUMNS = 64  # most values of one output that are judged each by its own range
_STILL = 1e-6  # a value that varies by less of its magnitude does not vary


def has_columns(shapes: Sequence[Sequence[int | str | None]], batched: bool) -> bool:
    """Whether each value of an output is judged by its own range.

    Args:
        shapes: of the output, in every run.
        batched: whether the first axis counts samples; otherwise a run is one sample, and ``[K]`` its values.
    """
    ranks = (2,) if batched else (1, 2)
    last = {shape[-1] if len(shape) in ranks else 0 for shape in shapes}
    wide = last.pop() if len(last) == 1 else 0
    return isinstance(wide, int) and 0 < wide <= COLUMNS


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

    @property
    def mean(self) -> Array:
        """Mean absolute error ``[K]``, or ``[1]`` without columns."""
        return np.asarray(self._sum / np.maximum(self._number, 1))

    @property
    def largest(self) -> Array:
        """Largest absolute error, as ``mean``."""
        return self._largest

    @property
    def range(self) -> Array:
        """Largest less smallest value of the reference; the magnitude of one that does not vary."""
        known = self._number > 0
        span = np.subtract(self._high, self._low, out=np.zeros(known.shape), where=known)
        size = np.where(known, np.maximum(np.abs(self._high), np.abs(self._low)), 0.0)
        return np.where(span > _STILL * size, span, size)

    def share(self, error: Array) -> Array:
        """Errors as shares of the range; infinite where a value that is always 0 changed."""
        range_ = self.range
        unlimited = np.where(error > 0, np.inf, 0.0)
        return np.asarray(np.divide(error, range_, out=unlimited, where=range_ > 0))

    def result(self) -> OutputError:
        """The errors over all runs."""
        mean, largest = float(self.mean.max()), float(self.largest.max())
        if self._exact:
            return OutputError(self.name, mean, largest, mean, 0.0, mean)
        rms = np.sqrt(self._squares / np.maximum(self._number, 1))
        shares = (float(self.share(value).max()) for value in (self.mean, self.largest, rms))
        return OutputError(self.name, mean, largest, *shares)
