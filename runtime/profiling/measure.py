"""Timing: warm up, then run until the duration and the number of runs are reached."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROBE_SECONDS = 0.02
_PROBE_SIZE = 20_000


@dataclass(frozen=True)
class Limits:
    """How long to measure.

    Attributes:
        warmup: seconds of runs that are not timed.
        duration: seconds of timed runs.
        iterations: least number of timed runs, whatever the duration.
    """

    warmup: float = 0.5
    duration: float = 3.0
    iterations: int = 10


def take_times(run: Callable[[], Any], limits: Limits) -> NDArray[np.float64]:
    """Seconds of each run, after the warm-up."""
    until = time.perf_counter() + limits.warmup
    while time.perf_counter() < until:
        run()
    return timed_runs(run, limits.duration, limits.iterations)


def timed_runs(
    run: Callable[[], Any], duration: float, least: int = 1, most: int | None = None
) -> NDArray[np.float64]:
    """Seconds of each run: runs until both the number and the duration are reached, or ``most`` runs."""
    clock = time.perf_counter
    samples: list[float] = []
    end = clock() + duration
    now = clock()
    while (now < end or len(samples) < least) and (most is None or len(samples) < most):
        start = clock()
        run()
        now = clock()
        samples.append(now - start)
    return np.array(samples)


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
