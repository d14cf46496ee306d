"""Reasons to distrust a measurement, in the manner of trtexec: spread, bounds, the machine's state."""

from __future__ import annotations

import os
from dataclasses import dataclass

from capsedge.runtime.profiling.operator_times import OperatorTimes
from capsedge.runtime.profiling.statistics import StableWindow, Statistics

LARGE_CV = 0.1
SLOWER = 0.85  # of the processor's best speed in this measurement
BUSY = 0.5  # load per core before measuring
HOST, TRANSFER = 0.2, 0.1  # of a run's time
ATTRIBUTED = 0.1  # how far the operators' sum may be from the run's median


@dataclass(frozen=True)
class Conditions:
    """The state of the machine around a measurement.

    Attributes:
        speeds: speed of the processor, in rounds per second of a fixed computation, before and after.
        load: processes that were ready to run, averaged over the minute before (``os.getloadavg``).
        cores: number of cores that this process may use.
        stolen: share of the time that the host gave to other machines; None if the system does not report it.
    """

    speeds: tuple[float, ...]
    load: float
    cores: int
    stolen: float | None


def judge(
    latency: Statistics,
    stable: StableWindow,
    conditions: Conditions,
    operators: OperatorTimes | None,
    on_gpu: bool,
) -> list[str]:
    """One or two sentences for each reason to distrust the measurement; empty is good."""
    found = []
    if latency.cv > LARGE_CV:
        found.append(
            f"Variance: the coefficient of variation is {latency.cv:.0%} (over {LARGE_CV:.0%}). "
            f"Compare medians, "
            "not means; close other programs, or measure longer with --duration."
        )
    if stable.start is None:
        found.append(
            "No stable window: the median moved by more than 10 % in the second half of the series. "
            "Measure longer with --duration, or warm up longer with --warmup."
        )
    elif stable.start:
        found.append(
            f"Warm-up: the series is steady from sample {stable.start} of {latency.count} on, "
            f"with a median of "
            f"{stable.median:.3f} ms. Warm up longer with --warmup."
        )
    slowest, fastest = min(conditions.speeds), max(conditions.speeds)
    if slowest < SLOWER * fastest:
        found.append(
            f"CPU frequency: a fixed computation ran at {slowest / fastest:.0%} of its "
            f"best speed during "
            "the measurement: the processor changed its clock, or shares it with neighbours. Fix "
            "the clock, or repeat."
        )
    if conditions.load > BUSY * conditions.cores:
        found.append(
            f"CPU load: {conditions.load:.1f} processes competed for the {conditions.cores} cores in "
            f"the minute before. "
            "Stop other programs."
        )
    if conditions.stolen is not None and conditions.stolen > 0.02:
        found.append(
            f"CPU load: the host gave {conditions.stolen:.0%} of this virtual machine's time to others."
        )
    if operators is not None and operators.median_ms:
        found += _bounds(operators, on_gpu)
    return found


def _bounds(operators: OperatorTimes, on_gpu: bool) -> list[str]:
    found = []
    median = operators.median_ms
    if operators.call_ms > HOST * median:
        found.append(
            f"Host-bound: {operators.call_ms / median:.0%} of a run is the call itself, not "
            f"operators. Use larger batches."
        )
    tiny = [o for o in operators.operators if o.microseconds < 2.0]
    share = sum(o.microseconds for o in tiny) / 1e3 / median
    if not on_gpu and share > HOST:
        found.append(
            f"Host-bound: {len(tiny)} operators take less than 2 µs each and {share:.0%} of a run "
            "in all, "
            "more for dispatch than for work. Fused operators (`--ops fused`) or larger batches help."
        )
    copies = [o for o in operators.operators if o.kind.startswith("Memcpy")]
    moved = sum(o.microseconds for o in copies) / 1e3 / median
    if moved > TRANSFER:
        found.append(
            f"Transfer-bound: {len(copies)} copies between host and device take {moved:.0%} of a run."
        )
    whole = operators.attributed
    if abs(whole - 1) > ATTRIBUTED:
        found.append(
            f"Operators: their sum is {whole:.0%} of the median of whole runs, more than 10 % off; "
            "the times by operator are less certain than usual."
        )
    return found


def stolen_ticks() -> tuple[int, int] | None:
    """Ticks stolen by the host, and all ticks, since the machine started; None if not reported."""
    try:
        with open("/proc/stat", encoding="ascii") as f:
            fields = [int(x) for x in f.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return (fields[7], sum(fields)) if len(fields) == 8 else None


def stolen_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Share of the time between two readings that the host took."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def load_average() -> float:
    """Processes ready to run, averaged over the last minute; 0 if the system does not report it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
