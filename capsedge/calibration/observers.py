"""Four methods of choosing the range that 8 bits cover from the values that a tensor takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError

BINS = 2048
PERCENTILE = 99.99  # of the values lie inside the range
LEVELS = 256


@dataclass(frozen=True)
class Histogram:
    """How often a tensor takes which values.

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
    """The middle ``share`` per cent of the values; one-sided where all values have one sign."""
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
    """The range whose rounding and clipping cause the least mean squared error."""
    values, weights = h.centres, h.counts.astype(np.float64)

    def error(low: float, high: float) -> float:
        step = (high - low) / (LEVELS - 1)
        rounded = low + np.rint((np.clip(values, low, high) - low) / step) * step
        return float((weights * np.square(values - rounded)).sum())

    return _best(h, error)


def entropy(h: Histogram) -> Range:
    """The range that loses least information: smallest Kullback-Leibler divergence of the quantized
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
        found = cost(low, high)
        if found < least * (1 - 1e-9):
            best, least = (low, high), found
    return best


METHODS: dict[str, Callable[[Histogram], Range]] = {
    "minmax": minmax,
    "percentile": percentile,
    "entropy": entropy,
    "mse": mse,
}


def observer(method: str) -> Callable[[Histogram], Range]:
    """The method with a name.

    Raises:
        UsageError: there is no such method.
    """
    if method not in METHODS:
        raise UsageError(
            f"There is no calibration method '{method}'.", "", f"Known: {', '.join(METHODS)}."
        )
    return METHODS[method]
