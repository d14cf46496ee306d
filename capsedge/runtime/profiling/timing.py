"""Summarize the times of runs: percentiles, stable window; and measure the processor's speed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# --- The processor's speed at the moment ---

PROBE_SECONDS = 0.02
_PROBE_SIZE = 20_000


def processor_speed() -> float:
    """Rounds per second of a fixed computation in one thread, the best of a few: distinguishes speed states.

    Files under /sys state the frequency if there is one; virtual machines have none, and their neighbours
    slow the processor without changing its frequency.
    """
    values = np.linspace(0.5, 1.5, _PROBE_SIZE)
    best, until = np.inf, time.perf_counter() + PROBE_SECONDS
    while time.perf_counter() < until:
        start = time.perf_counter()
        np.exp(values)
        best = min(best, time.perf_counter() - start)
    return float(1.0 / best)


# --- Statistics of a series of times ---

PERCENTILES = (90.0, 95.0, 99.0, 99.9)
BLOCKS = 20  # number of blocks that a series is split into in the search for its steady part
TOLERANCE = 0.1  # relative difference allowed between a block's median and the steady part's


@dataclass(frozen=True)
class Statistics:
    """Latencies of one series, in milliseconds.

    Attributes:
        count: samples.
        min, mean, median, p90, p95, p99, p99_9, max: numpy's ``percentile`` with its default, linear
            method.
        std: standard deviation of the samples.
        cv: coefficient of variation, ``std / mean``.
    """

    count: int
    min: float
    mean: float
    median: float
    p90: float
    p95: float
    p99: float
    p99_9: float
    max: float
    std: float
    cv: float

    def throughput(self, batch: int) -> float:
        """Images per second at the mean latency."""
        return 1e3 * batch / self.mean


@dataclass(frozen=True)
class StableWindow:
    """The steady part of a series: its samples from ``start`` on.

    Attributes:
        start: first sample of the steady part; None if less than half of the series is steady.
        count: number of samples in it.
        median: its median in milliseconds; that of the whole series if nothing is steady.
    """

    start: int | None
    count: int
    median: float


def summarize(seconds: NDArray[np.float64]) -> Statistics:
    """Statistics of times in seconds; at least one."""
    ms = 1e3 * seconds
    p90, p95, p99, p99_9 = (float(p) for p in np.percentile(ms, PERCENTILES))
    mean, std = float(ms.mean()), float(ms.std())
    return Statistics(
        count=len(ms),
        min=float(ms.min()),
        mean=mean,
        median=float(np.median(ms)),
        p90=p90,
        p95=p95,
        p99=p99,
        p99_9=p99_9,
        max=float(ms.max()),
        std=std,
        cv=std / mean if mean else 0.0,
    )


def stable_window(seconds: NDArray[np.float64]) -> StableWindow:
    """The longest tail in which every block's median is within 10 % of the tail's median."""
    blocks = [block for block in np.array_split(seconds, BLOCKS) if len(block)]
    medians = np.array([np.median(block) for block in blocks])
    lengths = [len(block) for block in blocks]
    for first in range(len(blocks) // 2 + 1):
        rest = medians[first:]
        middle = float(np.median(rest))
        if np.all(np.abs(rest - middle) <= TOLERANCE * middle):
            start = sum(lengths[:first])
            return StableWindow(
                start, len(seconds) - start, 1e3 * float(np.median(seconds[start:]))
            )
    return StableWindow(None, 0, 1e3 * float(np.median(seconds)))
