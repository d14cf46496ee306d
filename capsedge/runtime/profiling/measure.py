"""The speed of the processor at the moment."""

from __future__ import annotations

import time

import numpy as np

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
