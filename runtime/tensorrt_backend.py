"""TensorRT engines: loading, and running them on device buffers with CUDA graphs.

One context, one stream and one set of buffers serve one call at a time; calls from several threads take
different ones. The buffers have room for the largest batch, so their addresses never change.
"""

from __future__ import annotations

import ctypes
import math
import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, EnvironmentProblem, ShapeError
from capsedge.runtime import passport as passports
from capsedge.runtime.cuda import Cuda, load_cuda
from capsedge.runtime.device_array import DeviceArray, device_array
from capsedge.runtime.onnxruntime_backend import Port
from capsedge.runtime.tensorrt_library import (
    check_machine,
    import_tensorrt,
    load_plugin,
    start,
    tensorrt_logger,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}


@dataclass
class _Slot:
    """What one call at a time uses."""

    context: Any
    stream: int
    device: dict[str, int]
    host: dict[str, int]
    bound: int | None = None  # the batch that the context is set to and has run once
    graph: int = 0  # captured for that batch


class TensorRTBackend:
    """An engine, checked against its passport and this machine, then loaded.

    Args:
        path: the engine; its passport lies beside it.
        device: number of the GPU.
        graphs: whether to capture CUDA graphs.

    Attributes:
        inputs, outputs: name, shape (None for the batch of an engine for several) and type.
        smallest_batch, largest_batch: that one call takes.
        passport: what the engine says of itself.
        plain_because: why calls are not graphs; empty while they are.

    Raises:
        EnvironmentProblem: TensorRT, CUDA or the GPU is missing.
        ArtefactError: the engine does not fit this machine, or TensorRT refuses it.
    """

    def __init__(self, path: Path, device: int = 0, *, graphs: bool = True) -> None:
        self._path, self._device = path, device
        self.passport = passports.read(path)
        trt = import_tensorrt()
        self._cuda: Cuda = load_cuda()
        plugin = check_machine(path, self.passport, trt, self._cuda, device)
        self._cuda.use(device)
        # The runtime must outlive the engine.
        self._logger = tensorrt_logger(trt)
        self._logger.clear()
        self._runtime = start(trt, trt.Runtime, self._logger)
        if plugin is not None:
            load_plugin(self._runtime.get_plugin_registry(), plugin, self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise ArtefactError(
                f"TensorRT {trt.__version__} cannot load {path}.",
                self._logger.words(),
                f"Build it here: `{self.passport.rebuild}`.",
            )
        self.smallest_batch, _, self.largest_batch = self.passport.batch
        self.inputs, self.outputs = self._ports(trt)
        self._slots: queue.LifoQueue[_Slot] = queue.LifoQueue()
        # One context is made at a time; the bindings let other threads run meanwhile.
        self._creating = threading.Lock()
        self.plain_because = "" if graphs else "graphs were not asked for"
        self._slots.put(self._new_slot())  # too little memory is found now, not at the first image

    def _ports(self, trt: Any) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        engine = self._engine
        inputs: list[Port] = []
        outputs: list[Port] = []
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            kind = engine.get_tensor_dtype(name).name
            shape = tuple(None if d < 0 else int(d) for d in engine.get_tensor_shape(name))
            if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
                raise ArtefactError(
                    f"{self._path} cannot be run by capsedge.",
                    f"'{name}' is a shape, which TensorRT keeps in the memory of the host.",
                    f"Build it again: `{self.passport.rebuild}`.",
                )
            is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
            if kind not in _DTYPES or None in shape[1:]:
                raise ArtefactError(
                    f"{self._path} cannot be run by capsedge.",
                    f"'{name}' has the type {kind} and the shape {list(shape)}; only the batch may be free.",
                    f"Build it again: `{self.passport.rebuild}`.",
                )
            (inputs if is_input else outputs).append(Port(name, shape, _DTYPES[kind]))
        return tuple(inputs), tuple(outputs)

    def _bytes(self, port: Port, batch: int) -> int:
        return math.prod(self._shape(port, batch)) * np.dtype(port.dtype).itemsize

    @staticmethod
    def _shape(port: Port, batch: int) -> tuple[int, ...]:
        return tuple(batch if d is None else int(d) for d in port.shape)

    def _new_slot(self) -> _Slot:
        cuda = self._cuda
        with self._creating:
            context = self._engine.create_execution_context()
        if context is None:
            raise EnvironmentProblem(
                f"The GPU has too little memory for {self._path}.",
                self._logger.words(),
                "Close other programs, or build with a smaller batch or workspace.",
            )
        ports = (*self.inputs, *self.outputs)
        slot = _Slot(context, cuda.create_stream(), {}, {})
        try:
            for port in ports:
                size = self._bytes(port, self.largest_batch)
                slot.device[port.name] = cuda.allocate(size)
                slot.host[port.name] = cuda.allocate_host(size)
        except BaseException:
            self._destroy(slot)
            raise
        return slot

    def _destroy(self, slot: _Slot) -> None:
        cuda = self._cuda
        with suppress(EnvironmentProblem):
            cuda.synchronize(slot.stream)
        if slot.graph:
            with suppress(EnvironmentProblem):
                cuda.destroy_graph(slot.graph)
        for free, addresses in ((cuda.free, slot.device), (cuda.free_host, slot.host)):
            for address in addresses.values():
                with suppress(EnvironmentProblem):
                    free(address)
        slot.context = None
        with suppress(EnvironmentProblem):
            cuda.destroy_stream(slot.stream)

    @contextmanager
    def _slot(self) -> Iterator[_Slot]:
        """A slot that nobody else uses; one that a call failed in is thrown away."""
        self._cuda.use(self._device)
        try:
            slot = self._slots.get_nowait()
        except queue.Empty:
            slot = self._new_slot()
        try:
            yield slot
        except BaseException:
            self._destroy(slot)
            raise
        self._slots.put(slot)

    def close(self) -> None:
        """Free what the engine holds on the GPU; calls that still run keep theirs."""
        with suppress(EnvironmentProblem):
            self._cuda.use(self._device)
        while True:
            try:
                self._destroy(self._slots.get_nowait())
            except queue.Empty:
                return

    def __del__(self) -> None:
        if hasattr(self, "_slots"):
            self.close()

    def run(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """The outputs named, for inputs that have been checked."""
        batch = self._batch({name: array.shape for name, array in feeds.items()})
        cuda = self._cuda
        with self._slot() as slot:
            for port in self.inputs:
                array = np.ascontiguousarray(feeds[port.name])
                ctypes.memmove(slot.host[port.name], array.ctypes.data, array.nbytes)
                cuda.to_device(
                    slot.device[port.name], slot.host[port.name], array.nbytes, slot.stream
                )
            self._execute(slot, batch)
            wanted = [port for port in self.outputs if port.name in outputs]
            for port in wanted:
                size = self._bytes(port, batch)
                cuda.to_host(slot.host[port.name], slot.device[port.name], size, slot.stream)
            cuda.synchronize(slot.stream)
            found = {
                port.name: self._read(slot.host[port.name], port, batch).copy() for port in wanted
            }
        return {name: found[name] for name in outputs}

    def run_on_device(self, feeds: Mapping[str, object]) -> dict[str, DeviceArray]:
        """All outputs on the GPU, for inputs that are there: DLPack or ``__cuda_array_interface__``.

        Raises:
            UsageError: an input is not on the GPU.
            ShapeError: an input has the wrong shape or type, or is not contiguous.
        """
        cuda = self._cuda
        with self._slot() as slot:
            arrays = {
                port.name: device_array(feeds[port.name], port.name, cuda, slot.stream)
                for port in self.inputs
            }
            batch = self._batch({name: array.shape for name, array in arrays.items()})
            for port in self.inputs:
                array = arrays[port.name]
                if array.dtype != port.dtype or array.shape != self._shape(port, batch):
                    raise ShapeError(
                        f"Input '{port.name}' is {array.dtype} {list(array.shape)}.",
                        f"Wanted: {port.dtype} {list(self._shape(port, batch))}.",
                        "Convert it before inference.",
                    )
                cuda.on_device(slot.device[port.name], array.address, array.size, slot.stream)
            self._execute(slot, batch)
            results = {port.name: self._result(port, batch) for port in self.outputs}
            for name, result in results.items():
                cuda.on_device(result.address, slot.device[name], result.size, slot.stream)
            cuda.synchronize(slot.stream)
        return results

    def _result(self, port: Port, batch: int) -> DeviceArray:
        """An output that outlives the call: its caller's own memory."""
        cuda, device = self._cuda, self._device
        address = cuda.allocate(self._bytes(port, batch))

        def release() -> None:
            with suppress(EnvironmentProblem):
                cuda.use(device)
                cuda.free(address)

        return DeviceArray(address, self._shape(port, batch), port.dtype, device, release=release)

    def _read(self, address: int, port: Port, batch: int) -> NDArray[Any]:
        """A view of the host memory."""
        memory = (ctypes.c_uint8 * self._bytes(port, batch)).from_address(address)
        view: NDArray[Any] = np.ctypeslib.as_array(memory).view(port.dtype)
        return view.reshape(self._shape(port, batch))

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

    def _execute(self, slot: _Slot, batch: int) -> None:
        """Put the inference on the slot's stream.

        A graph belongs to the context as it was when captured, so another batch drops it. The first run
        after a change is a plain one, as TensorRT wants; the second is captured, the others launch it.
        """
        cuda = self._cuda
        if slot.bound != batch:
            if slot.graph:
                cuda.destroy_graph(slot.graph)
            slot.graph, slot.bound = 0, None
            self._bind(slot, batch)
            self._enqueue(slot)
            slot.bound = batch
            return
        if not slot.graph and not self.plain_because:
            cuda.synchronize(slot.stream)
            slot.graph, self.plain_because = cuda.capture(slot.stream, lambda: self._accepted(slot))
        if slot.graph:
            cuda.launch(slot.graph, slot.stream)
        else:
            self._enqueue(slot)

    def _bind(self, slot: _Slot, batch: int) -> None:
        context = slot.context
        for port in self.inputs:
            if not context.set_input_shape(port.name, self._shape(port, batch)):
                raise self._failed("take the input shape")
        for name, address in slot.device.items():
            if not context.set_tensor_address(name, address):
                raise self._failed(f"take the address of '{name}'")
        try:
            missing = context.infer_shapes()
        except RuntimeError as error:  # what the bindings make of a refusal
            raise self._failed("infer its shapes") from error
        if missing:
            raise self._failed(f"infer its shapes without {', '.join(missing)}")
        for port in self.outputs:
            found = tuple(int(d) for d in context.get_tensor_shape(port.name))
            if found != self._shape(port, batch):
                raise self._failed(f"keep '{port.name}' in its buffer: it became {list(found)}")

    @staticmethod
    def _accepted(slot: _Slot) -> bool:
        return bool(slot.context.execute_async_v3(slot.stream))

    def _enqueue(self, slot: _Slot) -> None:
        if not self._accepted(slot):
            raise self._failed("run")

    def _failed(self, what: str) -> ArtefactError:
        return ArtefactError(
            f"The engine {self._path} could not {what}.",
            self._logger.words(),
            f"Build it again: `{self.passport.rebuild}`.",
        )
