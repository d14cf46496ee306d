"""Run TensorRT engines on arrays in host or GPU memory, plain or with TensorRT's profiler.

When profiling, TensorRT times layers one after another, without a CUDA graph; the plain runs for comparison
use no graph either. Neither copies between host and GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem, ShapeError, UsageError
from capsedge.runtime.backends.backend import (
    BatchRange,
    Feeds,
    ModelFile,
    OperatorEvent,
    Port,
    ProfiledRuns,
    Recording,
    closed_error,
    parse_device,
)
from capsedge.runtime.backends.cuda import LEGACY_STREAM
from capsedge.runtime.backends.device_array import (
    DeviceArray,
    check_array,
    check_writable,
    device_array,
)
from capsedge.runtime.backends.tensorrt_engine import EngineSizes, LoadedEngine
from capsedge.runtime.backends.tensorrt_slots import CONTEXTS, Capturing, Slot, Slots
from capsedge.runtime.metadata.engine_metadata import EngineMetadata
from capsedge.runtime.metadata.table_indices import bounded_ports, read_inputs_property
from capsedge.runtime.runtime_options import RuntimeOptions


class TensorRTBackend:
    """An engine on one GPU.

    Args:
        device: number of the GPU.
        contexts: calls that run at the same time, each with its own memory; others wait.
        graphs: whether to capture CUDA graphs.

    Raises:
        UsageError: ``contexts`` is below 1.
        EnvironmentProblem: TensorRT, CUDA or the GPU is missing, or memory is short.
        ArtefactError: the engine does not fit this machine, TensorRT refuses it, or what it states of its
            inputs is damaged.
    """

    name: ClassVar[str] = "tensorrt"
    threads = 0

    def __init__(
        self, path: Path, device: int = 0, *, contexts: int = CONTEXTS, graphs: bool = True
    ) -> None:
        self._slots: Slots | None = None  # once it is closed, as well
        if contexts < 1:
            raise UsageError(f"contexts is {contexts}.", "It must be 1 or more.", "Leave it out.")
        engine = LoadedEngine(path, device)
        self._path, self._device, self._cuda = path, device, engine.cuda
        self.outputs = engine.outputs
        bounds = read_inputs_property(engine.engine_metadata.metadata)
        self.inputs = bounded_ports(engine.inputs, bounds)
        self.engine_metadata: EngineMetadata | None = engine.engine_metadata
        self.metadata = engine.engine_metadata.model
        self.ops = "fused" if engine.engine_metadata.plugin == "fused" else "portable"
        self.gpu: int | None = device
        self._smallest, self._largest = engine.smallest, engine.largest
        self.batches = BatchRange(engine.smallest.batch, engine.largest.batch)
        self._capturing = Capturing(graphs)
        with self._cuda.on(device):
            self._slots = Slots(engine, contexts)

    @classmethod
    def accepts(cls, file: ModelFile) -> bool:
        """Whether it is an engine."""
        return file.is_engine

    @classmethod
    def open(cls, file: ModelFile, options: RuntimeOptions) -> TensorRTBackend:
        """Load an engine."""
        gpu = parse_device(options.device or "cuda")
        if gpu is None or options.ops != "auto" or options.provider != "auto":
            raise UsageError(
                f"{file.path} is a TensorRT engine.",
                "It runs on a GPU, without ONNX Runtime and only with the operators that it was "
                "built with.",
                "Leave out device, ops and provider, or load the ONNX file that it was built from.",
            )
        contexts = CONTEXTS if options.contexts is None else options.contexts
        return cls(file.path, gpu, contexts=contexts, graphs=options.graphs is not False)

    @property
    def no_graph_reason(self) -> str:
        """Why calls do not use graphs; empty while they do."""
        return self._capturing.no_graph_reason

    def close(self) -> None:
        """Free the engine and its GPU memory; calls in progress keep theirs. A second call does nothing."""
        slots, self._slots = self._slots, None
        if slots is not None:
            with suppress(EnvironmentProblem), self._cuda.on(self._device):
                slots.destroy()

    @property
    def closed(self) -> bool:
        """Whether `close` was called; the attributes remain available."""
        return self._slots is None

    def __del__(self) -> None:
        if self._slots is not None:
            self._cuda.when_allowed(self.close)

    def _opened(self) -> Slots:
        slots = self._slots  # the caller's own reference: another thread may close
        if slots is None:
            raise closed_error(self._path)
        return slots

    def profiled_runs(self, feeds: Feeds) -> AbstractContextManager[ProfiledRuns]:
        """The engine in memory of its own, with and without TensorRT's profiler."""

        return profiled_engine(self._opened().engine, feeds, self._sizes_of(feeds))

    def run(self, feeds: Feeds, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The named outputs, for inputs that have been checked."""
        slots, sizes = self._opened(), self._sizes_of(feeds)
        cuda = self._cuda
        with cuda.on(self._device), slots.one() as slot:
            bound = slot.bind(sizes)
            for port in self.inputs:
                array = np.ascontiguousarray(feeds[port.name])
                ctypes.memmove(slot.host[port.name], array.ctypes.data, array.nbytes)
                cuda.to_device(
                    slot.device[port.name], slot.host[port.name], array.nbytes, slot.stream
                )
            slot.execute(bound, self._capturing)
            wanted = [port for port in self.outputs if port.name in outputs]
            for port in wanted:
                size = LoadedEngine.bytes(port, bound.shapes[port.name])
                cuda.to_host(slot.host[port.name], slot.device[port.name], size, slot.stream)
            cuda.synchronize(slot.stream)
            results = {
                port.name: _read(slot.host[port.name], port, bound.shapes[port.name]).copy()
                for port in wanted
            }
        return {name: results[name] for name in outputs}

    def run_on_device(
        self,
        feeds: Mapping[str, object],
        out: Mapping[str, object] | None = None,
        stream: int | None = None,
    ) -> dict[str, DeviceArray]:
        """All outputs on the GPU, for inputs that are there, as `DeviceBackend.run_on_device`."""
        slots = self._opened()
        cuda, device = self._cuda, self._device
        if stream is not None:
            stream = stream or LEGACY_STREAM
        with cuda.on(device), slots.one() as slot:
            # Whatever the slot did before is on its stream, so that it may be taken while that still runs.
            arrays = self._shared(self.inputs, feeds, slot)
            sizes = self._sizes({name: array.shape for name, array in arrays.items()})
            results = self._shared(self.outputs, out or {}, slot)
            for port in self.inputs:
                check_array(port, LoadedEngine.shape(port, sizes), arrays[port.name])
            bound = slot.bind(sizes)
            for port in self.outputs:
                if port.name in results:
                    check_array(port, bound.shapes[port.name], results[port.name])
            for name, array in results.items():
                check_writable(name, array)
            if stream is not None:
                cuda.wait(slot.stream, stream)
            for port in self.inputs:
                array = arrays[port.name]
                copy = cuda.to_device if array.on_host else cuda.on_device
                copy(slot.device[port.name], array.address, array.size, slot.stream)
            slot.execute(bound, self._capturing)
            for port in self.outputs:
                target = results.get(port.name)
                if target is None:
                    target = results[port.name] = self._result(port, bound.shapes[port.name])
                copy = cuda.to_host if target.on_host else cuda.on_device
                copy(target.address, slot.device[port.name], target.size, slot.stream)
            if stream is None:
                cuda.synchronize(slot.stream)
            else:
                cuda.wait(stream, slot.stream)
        return {port.name: results[port.name].written_on(stream, cuda) for port in self.outputs}

    def _shared(
        self, ports: Sequence[Port], arrays: Mapping[str, object], slot: Slot
    ) -> dict[str, DeviceArray]:
        """Arrays of the caller, ready for work on the slot's stream."""
        return {
            port.name: device_array(
                arrays[port.name], port.name, self._cuda, self._device, slot.stream
            )
            for port in ports
            if port.name in arrays
        }

    def _result(self, port: Port, shape: tuple[int, ...]) -> DeviceArray:
        """An output that outlives the call, in memory that the caller owns."""
        cuda, device = self._cuda, self._device
        address = cuda.allocate(LoadedEngine.bytes(port, shape))

        def free() -> None:
            with suppress(EnvironmentProblem), cuda.on(device):
                cuda.free(address)

        return DeviceArray(
            address, shape, port.dtype, device,
            release=lambda: cuda.when_allowed(free),
        )  # fmt: skip

    def _sizes_of(self, feeds: Feeds) -> EngineSizes:
        """The sizes of a call. Raises ShapeError if the engine was not built for them."""
        return self._sizes({name: array.shape for name, array in feeds.items()})

    def _sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> EngineSizes:
        """The sizes of a call, which the engine was built for."""
        batches, lengths = set[int](), set[int]()
        for port in self.inputs:
            for axis, (wanted, size) in enumerate(zip(port.shape, shapes[port.name], strict=False)):
                if not isinstance(wanted, int):
                    (lengths if axis else batches).add(size)
        low, high = self._smallest, self._largest
        if wrong := _outside(batches, low.batch, high.batch):
            raise ShapeError(
                f"A batch of {wrong} images.",
                f"{self._path} was built for {low.batch} to {high.batch}.",
                "Split the batch, or build the engine with another `--batch`.",
            )
        if wrong := _outside(lengths, low.length, high.length):
            raise ShapeError(
                f"A length of {wrong}.",
                f"{self._path} was built for {low.length} to {high.length}.",
                "Cut longer inputs and pad shorter ones, or build the engine with another `--length`.",
            )
        return EngineSizes((batches or {high.batch}).pop(), (lengths or {high.length}).pop())


def _outside(sizes: set[int], low: int, high: int) -> str:
    """The sizes, in words, if they differ or one is out of range; empty otherwise."""
    if len(sizes) <= 1 and all(low <= size <= high for size in sizes):
        return ""
    return " and ".join(map(str, sorted(sizes)))


def _read(address: int, port: Port, shape: tuple[int, ...]) -> NDArray[Any]:
    """A view of the host memory."""
    memory = (ctypes.c_uint8 * LoadedEngine.bytes(port, shape)).from_address(address)
    view: NDArray[Any] = np.ctypeslib.as_array(memory).view(port.dtype)
    return view.reshape(shape)


# --- Profiling by layer (``IProfiler``) ---


@contextmanager
def profiled_engine(
    engine: LoadedEngine, feeds: Feeds, sizes: EngineSizes
) -> Iterator[ProfiledEngine]:
    """An engine on inputs of these sizes, in memory and on a stream separate from those of calls."""
    cuda = engine.cuda
    with cuda.on(engine.device):
        slot = Slot(engine)
        try:
            for port in engine.inputs:
                array = np.ascontiguousarray(feeds[port.name])
                ctypes.memmove(slot.host[port.name], array.ctypes.data, array.nbytes)
                cuda.to_device(
                    slot.device[port.name], slot.host[port.name], array.nbytes, slot.stream
                )
            yield ProfiledEngine(engine, slot, sizes)
        finally:
            slot.destroy()


class ProfiledEngine:
    """An engine with and without TensorRT's profiler: `ProfiledRuns`."""

    def __init__(self, engine: LoadedEngine, slot: Slot, sizes: EngineSizes) -> None:
        self._engine, self._slot, self._sizes = engine, slot, sizes
        self._contexts = [engine.new_context(slot.scratch) for _ in range(2)]
        for context in self._contexts:
            engine.bind(context, sizes, slot.device, slot.room)
        self._reported = engine.profile(self._contexts[1])
        self._runs: list[list[tuple[str, float]]] = []

    def plain(self) -> None:
        """Run without the profiler."""
        self._run(self._contexts[0])

    def profiled(self) -> None:
        """Run with the profiler."""
        self._reported.clear()
        self._run(self._contexts[1])
        self._runs.append(list(self._reported))

    def _run(self, context: Any) -> None:
        self._engine.enqueue(context, self._slot.stream)
        self._engine.cuda.synchronize(self._slot.stream)

    def finish(self) -> Recording:
        """TensorRT's report: durations only, so each layer begins where the previous one ends."""
        layers = {layer.name: layer for layer in self._engine.layers(self._sizes)}
        runs, at = [], 0.0
        for run in self._runs:
            events = []
            for name, ms in run:
                layer = layers.get(name)
                kind, origin = (layer.kind, layer.metadata) if layer else ("", "")
                events.append(OperatorEvent(name, kind, at, 1e3 * ms, "TensorRT", origin))
                at += 1e3 * ms
            runs.append(events)
        return Recording(runs)
