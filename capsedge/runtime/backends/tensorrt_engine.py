"""A TensorRT engine, loaded: its inputs and outputs, and its execution contexts."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from capsedge.errors import ArtefactError, EnvironmentProblem
from capsedge.runtime.backends import engine_layers
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.backends.cuda import Cuda, load_cuda
from capsedge.runtime.backends.engine_layers import EngineLayer
from capsedge.runtime.backends.tensorrt_library import (
    check_engine_machine,
    load_plugin,
    product_version,
    start,
    tensorrt_logger,
)
from capsedge.runtime.backends.tensorrt_rtx import import_for
from capsedge.runtime.metadata import engine_metadata as metadata_files

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}


class EngineSizes(NamedTuple):
    """The sizes of a call that an engine leaves free.

    Attributes:
        batch: of the first axis.
        length: of other axes of the inputs, such as that of a history; 0 if none is free.
    """

    batch: int
    length: int = 0


Shapes = Mapping[str, tuple[int, ...]]  # by name of the input or output


class LoadedEngine:
    """An engine, checked against its metadata file and this machine, then loaded.

    Args:
        device: number of the GPU. The methods must be called inside ``cuda.on(device)``.

    Attributes:
        inputs, outputs: name, shape and type. Free sizes are None for the batch, ``L`` for the length of an
            input, ``?`` for what TensorRT computes from them.
        engine_metadata: the description of the engine.
        smallest, best, largest: the sizes that it was built for.
        scratch: bytes on the GPU that a context computes in.

    Raises:
        EnvironmentProblem: TensorRT, CUDA or the GPU is missing.
        ArtefactError: the engine does not fit this machine, or TensorRT refuses it.
    """

    def __init__(self, path: Path, device: int = 0) -> None:
        self.path, self.device = path, device
        self.engine_metadata = metadata_files.read(path)
        batch, length = self.engine_metadata.batch, self.engine_metadata.length or (0, 0, 0)
        self.smallest, self.best, self.largest = map(EngineSizes, batch, length)
        self._trt = trt = import_for(self.engine_metadata.target)
        self.cuda: Cuda = load_cuda()
        plugin = check_engine_machine(path, self.engine_metadata, trt, self.cuda, device)
        # Contexts are created one at a time; the bindings let other threads run meanwhile.
        self._creating = threading.Lock()
        with self.cuda.on(device):
            # The runtime must outlive the engine.
            self._logger = tensorrt_logger(trt)
            self._logger.clear()
            self._runtime = start(trt, trt.Runtime, self._logger)
            if plugin is not None:
                load_plugin(self._runtime.get_plugin_registry(), plugin, self._logger)
            self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
            if self._engine is None:
                raise ArtefactError(
                    f"{product_version(trt)} cannot load {path}.",
                    self._logger.words(),
                    f"Build it here: `{self.engine_metadata.rebuild}`.",
                )
            self.inputs, self.outputs = self._ports(trt)
            self.scratch = int(self._engine.device_memory_size_v2)

    def _ports(self, trt: Any) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        engine = self._engine
        inputs: list[Port] = []
        outputs: list[Port] = []
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            kind = engine.get_tensor_dtype(name).name
            sizes = [int(d) for d in engine.get_tensor_shape(name)]
            if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
                raise ArtefactError(
                    f"{self.path} cannot be run by capsedge.",
                    f"'{name}' is a shape, which TensorRT keeps in host memory.",
                    f"Build it again: `{self.engine_metadata.rebuild}`.",
                )
            is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
            if kind not in _DTYPES or (min(sizes[1:], default=0) < 0 and not self.largest.length):
                raise ArtefactError(
                    f"{self.path} cannot be run by capsedge.",
                    f"'{name}' has the type {kind} and the shape {sizes}; only the batch size may vary.",
                    f"Build it again: `{self.engine_metadata.rebuild}`.",
                )
            free = "L" if is_input else "?"
            shape = tuple(d if d >= 0 else free if axis else None for axis, d in enumerate(sizes))
            (inputs if is_input else outputs).append(Port(name, shape, _DTYPES[kind]))
        return tuple(inputs), tuple(outputs)

    @staticmethod
    def shape(port: Port, sizes: EngineSizes) -> tuple[int, ...]:
        """The shape of an input in a call."""
        free = (sizes.batch, *[sizes.length] * len(port.shape))
        return tuple(
            d if isinstance(d, int) else size for d, size in zip(port.shape, free, strict=False)
        )

    @staticmethod
    def bytes(port: Port, shape: Sequence[int]) -> int:
        """The size of an input or output that has this shape."""
        return math.prod(shape) * np.dtype(port.dtype).itemsize

    def layers(self, sizes: EngineSizes) -> list[EngineLayer]:
        """TensorRT's description of the layers in a call of these sizes."""
        inspector = self._engine.create_engine_inspector()
        # Without shapes, the layers of an engine for several sizes have no formats. Nothing runs in this
        # context, and the inspector does not keep it alive.
        context = self.new_context(0)
        for port in self.inputs:
            context.set_input_shape(port.name, self.shape(port, sizes))
        inspector.execution_context = context
        information = inspector.get_engine_information(self._trt.LayerInformationFormat.JSON)
        return engine_layers.from_inspector(str(information))

    def profile(self, context: Any) -> list[tuple[str, float]]:
        """Have TensorRT time a context's layers: a list that gets their names and milliseconds."""
        times: list[tuple[str, float]] = []

        class Profiler(self._trt.IProfiler):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()

            def report_layer_time(self, layer_name: str, ms: float) -> None:
                times.append((layer_name, ms))

        self._profiler = Profiler()  # TensorRT does not keep it alive
        context.profiler = self._profiler
        return times

    def new_context(self, scratch: int) -> Any:
        """An execution context that computes in the caller's memory.

        Args:
            scratch: address of ``self.scratch`` bytes on the GPU; 0 for a context that never runs. Contexts
                that never run at the same time may share them.
        """
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        with self._creating:
            context = self._engine.create_execution_context(strategy)
        if context is None:
            raise EnvironmentProblem(
                f"The GPU has too little memory for {self.path}.",
                self._logger.words(),
                "Close other programs, load it with fewer `contexts`, or build with a smaller batch.",
            )
        if scratch:
            context.set_device_memory(scratch, self.scratch)
        return context

    def infer(self, context: Any, sizes: EngineSizes) -> Shapes:
        """Set a context to the sizes of a call; returns the shapes of all inputs and outputs."""
        for port in self.inputs:
            if not context.set_input_shape(port.name, self.shape(port, sizes)):
                raise self._failed("take the input shape")
        try:
            missing = context.infer_shapes()
        except RuntimeError as error:  # the bindings' form of a refusal
            raise self._failed("infer its shapes") from error
        if missing:
            raise self._failed(f"infer its shapes without {', '.join(missing)}")
        return {
            port.name: tuple(int(d) for d in context.get_tensor_shape(port.name))
            for port in (*self.inputs, *self.outputs)
        }

    def bind(
        self,
        context: Any,
        sizes: EngineSizes,
        addresses: Mapping[str, int],
        room: Mapping[str, int],
    ) -> Shapes:
        """Set a context to the sizes of a call and to buffers.

        Args:
            addresses, room: of each buffer, its address and its bytes, by name of the input or output.

        Returns:
            The shapes of all inputs and outputs.
        """
        shapes = self.infer(context, sizes)
        for port in self.outputs:
            shape = shapes[port.name]
            if min(shape, default=0) < 0 or self.bytes(port, shape) > room[port.name]:
                raise self._failed(f"keep '{port.name}' in its buffer: it became {list(shape)}")
        for name, address in addresses.items():
            if not context.set_tensor_address(name, address):
                raise self._failed(f"take the address of '{name}'")
        return shapes

    @staticmethod
    def accepts(context: Any, stream: int) -> bool:
        """Queue the inference on the stream; return whether TensorRT accepted it."""
        return bool(context.execute_async_v3(stream))

    def enqueue(self, context: Any, stream: int) -> None:
        """Enqueue the inference on the stream."""
        if not self.accepts(context, stream):
            raise self._failed("run")

    def _failed(self, what: str) -> ArtefactError:
        return ArtefactError(
            f"The engine {self.path} could not {what}.",
            self._logger.words(),
            f"Build it again: `{self.engine_metadata.rebuild}`.",
        )
