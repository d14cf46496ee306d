"""The rules in numbers: one table, read by the worker, the check and the results page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Scenario:
    """One of LoadGen's scenarios.

    Attributes:
        name: LoadGen's name.
        field: LoadGen's name for the result in its detail log.
        unit: unit of the result.
        queries: minimum number of queries; LoadGen's early stopping needs them to estimate the percentile.
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
        """Whether lower is better."""
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

SECONDS: Final = 60.0  # minimum duration of a performance run
WARM_UP: Final = 2.0  # seconds of warm-up before the first run
BATCH: Final = 16  # images per run in Offline and Server, if the file's batch is free
SERVER_SECONDS: Final = 0.015  # latency bound in Server
SERVER_PROBE: Final = 5.0  # duration of each run in the search for the rate
SERVER_PROBES: Final = 6
SERVER_STEP: Final = 0.95  # factor of the rate for the next full run, if one was invalid
SERVER_TRIES: Final = 5
TRIES: Final = (
    3  # full runs of the other scenarios: LoadGen must know in advance how long a query takes
)
SEED: Final = 20261122  # seed for the order of samples and for arrivals
LIMIT: Final = 7200.0  # maximum seconds for one process: a file in one runtime, all scenarios
