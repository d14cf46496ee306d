"""The rules in numbers: one table, which the worker, the check and the results page read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Scenario:
    """One of LoadGen's scenarios.

    Attributes:
        name: LoadGen's name.
        field: LoadGen's name of the result, in the log of details.
        unit: of the result.
        queries: the minimum number; with fewer, LoadGen's early stopping has no estimate of the percentile.
        samples: images per query.
        text: what is measured, for the results page.
    """

    name: str
    field: str
    unit: str
    queries: int
    samples: int
    text: str

    @property
    def is_latency(self) -> bool:
        """Whether less is better."""
        return self.unit == "ns"


SINGLE: Final = Scenario(
    "SingleStream", "early_stopping_latency_ss", "ns", 64, 1,
    "one image at a time, the next one after the answer: 90th percentile of the latency",
)  # fmt: skip
MULTI: Final = Scenario(
    "MultiStream", "early_stopping_latency_ms", "ns", 662, 8,
    "eight images at a time: 99th percentile of the latency of all eight",
)  # fmt: skip
SERVER: Final = Scenario(
    "Server", "result_completed_samples_per_sec", "images/s", 662, 1,
    "images that arrive at random (Poisson): the highest rate found at which 99 % are answered in time",
)  # fmt: skip
OFFLINE: Final = Scenario(
    "Offline", "result_samples_per_second", "images/s", 1, 1,
    "all images at once: throughput",
)  # fmt: skip
SCENARIOS: Final = {s.name: s for s in (SINGLE, MULTI, SERVER, OFFLINE)}

SECONDS: Final = 60.0  # the least duration of a performance run
WARM_UP: Final = 2.0  # seconds of runs before the first
BATCH: Final = 16  # images per run in Offline and Server, where the file's batch is free
SERVER_SECONDS: Final = 0.015  # the bound of the latency in Server
SERVER_PROBE: Final = 5.0  # seconds of each run that searches for the rate
SERVER_PROBES: Final = 6
SERVER_STEP: Final = 0.95  # the rate of the next full run, where one was invalid
SERVER_TRIES: Final = 5
TRIES: Final = (
    3  # full runs of the other scenarios: LoadGen wants to know beforehand how long a query takes
)
SEED: Final = 20261122  # of the samples' order and of arrivals
LIMIT: Final = 7200.0  # seconds of one process: a file in one runtime, all scenarios
