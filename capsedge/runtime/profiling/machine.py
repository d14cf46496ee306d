"""Measured limits of this machine: multiply-adds and memory traffic, and the cost of timing an operator."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.backends.backend import Feeds
from capsedge.runtime.backends.onnxruntime_backend import How
from capsedge.runtime.backends.onnxruntime_profiler import ProfiledSession
from capsedge.runtime.profiling.probe_models import chain, matrix_product

MATRIX = 384  # side; its three matrices stay in the caches, and the result needs no new pages
MATRIX_SECONDS, COPY_SECONDS = 0.4, 0.3
LEAST = 10  # attempts, on a machine too busy for more
COPY_FLOATS = 16 << 20  # 64 MiB are copied to 64 MiB
CHAIN = 128
CHAIN_RUNS, CHAIN_LEAST, CHAIN_SECONDS = 200, 10, 2.0


@dataclass(frozen=True)
class Peaks:
    """The best measurements, with as many threads as the model uses.

    Attributes:
        operations: FP32 operations per second (a multiply-add is two) of a large matrix product in ONNX
            Runtime.
        bandwidth: bytes per second read and written by a copy too large for the caches.
    """

    operations: float
    bandwidth: float
    threads: int


def measure_peaks(threads: int) -> Peaks:
    """Measure both; takes less than a second."""
    return Peaks(_operations(threads), _bandwidth(threads), threads)


def _operations(threads: int) -> float:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(
        matrix_product(MATRIX), options, providers=["CPUExecutionProvider"]
    )
    a = np.full((MATRIX, MATRIX), 0.5, np.float32)
    return 2.0 * MATRIX**3 / _best(lambda: session.run(None, {"a": a, "b": a}), MATRIX_SECONDS)


def _bandwidth(threads: int) -> float:
    source, target = np.ones(COPY_FLOATS, np.float32), np.zeros(COPY_FLOATS, np.float32)
    parts = [
        (target[k], source[k])
        for k in (
            slice(i * COPY_FLOATS // threads, (i + 1) * COPY_FLOATS // threads)
            for i in range(threads)
        )
    ]
    with ThreadPoolExecutor(
        threads
    ) as pool:  # numpy releases the interpreter's lock while it copies
        seconds = _best(lambda: list(pool.map(lambda p: np.copyto(*p), parts)), COPY_SECONDS)
    return 2.0 * source.nbytes / seconds


def _best(run: Any, seconds: float) -> float:
    best, until, count = np.inf, time.perf_counter() + seconds, 0
    while count < LEAST or time.perf_counter() < until:
        count += 1
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return float(best)


@dataclass(frozen=True)
class Overheads:
    """Time that is not work of the operators.

    Attributes:
        call_ms: time of calling ONNX Runtime with one input and fetching one output.
        timing_us: time that its profiler adds to the reported time of an operator.
    """

    call_ms: float
    timing_us: float


def overheads(threads: int) -> Overheads:
    """Measure both, with a chain of operators that do nearly nothing.

    The profiler's own bookkeeping is included in the times that it reports, several microseconds per
    operator. The chain is run with and without it; the difference per operator is the cost. The real time
    of an operator, including its dispatch, is not subtracted. A chain of one operator gives the cost of the
    call.
    """
    import onnxruntime as ort

    x = {"x": np.ones(1, np.float32)}
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    one, many = (
        ort.InferenceSession(chain(length), options, providers=["CPUExecutionProvider"])
        for length in (1, CHAIN + 1)
    )
    short, long = np.empty(CHAIN_RUNS), np.empty(CHAIN_RUNS)
    with ProfiledSession(
        chain(CHAIN + 1), How(threads), x, lambda: many.run(None, x), keep_graph=False
    ) as session:
        until, count = time.perf_counter() + CHAIN_SECONDS, 0
        while count < CHAIN_RUNS and (count < CHAIN_LEAST or time.perf_counter() < until):
            short[count] = _seconds(one, x)
            long[count] = _seconds(many, x)
            session.profiled()
            count += 1
        runs = session.finish().runs
    stated = np.array([np.mean([event.duration for event in run]) for run in runs])
    short, long = short[:count], long[:count]
    dispatch = midmean(long - short) / CHAIN
    return Overheads(
        call_ms=1e3 * max(0.0, midmean(short) - dispatch),
        timing_us=max(0.0, midmean(stated) - 1e6 * dispatch),
    )


def _seconds(session: Any, feeds: Feeds) -> float:
    start = time.perf_counter()
    session.run(None, feeds)
    return time.perf_counter() - start


def midmean(values: NDArray[np.float64]) -> float:
    """Mean of the middle half: as robust as the median, finer than the profiler's whole microseconds."""
    ordered = np.sort(values)
    quarter = len(ordered) // 4
    return float(ordered[quarter : len(ordered) - quarter].mean())
