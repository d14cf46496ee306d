"""Running TensorRT engines on arrays in host or GPU memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem, ShapeError, UsageError
from capsedge.runtime.backends.cuda import LEGACY_STREAM
from capsedge.runtime.backends.device_array import DeviceArray, device_array
from capsedge.runtime.backends.onnxruntime_backend import Port
from capsedge.runtime.backends.tensorrt_engine import LoadedEngine
from capsedge.runtime.backends.tensorrt_slots import CONTEXTS, Capturing, Slot, Slots


class TensorRTBackend:
    """An engine on one GPU.

    Args:
        path: the engine; its passport lies beside it.
        device: number of the GPU.
        contexts: calls that run at the same time, each with its own memory; others wait.
        graphs: whether to capture CUDA graphs.

    Attributes:
        inputs, outputs: name, shape (None for the batch of an engine for several batch sizes) and type.
        smallest_batch, largest_batch: the range that one call accepts.
        passport: the description of the engine.

    Raises:
        UsageError: ``contexts`` is below 1.
        EnvironmentProblem: TensorRT, CUDA or the GPU is missing, or memory is short.
        ArtefactError: the engine does not fit this machine, or TensorRT refuses it.
    """

    def __init__(
        self, path: Path, device: int = 0, *, contexts: int = CONTEXTS, graphs: bool = True
    ) -> None:
        if contexts < 1:
            raise UsageError(f"contexts is {contexts}.", "It must be 1 or more.", "Leave it out.")
        self.engine = LoadedEngine(path, device)
        self._path, self._device, self._cuda = path, device, self.engine.cuda
        self.inputs, self.outputs = self.engine.inputs, self.engine.outputs
        self.passport = self.engine.passport
        self.smallest_batch, _, self.largest_batch = self.passport.batch
        self._capturing = Capturing(graphs)
        with self._cuda.on(device):
            self._slots = Slots(self.engine, self.largest_batch, contexts)

    @property
    def no_graph_reason(self) -> str:
        """Why calls do not use graphs; empty while they do."""
        return self._capturing.no_graph_reason

    def close(self) -> None:
        """Free the engine's GPU memory; calls that still run keep theirs."""
        with suppress(EnvironmentProblem), self._cuda.on(self._device):
            self._slots.destroy()

    def __del__(self) -> None:
        if hasattr(self, "_slots"):
            self._cuda.when_allowed(self.close)

    @contextmanager
    def own_slot(self) -> Iterator[Slot]:
        """Buffers and a stream separate from those of calls; used inside ``cuda.on``."""
        slot = Slot(self.engine, self.largest_batch)
        try:
            yield slot
        finally:
            slot.destroy()

    def batch_of(self, feeds: Mapping[str, NDArray[Any]]) -> int:
        """The batch of a call.

        Raises:
            ShapeError: the engine was not built for it.
        """
        return self._batch({name: array.shape for name, array in feeds.items()})

    def run(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """The named outputs, for inputs that have been checked."""
        batch = self.batch_of(feeds)
        cuda = self._cuda
        with cuda.on(self._device), self._slots.one() as slot:
            for port in self.inputs:
                array = np.ascontiguousarray(feeds[port.name])
                ctypes.memmove(slot.host[port.name], array.ctypes.data, array.nbytes)
                cuda.to_device(
                    slot.device[port.name], slot.host[port.name], array.nbytes, slot.stream
                )
            slot.execute(batch, self._capturing)
            wanted = [port for port in self.outputs if port.name in outputs]
            for port in wanted:
                size = self.engine.bytes(port, batch)
                cuda.to_host(slot.host[port.name], slot.device[port.name], size, slot.stream)
            cuda.synchronize(slot.stream)
            found = {
                port.name: self._read(slot.host[port.name], port, batch).copy() for port in wanted
            }
        return {name: found[name] for name in outputs}

    def run_on_device(
        self,
        feeds: Mapping[str, object],
        out: Mapping[str, object] | None = None,
        stream: int | None = None,
    ) -> dict[str, DeviceArray]:
        """All outputs on the GPU, for inputs that are there: DLPack or ``__cuda_array_interface__``.

        Args:
            out: arrays that outputs are written to, by name; the other outputs get new memory.
            stream: the stream in whose order this runs; the call returns when it is queued. None waits for
                the results.

        Raises:
            UsageError: an array is not on this GPU, or may not be written.
            ShapeError: an array has the wrong shape or type, or is not contiguous.
        """
        cuda, device = self._cuda, self._device
        if stream is not None:
            stream = stream or LEGACY_STREAM
        with cuda.on(device), self._slots.one() as slot:
            # Whatever the slot did before is on its stream, so that it may be taken while that still runs.
            arrays = self._shared(self.inputs, feeds, slot)
            batch = self._batch({name: array.shape for name, array in arrays.items()})
            results = self._shared(self.outputs, out or {}, slot)
            for port in (*self.inputs, *self.outputs):
                self._check(port, batch, arrays.get(port.name) or results.get(port.name))
            for name, array in results.items():
                if array.read_only:
                    raise UsageError(f"'{name}' may not be written.", "", "Give another array.")
            if stream is not None:
                cuda.wait(slot.stream, stream)
            for port in self.inputs:
                array = arrays[port.name]
                copy = cuda.to_device if array.on_host else cuda.on_device
                copy(slot.device[port.name], array.address, array.size, slot.stream)
            slot.execute(batch, self._capturing)
            for port in self.outputs:
                target = results.get(port.name)
                if target is None:
                    target = results[port.name] = self._result(port, batch)
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

    def _check(self, port: Port, batch: int, array: DeviceArray | None) -> None:
        wanted = self.engine.shape(port, batch)
        if array is not None and (array.dtype != port.dtype or array.shape != wanted):
            raise ShapeError(
                f"'{port.name}' is {array.dtype} {list(array.shape)}.",
                f"Wanted: {port.dtype} {list(wanted)}.",
                "Convert it before inference.",
            )

    def _result(self, port: Port, batch: int) -> DeviceArray:
        """An output that outlives the call: its caller's own memory."""
        cuda, device = self._cuda, self._device
        address = cuda.allocate(self.engine.bytes(port, batch))

        def free() -> None:
            with suppress(EnvironmentProblem), cuda.on(device):
                cuda.free(address)

        return DeviceArray(
            address, self.engine.shape(port, batch), port.dtype, device,
            release=lambda: cuda.when_allowed(free),
        )  # fmt: skip

    def _read(self, address: int, port: Port, batch: int) -> NDArray[Any]:
        """A view of the host memory."""
        memory = (ctypes.c_uint8 * self.engine.bytes(port, batch)).from_address(address)
        view: NDArray[Any] = np.ctypeslib.as_array(memory).view(port.dtype)
        return view.reshape(self.engine.shape(port, batch))

    def _batch(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """The batch of a call, which the engine was built for."""
        free = [port.name for port in self.inputs if port.shape and port.shape[0] is None]
        sizes = {shapes[name][0] if shapes[name] else -1 for name in free} or {self.largest_batch}
        (batch, *others) = sorted(sizes)
        if others or not self.smallest_batch <= batch <= self.largest_batch:
            raise ShapeError(
                f"A batch of {' and '.join(map(str, sorted(sizes)))} images.",
                f"{self._path} was built for {self.smallest_batch} to {self.largest_batch}.",
                "Split the batch, or build the engine with another `--dynamic-batch`.",
            )
        return batch
