"""Time by layer of a TensorRT engine, reported by TensorRT itself (``IProfiler``) in separate runs."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.profiling.onnxruntime_profiler import Feeds
from capsedge.runtime.profiling.operator_times import SHOWN_RUNS, Operator, OperatorTimes, Span
from capsedge.runtime.profiling.worker import timed_runs
from capsedge.runtime.reading.node_names import merged, places_in
from capsedge.runtime.session import Session

if TYPE_CHECKING:
    from capsedge.runtime.backends.tensorrt_backend import TensorRTBackend
    from capsedge.runtime.backends.tensorrt_engine import LoadedEngine
    from capsedge.runtime.backends.tensorrt_slots import Slot

WARMUP = 3  # runs of each kind that are not timed
SECONDS = 2.0  # of all plain and profiled runs
LEAST_RUNS, MOST_RUNS = 5, 400


def time_layers(session: Session, feeds: Feeds, seconds: float = SECONDS) -> OperatorTimes:
    """Run an engine plainly and with TensorRT's profiler.

    TensorRT times layers one after another, without a CUDA graph; the plain runs also use none. Neither
    includes copies between host and GPU. The median of `profile` is of whole calls, with copies and graph.

    Args:
        session: a session for an engine.
        feeds: its inputs.
    """
    backend: TensorRTBackend = session._backend  # type: ignore[assignment]
    engine, cuda = backend.engine, backend.engine.cuda
    batch = backend.batch_of(feeds)
    with cuda.on(engine.device), backend.own_slot() as slot:
        for port in engine.inputs:
            array = np.ascontiguousarray(feeds[port.name])
            ctypes.memmove(slot.host[port.name], array.ctypes.data, array.nbytes)
            cuda.to_device(slot.device[port.name], slot.host[port.name], array.nbytes, slot.stream)
        plain = _plain(engine, slot, batch, seconds / 2)
        names, times = _profiled(engine, slot, batch, seconds / 2)
        kinds = {layer.name: layer for layer in engine.layers(batch)}
    # The runs whose sums lie in the middle, as for operators.
    order = np.argsort(times.sum(axis=1))
    middle = times[order[len(order) // 4 : len(order) - len(order) // 4]].mean(axis=0)
    total = float(middle.sum())
    operators = []
    for k, name in enumerate(names):
        told = kinds.get(name)
        place = merged(places_in(f"{name} {told.metadata if told else ''}"))
        operators.append(
            Operator(
                name=name, kind=told.kind if told else "", layer=place.layer, group=place.group,
                iteration=place.iteration, label=place.label, microseconds=1e3 * float(middle[k]),
                share=float(middle[k]) / total if total else 0.0, operations=0.0, bytes=0,
                attainable=None, bound="", provider="TensorRT",
            )
        )  # fmt: skip
    return OperatorTimes(
        operators=operators,
        median_ms=1e3 * float(np.median(plain)),
        sum_ms=total,
        runs=len(times),
        spans=_spans(times[-SHOWN_RUNS:]),
    )


def _plain(engine: LoadedEngine, slot: Slot, batch: int, seconds: float) -> NDArray[np.float64]:
    """Seconds of runs without the profiler."""
    context = engine.new_context(slot.scratch)
    engine.bind(context, batch, slot.device)

    def run() -> None:
        engine.enqueue(context, slot.stream)
        engine.cuda.synchronize(slot.stream)

    for _ in range(WARMUP):
        run()
    return timed_runs(run, seconds, LEAST_RUNS, MOST_RUNS)


def _profiled(
    engine: LoadedEngine, slot: Slot, batch: int, seconds: float
) -> tuple[list[str], NDArray[np.float64]]:
    """Names of the layers in the order in which they run, and milliseconds [runs, layers]."""
    context = engine.new_context(slot.scratch)
    engine.bind(context, batch, slot.device)
    told = engine.profile(context)

    runs: list[list[tuple[str, float]]] = []

    def run() -> None:
        told.clear()
        engine.enqueue(context, slot.stream)  # reports when it is done
        engine.cuda.synchronize(slot.stream)
        runs.append(list(told))

    for _ in range(WARMUP):
        run()
    runs.clear()
    timed_runs(run, seconds, LEAST_RUNS, MOST_RUNS)
    names = [name for name, _ in runs[0]]
    same = [r for r in runs if [name for name, _ in r] == names]
    return names, np.array([[ms for _, ms in r] for r in same], dtype=np.float64)


def _spans(times: NDArray[np.float64]) -> list[Span]:
    """Spans for a trace: layers one after another, since TensorRT reports only their durations."""
    spans, at = [], 0
    for run in times:
        for k, ms in enumerate(run):
            spans.append(Span(k, at, round(1e3 * ms)))
            at += round(1e3 * ms)
    return spans
