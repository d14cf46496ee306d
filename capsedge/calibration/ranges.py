"""Choose the range of every activation for 8 bits, and keep the ranges in a calibration table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.files import documents
from capsedge.runtime.files.documents import MalformedJson, decode
from capsedge.runtime.files.writing import write_text

# --- Four methods of choosing a range ---

BINS = 2048
PERCENTILE = 99.99  # share of the values inside the range, in per cent
LEVELS = 256


@dataclass(frozen=True)
class Histogram:
    """The distribution of a tensor's values.

    Attributes:
        low, high: smallest and largest value seen.
        counts: ``[BINS]``, of equal bins from ``low`` to ``high``.
        means: ``[C]``, mean of every channel of an image; empty for other tensors.
    """

    low: float
    high: float
    counts: NDArray[np.int64]
    means: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @property
    def edges(self) -> NDArray[np.float64]:
        """The edges of the bins, ``[BINS + 1]``."""
        return np.linspace(self.low, self.high, len(self.counts) + 1)

    @property
    def centres(self) -> NDArray[np.float64]:
        """``[BINS]``."""
        edges = self.edges
        return np.asarray((edges[1:] + edges[:-1]) / 2, np.float64)


Range = tuple[float, float]


def minmax(h: Histogram) -> Range:
    """All values seen."""
    return h.low, h.high


def percentile(h: Histogram, share: float = PERCENTILE) -> Range:
    """The middle ``share`` per cent of the values; one-sided if all values have the same sign."""
    total = h.counts.sum()
    if total == 0:
        return minmax(h)
    below = np.cumsum(h.counts) / total
    outside = 1 - share / 100
    edges = h.edges
    low = h.low
    if h.low < 0:
        outside /= 2
        low = float(edges[int(np.searchsorted(below, outside, side="right"))])
    last = min(int(np.searchsorted(below, 1 - outside)), len(h.counts) - 1)
    return low, float(edges[last + 1])


def mse(h: Histogram) -> Range:
    """The range with the least mean squared error from rounding and clipping."""
    values, weights = h.centres, h.counts.astype(np.float64)

    def error(low: float, high: float) -> float:
        step = (high - low) / (LEVELS - 1)
        rounded = low + np.rint((np.clip(values, low, high) - low) / step) * step
        return float((weights * np.square(values - rounded)).sum())

    return _best(h, error)


def entropy(h: Histogram) -> Range:
    """The range that loses the least information: smallest Kullback-Leibler divergence of the quantized
    distribution from the original (Migacz 2017, "8-bit inference with TensorRT").

    The bin of zero gets its neighbour's count: zeros, most values after a ReLU, are exact in any range.
    """
    counts = h.counts.astype(np.float64)
    centres = h.centres
    if h.low <= 0 <= h.high and len(counts) > 1:
        zero = int(np.abs(centres).argmin())
        counts[zero] = counts[zero + 1 if zero + 1 < len(counts) else zero - 1]

    def divergence(low: float, high: float) -> float:
        inside = (centres >= low) & (centres <= high)
        kept = counts[inside]
        if len(kept) < LEVELS or kept.sum() == 0:
            return np.inf
        # Values outside the range are clipped to the ends of the reference distribution and are missing
        # from the quantized one, so that clipping has a cost.
        reference = kept.copy()
        reference[0] += counts[centres < low].sum()
        reference[-1] += counts[centres > high].sum()
        level = np.arange(len(kept)) * LEVELS // len(kept)
        occupied = (kept > 0).astype(np.float64)
        sums = np.bincount(level, kept, LEVELS)
        bins = np.bincount(level, occupied, LEVELS)
        quantized = np.divide(sums, bins, out=np.zeros_like(sums), where=bins > 0)[level] * occupied
        p, q = reference / reference.sum(), quantized / max(quantized.sum(), 1.0)
        q = np.where((p > 0) & (q == 0), 1e-9, q)
        some = p > 0
        return float((p[some] * np.log(p[some] / q[some])).sum())

    return _best(h, divergence)


def _best(h: Histogram, cost: Callable[[float, float], float]) -> Range:
    """The cheapest of several ranges that shrink towards zero; of equal ones the widest."""
    if h.high <= h.low or h.counts.sum() == 0:
        return minmax(h)
    best, least = minmax(h), np.inf
    for share in np.linspace(1.0, 0.1, 91):
        low, high = (float(v) * float(share) for v in (min(h.low, 0.0), max(h.high, 0.0)))
        price = cost(low, high)
        if price < least * (1 - 1e-9):
            best, least = (low, high), price
    return best


METHODS: dict[str, Callable[[Histogram], Range]] = {
    "minmax": minmax,
    "percentile": percentile,
    "entropy": entropy,
    "mse": mse,
}


def range_method(method: str) -> Callable[[Histogram], Range]:
    """The method with a name. Raises UsageError if there is no such method."""
    if method not in METHODS:
        raise UsageError(
            f"Unknown calibration method '{method}'.", "", f"Choose one of: {', '.join(METHODS)}."
        )
    return METHODS[method]


# --- The calibration table: ranges, histograms and their origin ---

SCHEMA = 1
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class TensorRange:
    """One tensor: the range that its 8 bits cover, and the histogram that the range was chosen from."""

    low: float
    high: float
    histogram: Histogram


@dataclass(frozen=True)
class CalibrationTable:
    """Ranges of activations.

    Attributes:
        model_sha256: SHA-256 of the FP32 file.
        data_sha256: SHA-256 of the calibration images, as computed by `ImageSet.digest`.
        method: ``minmax``, ``percentile``, ``entropy`` or ``mse``.
        images: number of calibration images.
        source: where the images come from.
        entries: entries by tensor name.
    """

    model_sha256: str
    data_sha256: str
    method: str
    images: int
    source: str
    entries: dict[str, TensorRange] = field(default_factory=dict)

    @classmethod
    def from_histograms(
        cls,
        model_sha256: str,
        data_sha256: str,
        method: str,
        images: int,
        source: str,
        histograms: dict[str, Histogram],
    ) -> CalibrationTable:
        """Choose every range with a method."""
        choose = range_method(method)
        entries = {name: TensorRange(*choose(h), h) for name, h in histograms.items()}
        return cls(model_sha256, data_sha256, method, images, source, entries)

    def check(
        self,
        model_sha256: str,
        data_sha256: str,
        method: str,
        tensors: Iterable[str],
        path: Path | str,
    ) -> None:
        """Refuse a table of another model, other data or another method, or one that lacks a tensor."""
        _check_same("model", self.model_sha256, model_sha256, path)
        _check_same("method", self.method, method, path)
        _check_same("calibration data", self.data_sha256, data_sha256, path)
        missing = [name for name in tensors if name not in self.entries]
        if missing:
            raise _damaged(path, f"It has no entry for '{missing[0]}'")

    def save(self, path: Path | str) -> None:
        """Write the table as JSON. Raises UsageError if the path cannot be written."""
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "model_sha256": self.model_sha256,
            "data_sha256": self.data_sha256,
            "method": self.method,
            "images": self.images,
            "source": self.source,
            "tensors": {
                name: {
                    "low": e.low,
                    "high": e.high,
                    "histogram": {
                        "low": e.histogram.low,
                        "high": e.histogram.high,
                        "counts": e.histogram.counts.tolist(),
                        "means": e.histogram.means.tolist(),
                    },
                }
                for name, e in self.entries.items()
            },
        }
        write_text(path, json.dumps(document) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> CalibrationTable:
        """Read a table."""
        try:
            document = decode(_TableDocument, documents.read(Path(path)))
            if document.schema != SCHEMA:
                raise MalformedJson(f"schema {document.schema}, not {SCHEMA}")
        except MalformedJson as error:
            raise _damaged(path, str(error)) from error
        return cls(
            document.model_sha256,
            document.data_sha256,
            document.method,
            document.images,
            document.source,
            {name: entry.read() for name, entry in document.tensors.items()},
        )


@dataclass(frozen=True)
class _StoredHistogram:
    low: float
    high: float
    counts: list[int]
    means: list[float]

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)
        if any(abs(mean) > _LARGEST for mean in self.means):
            raise ValueError("a mean beyond the range of FP32")
        if not self.counts or min(self.counts) < 0 or sum(self.counts) >= 2**63:
            raise ValueError("bad counts")


@dataclass(frozen=True)
class _StoredEntry:
    low: float
    high: float
    histogram: _StoredHistogram

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def read(self) -> TensorRange:
        """The entry, with arrays."""
        h = self.histogram
        counts, means = np.array(h.counts, np.int64), np.array(h.means, np.float64)
        return TensorRange(self.low, self.high, Histogram(h.low, h.high, counts, means))


@dataclass(frozen=True)
class _TableDocument:
    """A table as stored in its file."""

    schema: int
    model_sha256: str
    data_sha256: str
    method: str
    images: int
    source: str
    tensors: dict[str, _StoredEntry]


def _check_same(name: str, actual: str, current: str, path: Path | str) -> None:
    if actual != current:
        raise ArtefactError(
            f"The calibration table {path} is stale.",
            f"It was made for another {name}: {actual[:16]}, now {current[:16]}.",
            f"Delete it to calibrate again: rm {shlex.quote(str(path))}",
        )


def _check_range(low: float, high: float) -> None:
    if not -_LARGEST <= low <= high <= _LARGEST:
        raise ValueError(f"the range {low:g} to {high:g}")


def _damaged(path: Path | str, why: str) -> ArtefactError:
    return ArtefactError(
        f"{path} is not a readable calibration table.",
        f"{why}.",
        f"Delete it: rm {shlex.quote(str(path))}",
    )
