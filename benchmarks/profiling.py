"""How far ``capsedge profile`` and ``inspect --forecast`` can be trusted: ``python -m benchmarks.profiling
MODEL...``

For each ONNX file, it reports the overhead of profiling without times per operator (a bare loop of runs and
the profiler's loop take turns); the sum of the operators' times relative to the median of whole runs; and the
forecast of activations relative to what was requested from ONNX Runtime's allocator, both in the first run
and in the next one, by when it has planned a block.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import capsedge
from capsedge.runtime.backends.backend import Feeds, ProfiledBackend
from capsedge.runtime.onnx_file.forecast import forecast
from capsedge.runtime.profiling.operator_times import arena_peak, time_operators
from capsedge.runtime.profiling.profile import random_inputs
from capsedge.runtime.profiling.worker import timed_runs

ROUNDS = 30


def overhead(run: Callable[[], Any], seconds: float) -> float:
    """The time of a run in the profiler's loop relative to that in a bare loop, minus one: the median over
    interleaved rounds."""
    start = time.perf_counter()
    for _ in range(5):
        run()
    each = max(5, int(seconds / ROUNDS / 2 / ((time.perf_counter() - start) / 5)))
    ratios = []
    for turn in range(ROUNDS):
        times = {}
        for kind in ("bare", "profiled") if turn % 2 else ("profiled", "bare"):
            start = time.perf_counter()
            if kind == "bare":
                for _ in range(each):
                    run()
            else:
                timed_runs(run, 0.0, each)
            times[kind] = time.perf_counter() - start
        ratios.append(times["profiled"] / times["bare"])
    return float(np.median(ratios)) - 1


def arena(session: capsedge.Session, feeds: Feeds) -> tuple[int, int]:
    """Peak bytes requested from ONNX Runtime's allocator in the first and in the second run."""
    assert isinstance(session.backend, ProfiledBackend)
    with session.backend.profiled_runs(feeds) as profiled:
        for _ in range(2):
            profiled.profiled()
        runs = profiled.finish().runs
    first = arena_peak(runs) or 0
    most = [max(event.arena or 0 for event in run) for run in runs]
    return first, first + most[1] - most[0]


def main() -> None:
    """Measure and print a row per model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ops", default="auto")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    print("| model | overhead | operators / median | forecast / first run | planned / second run |")
    print("|---|---|---|---|---|")
    for path in options.models:
        session = capsedge.load(path, threads=options.threads, ops=options.ops)
        feeds = random_inputs(session, options.batch)
        extra = overhead(lambda s=session, f=feeds: s.run(f), options.seconds)
        times = time_operators(session, feeds, seconds=options.seconds)
        first, second = arena(session, feeds)
        sizes = forecast(path, options.batch)
        print(
            f"| {path.stem} | {extra:+.1%} | {times.attributed:.1%} | "
            f"{sizes.peak / first:.3f} | {sizes.planned / second:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
