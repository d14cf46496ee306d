"""TensorRT with its own profiler (``IProfiler``): an engine that reports the time of each layer.

TensorRT times layers one after another, without a CUDA graph; the plain runs beside them also use none.
Neither copies between host and GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from capsedge.runtime.backends.backend import Event, Feeds, Recording
from capsedge.runtime.backends.tensorrt_engine import LoadedEngine
from capsedge.runtime.backends.tensorrt_slots import Slot


@contextmanager
def profiled_engine(
    engine: LoadedEngine, feeds: Feeds, batch: int, largest: int
) -> Iterator[ProfiledEngine]:
    """An engine on inputs, in memory and on a stream separate from those of calls.

    Args:
        batch: of the inputs.
        largest: batch that the engine was built for.
    """
    cuda = engine.cuda
    with cuda.on(engine.device):
        slot = Slot(engine, largest)
        try:
            for port in engine.inputs:
                array = np.ascontiguousarray(feeds[port.name])
                ctypes.memmove(slot.host[port.name], array.ctypes.data, array.nbytes)
                cuda.to_device(
                    slot.device[port.name], slot.host[port.name], array.nbytes, slot.stream
                )
            yield ProfiledEngine(engine, slot, batch)
        finally:
            slot.destroy()


class ProfiledEngine:
    """An engine with and without TensorRT's profiler: `ProfiledRuns`."""

    def __init__(self, engine: LoadedEngine, slot: Slot, batch: int) -> None:
        self._engine, self._slot, self._batch = engine, slot, batch
        self._contexts = [engine.new_context(slot.scratch) for _ in range(2)]
        for context in self._contexts:
            engine.bind(context, batch, slot.device)
        self._told = engine.profile(self._contexts[1])
        self._runs: list[list[tuple[str, float]]] = []

    def plain(self) -> None:
        """Run without the profiler."""
        self._run(self._contexts[0])

    def profiled(self) -> None:
        """Run with the profiler."""
        self._told.clear()
        self._run(self._contexts[1])
        self._runs.append(list(self._told))

    def _run(self, context: Any) -> None:
        self._engine.enqueue(context, self._slot.stream)
        self._engine.cuda.synchronize(self._slot.stream)

    def finish(self) -> Recording:
        """What TensorRT reported. It tells only durations, so layers begin where the one before ends."""
        layers = {layer.name: layer for layer in self._engine.layers(self._batch)}
        runs, at = [], 0.0
        for run in self._runs:
            events = []
            for name, ms in run:
                layer = layers.get(name)
                kind, origin = (layer.kind, layer.metadata) if layer else ("", "")
                events.append(Event(name, kind, at, 1e3 * ms, "TensorRT", origin))
                at += 1e3 * ms
            runs.append(events)
        return Recording(runs)
