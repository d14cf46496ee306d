"""A TensorRT engine, loaded: its inputs and outputs, and its execution contexts."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capsedge.errors import ArtefactError, EnvironmentProblem
from capsedge.runtime import engine_metadata as metadata_files
from capsedge.runtime.backends import engine_layers
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.backends.cuda import Cuda, load_cuda
from capsedge.runtime.backends.engine_layers import Layer
from capsedge.runtime.backends.tensorrt_library import (
    check_machine,
    load_plugin,
    product,
    start,
    tensorrt_logger,
)
from capsedge.runtime.backends.tensorrt_rtx import import_for

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}


class LoadedEngine:
    """An engine, checked against its metadata file and this machine, then loaded.

    Args:
        path: the engine; its metadata file is next to it.
        device: number of the GPU. The methods must be called inside ``cuda.on(device)``.

    Attributes:
        inputs, outputs: name, shape (None for the batch of an engine for several batch sizes) and type.
        engine_metadata: the description of the engine.
        scratch: bytes on the GPU that a context computes in.

    Raises:
        EnvironmentProblem: TensorRT, CUDA or the GPU is missing.
        ArtefactError: the engine does not fit this machine, or TensorRT refuses it.
    """

    def __init__(self, path: Path, device: int = 0) -> None:
        self.path, self.device = path, device
        self.engine_metadata = metadata_files.read(path)
        self._trt = trt = import_for(self.engine_metadata.target)
        self.cuda: Cuda = load_cuda()
        plugin = check_machine(path, self.engine_metadata, trt, self.cuda, device)
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
                    f"{product(trt)} cannot load {path}.",
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
            shape = tuple(None if d < 0 else int(d) for d in engine.get_tensor_shape(name))
            if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
                raise ArtefactError(
                    f"{self.path} cannot be run by capsedge.",
                    f"'{name}' is a shape, which TensorRT keeps in host memory.",
                    f"Build it again: `{self.engine_metadata.rebuild}`.",
                )
            is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
            if kind not in _DTYPES or None in shape[1:]:
                raise ArtefactError(
                    f"{self.path} cannot be run by capsedge.",
                    f"'{name}' has the type {kind} and the shape {list(shape)}; only the batch size "
                    "may vary.",
                    f"Build it again: `{self.engine_metadata.rebuild}`.",
                )
            (inputs if is_input else outputs).append(Port(name, shape, _DTYPES[kind]))
        return tuple(inputs), tuple(outputs)

    @staticmethod
    def shape(port: Port, batch: int) -> tuple[int, ...]:
        """The shape of an input or output at a batch size."""
        return tuple(batch if d is None else int(d) for d in port.shape)

    @staticmethod
    def bytes(port: Port, batch: int) -> int:
        """The size of an input or output at a batch size."""
        return math.prod(LoadedEngine.shape(port, batch)) * np.dtype(port.dtype).itemsize

    def layers(self, batch: int) -> list[Layer]:
        """TensorRT's description of the layers at a batch size.

        Raises:
            CapsedgeError: the engine contains no details.
        """
        inspector = self._engine.create_engine_inspector()
        # Without shapes, the layers of an engine for several batches have no formats. Nothing runs in this
        # context, and the inspector does not keep it alive.
        context = self.new_context(0)
        for port in self.inputs:
            context.set_input_shape(port.name, self.shape(port, batch))
        inspector.execution_context = context
        information = inspector.get_engine_information(self._trt.LayerInformationFormat.JSON)
        return engine_layers.from_inspector(str(information))

    def profile(self, context: Any) -> list[tuple[str, float]]:
        """Have TensorRT time the layers of a context.

        Returns:
            A list to which each run adds a layer's name and its milliseconds, layer by layer.
        """
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

        Raises:
            EnvironmentProblem: memory ran out.
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

    def bind(self, context: Any, batch: int, addresses: Mapping[str, int]) -> None:
        """Set a context to a batch and to buffers.

        Raises:
            ArtefactError: TensorRT refuses.
        """
        for port in self.inputs:
            if not context.set_input_shape(port.name, self.shape(port, batch)):
                raise self._failed("take the input shape")
        for name, address in addresses.items():
            if not context.set_tensor_address(name, address):
                raise self._failed(f"take the address of '{name}'")
        try:
            missing = context.infer_shapes()
        except RuntimeError as error:  # the bindings' form of a refusal
            raise self._failed("infer its shapes") from error
        if missing:
            raise self._failed(f"infer its shapes without {', '.join(missing)}")
        for port in self.outputs:
            found = tuple(int(d) for d in context.get_tensor_shape(port.name))
            if found != self.shape(port, batch):
                raise self._failed(f"keep '{port.name}' in its buffer: it became {list(found)}")

    @staticmethod
    def accepts(context: Any, stream: int) -> bool:
        """Queue the inference on the stream; return whether TensorRT accepted it."""
        return bool(context.execute_async_v3(stream))

    def enqueue(self, context: Any, stream: int) -> None:
        """Enqueue the inference on the stream.

        Raises:
            ArtefactError: TensorRT refuses.
        """
        if not self.accepts(context, stream):
            raise self._failed("run")

    def _failed(self, what: str) -> ArtefactError:
        return ArtefactError(
            f"The engine {self.path} could not {what}.",
            self._logger.words(),
            f"Build it again: `{self.engine_metadata.rebuild}`.",
        )
