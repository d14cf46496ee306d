"""A stand-in for the package ``tensorrt``: the names that capsedge uses, ONNX Runtime behind them.

An "engine" is the ONNX file that the builder was given, its optimization profile among the properties; a
context runs it on the addresses that it is told, which are host memory in tests (cudart.c), when the stream
comes to it. What TensorRT calls undefined (a graph whose context was changed, two contexts in the same
scratch memory at once) gives NaN and is counted.
That every name here exists in the real bindings is checked by ``test_contract.py``; that real TensorRT
behaves alike needs a GPU.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import json
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import shape_inference

from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.backends.tensorrt_library import PLUGINS

__version__ = "10.3.0"
PLUGINS_LOADED: list[str] = []
REGISTRY_NAMESPACE = ""
FAIL: dict[str, Any] = {}  # what a test makes go wrong
RECORDED: dict[str, Any] = {}  # what was asked for
library: Any = None  # the stand-in for libcudart
_graphs: dict[int, Callable[[], None]] = {}
_queued: dict[int, Callable[[], None]] = {}
_numbers = itertools.count(1)
_busy: set[int] = set()  # scratch memory that something computes in
_busy_lock = threading.Lock()
SCRATCH = 4096


class NetworkDefinitionCreationFlag(enum.IntEnum):
    STRONGLY_TYPED = 1


class BuilderFlag(enum.IntEnum):
    TF32 = 7


class MemoryPoolType(enum.IntEnum):
    WORKSPACE = 0


class ProfilingVerbosity(enum.IntEnum):
    DETAILED = 2


class LayerInformationFormat(enum.IntEnum):
    JSON = 1


class TensorIOMode(enum.IntEnum):
    INPUT = 1
    OUTPUT = 2


class TensorLocation(enum.IntEnum):
    DEVICE = 0
    HOST = 1


class ExecutionContextAllocationStrategy(enum.IntEnum):
    STATIC = 0
    USER_MANAGED = 2


class DataType(enum.IntEnum):
    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT64 = 8


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def log(self, severity: int, message: str) -> None: ...


class IProgressMonitor:
    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None: ...
    def step_complete(self, phase_name: str, step: int) -> bool: ...
    def phase_finish(self, phase_name: str) -> None: ...


class IProfiler:
    def report_layer_time(self, layer_name: str, ms: float) -> None: ...


class IPluginRegistry:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def get_creator(self, type: str, version: str, plugin_namespace: str = "") -> object:
        if PLUGINS_LOADED and plugin_namespace == REGISTRY_NAMESPACE and version == "1":
            return object()
        self._logger.log(
            ILogger.ERROR, f"IPluginRegistry::getCreator: Error Code 4: API Usage Error (Cannot find plugin: "
            f"{type}, version: {version}, namespace:{plugin_namespace}.)",
        )  # fmt: skip
        return None

    def load_library(self, plugin_path: str) -> object:
        if "load_library" in FAIL:
            self._logger.log(ILogger.ERROR, FAIL["load_library"])
            return None  # as the bindings make of a null handle
        PLUGINS_LOADED.append(plugin_path)
        return object()


class ITensor:
    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.shape = name, shape


class INetworkDefinition:
    def __init__(self) -> None:
        self._model = onnx.ModelProto()

    @property
    def num_inputs(self) -> int:
        return len(self._model.graph.input)

    def get_input(self, index: int) -> ITensor:
        value = self._model.graph.input[index]
        dims = value.type.tensor_type.shape.dim
        return ITensor(
            value.name, tuple(d.dim_value if d.HasField("dim_value") else -1 for d in dims)
        )


class ParserError:
    def __init__(self, words: str) -> None:
        self._words = words

    def node_operator(self) -> str:
        return "Einsum"

    def node_name(self) -> str:
        return "node_7"

    def desc(self) -> str:
        return self._words


class OnnxParser:
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network = network

    def parse(self, model: bytes, path: str | None = None) -> bool:
        if "parse" in FAIL:
            return False
        self._network._model = onnx.load_model_from_string(model)
        RECORDED["model"] = self._network._model
        assert not self._network._model.functions, "TensorRT never sees a function"
        foreign = {n.op_type for n in self._network._model.graph.node if n.domain}
        assert foreign <= set(PLUGINS), "TensorRT knows no other operators than the plugins'"
        return True

    @property
    def num_errors(self) -> int:
        return 1 if "parse" in FAIL else 0

    def get_error(self, index: int) -> ParserError:
        return ParserError(FAIL["parse"])


class IHostMemory:
    """The real one has the buffer protocol; ``build`` is what makes a bytearray of this class too."""


class _HostMemory(bytearray):
    pass


class ITimingCache:
    """Bytes that end in ``+`` for every build; any others are of another TensorRT or GPU."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def serialize(self) -> bytearray | None:
        return None if "serialize" in FAIL else _HostMemory(self._data + b"+")


class IOptimizationProfile:
    def __init__(self) -> None:
        self._shapes: dict[str, Any] = {}

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        assert all(a <= b <= c for a, b, c in zip(min, opt, max, strict=True))
        self._shapes[input] = (min, opt, max)


class IBuilderConfig:
    profiling_verbosity: Any = None
    builder_optimization_level: int = 3
    progress_monitor: Any = None

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        RECORDED["workspace"] = pool_size

    def clear_flag(self, flag: BuilderFlag) -> None:
        RECORDED.setdefault("cleared", []).append(flag)

    _profile: IOptimizationProfile | None = None

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        RECORDED["profile"] = profile._shapes
        self._profile = profile
        return 0

    _cache: ITimingCache | None = None

    def create_timing_cache(self, serialized_timing_cache: bytes) -> ITimingCache | None:
        data = bytes(serialized_timing_cache)
        # What TensorRT makes of bytes that are none: a null pointer, or a cache that it refuses.
        return None if data.startswith(b"garbage") else ITimingCache(data)

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        assert ignore_mismatch is False
        if cache._data.strip(b"+"):
            return False
        self._cache = cache
        return True

    def get_timing_cache(self) -> ITimingCache | None:
        return None if "get_timing_cache" in FAIL else self._cache


def _start(logger: ILogger) -> None:
    if "start" in FAIL:
        logger.log(ILogger.ERROR, FAIL["start"])
        raise TypeError("pybind11::init(): factory function returned nullptr")  # as the bindings do


class Builder:
    def __init__(self, logger: ILogger) -> None:
        _start(logger)
        self._logger = logger

    def get_plugin_registry(self) -> IPluginRegistry:
        return IPluginRegistry(self._logger)

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        assert flags == 1 << int(NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        return INetworkDefinition()

    def create_builder_config(self) -> IBuilderConfig:
        RECORDED.pop("profile", None)
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(
        self, network: INetworkDefinition, config: IBuilderConfig
    ) -> bytearray | None:
        assert config.profiling_verbosity == ProfilingVerbosity.DETAILED
        told = config.progress_monitor
        told.phase_start("Building", None, 2)
        told.phase_start("Tactics", "Building", 4)
        for step in range(4):
            if not told.step_complete("Tactics", step):
                told.phase_finish("Tactics")
                told.phase_finish("Building")
                return None
        told.phase_finish("Tactics")
        told.step_complete("Building", 0)
        told.phase_finish("Building")
        if "build" in FAIL:
            self._logger.log(ILogger.ERROR, FAIL["build"])
            return None
        if "log" in FAIL:
            self._logger.log(ILogger.VERBOSE, FAIL["log"])
        return _HostMemory(b"PLAN" + _with_profile(network, config).SerializeToString())


PROFILE = "profile."  # of the property with the least and the largest sizes of an input


def _with_profile(network: INetworkDefinition, config: IBuilderConfig) -> onnx.ModelProto:
    """What an engine keeps: the network and its profile, which TensorRT wants for every free size."""
    model = onnx.ModelProto()
    model.CopyFrom(network._model)
    shapes = {} if config._profile is None else config._profile._shapes
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        if -1 not in tensor.shape:
            continue
        low, _, high = shapes[tensor.name]
        assert all(d in (-1, low[k], high[k]) for k, d in enumerate(tensor.shape))
        entry = model.metadata_props.add()
        entry.key, entry.value = f"{PROFILE}{tensor.name}", " ".join(map(str, (*low, *high)))
    return model


def _layers(model: onnx.ModelProto, shapes_known: bool) -> list[Any]:
    """What the engine inspector would say, by the types in the graph; as unkind as the real one."""
    inferred = shape_inference.infer_shapes(model)
    graph = inferred.graph
    types = {
        v.name: v.type.tensor_type.elem_type
        for v in (*graph.value_info, *graph.input, *graph.output)
    }
    types |= {t.name: t.data_type for t in graph.initializer}
    weights = {t.name for t in graph.initializer}
    quantized = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    words = {1: ("FP32", "Float"), 10: ("FP16", "Half"), 3: ("Int8", "Int8")}

    def names(name: str) -> tuple[str, str]:
        return words.get(3 if name in quantized else types.get(name, 1), ("INT64", "Int64"))

    def tensor(name: str) -> dict[str, Any]:
        old, new = names(name)
        if not shapes_known:
            key = "Format/Datatype" if __version__.startswith("10.") else "Datatype"
            return {"Name": name, key: "N/A due to dynamic shapes"}
        if __version__.startswith("10."):
            return {"Name": name, "Format/Datatype": f"Row major linear {old} format"}
        return {"Name": name, "Format": "Row major linear", "Datatype": new}

    named = {"DequantizeLinear": "Reformat", "QuantizeLinear": "Reformat", "Cast": "Reformat"}
    layers = []
    for n in graph.node:
        layer = {
            # TensorRT's names are its own; those of the nodes stand in the details.
            "Name": f"__myl_{n.op_type}_{len(layers)}",
            "Metadata": f"[ONNX Layer: {n.name}]",
            "LayerType": named.get(n.op_type, n.op_type),
            "Inputs": [tensor(i) for i in n.input if i not in weights],
            "Outputs": [tensor(o) for o in n.output],
        }
        if n.op_type in ("Conv", "MatMul", "Gemm") and n.input[1] in weights:
            layer["Weights"] = {"Type": names(n.input[1])[1], "Count": 1}
        layers.append(layer)
    return layers


class EngineInspector:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model

    execution_context: IExecutionContext | None = None

    def get_engine_information(self, format: LayerInformationFormat) -> str:
        free = any(
            not d.HasField("dim_value")
            for value in self._model.graph.input
            for d in value.type.tensor_type.shape.dim
        )
        told = self.execution_context is not None and self.execution_context._shapes
        known = not free or (bool(told) and "inspector" not in FAIL)
        layers = FAIL.get("layers") or _layers(self._model, known)
        return json.dumps({"Layers": layers, "Bindings": []})


class IExecutionContext:
    def __init__(self, engine: ICudaEngine, own_memory: bool) -> None:
        self._engine = engine
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._inferred: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._scratch = id(self) if own_memory else 0
        self._changes = 0

    profiler: IProfiler | None = None

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= SCRATCH
        self._scratch = memory
        self._changes += 1

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, high = self._engine._profile.get(name, (shape, shape))
        if not all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True)):
            words = (
                f"Set dimension {list(shape)} for tensor {name} does not satisfy any optimization"
            )
            self._engine._logger.log(ILogger.ERROR, f"{words} profiles.")
            return False
        self._shapes[name] = tuple(shape)
        self._changes += 1
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        self._changes += 1
        return memory != 0

    def infer_shapes(self) -> list[str]:
        if "infer" in FAIL:
            self._engine._logger.log(ILogger.ERROR, FAIL["infer"])
            raise RuntimeError("infer_shapes error code: -1")  # as the bindings do
        missing = [n for n in self._engine._inputs if n not in self._shapes]
        self._inferred = {} if missing else self._engine._infer(self._shapes)
        return missing

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        known = {**self._inferred, **self._shapes}
        return known[name] if name in known else self._engine.get_tensor_shape(name)

    def execute_async_v3(self, stream_handle: int) -> bool:
        assert stream_handle > 2, "never a default stream"
        if "execute" in FAIL or not self._scratch:
            return False
        if "capturing" in FAIL and library.fake_capturing():
            FAIL["capturing"]()
        shapes, addresses, changes = dict(self._shapes), dict(self._addresses), self._changes
        engine, scratch, this = self._engine, self._scratch, weakref.ref(self)

        def run() -> None:
            context = this()
            engine._run(shapes, addresses, scratch, context is None or context._changes != changes)

        if library.fake_capturing():
            _graphs[library.fake_captured()] = run
            RECORDED["captures"] = RECORDED.get("captures", 0) + 1
        else:
            RECORDED["plain"] = RECORDED.get("plain", 0) + 1
            number = next(_numbers)
            _queued[number] = run
            assert library.fake_enqueue(stream_handle, _call, number) == 0
            if self.profiler is not None:
                library.cudaStreamSynchronize(ctypes.c_void_p(stream_handle))
                for k, layer in enumerate(_layers(engine._model, True)):
                    self.profiler.report_layer_time(layer["Name"], 0.25 * (k + 1))
        return True


@ctypes.CFUNCTYPE(None, ctypes.c_ssize_t)
def _call(number: int) -> None:
    _queued.pop(number)()


def _view(address: int, shape: tuple[int, ...], element: Any) -> Any:
    size = int(np.prod(shape)) * np.dtype(element).itemsize
    memory = (ctypes.c_uint8 * size).from_address(address)
    return np.ctypeslib.as_array(memory).view(element).reshape(shape)


_ELEMENTS = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int64)": "int64"}


class ICudaEngine:
    def __init__(self, model: onnx.ModelProto, logger: ILogger) -> None:
        self._model, self._logger = model, logger
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        if any(n.domain == "capsedge" for n in model.graph.node):
            options.register_custom_ops_library(str(find_library()))
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [v.name for v in model.graph.input]
        self._values = {v.name: v for v in (*model.graph.input, *model.graph.output)}
        ports = (*self._session.get_inputs(), *self._session.get_outputs())
        self._shapes = {
            p.name: tuple(d if isinstance(d, int) else -1 for d in p.shape) for p in ports
        }
        self._profile: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        for entry in model.metadata_props:
            if entry.key.startswith(PROFILE):
                sizes = tuple(map(int, entry.value.split()))
                half = len(sizes) // 2
                self._profile[entry.key.removeprefix(PROFILE)] = sizes[:half], sizes[half:]

    @property
    def num_io_tensors(self) -> int:
        return len(self._values)

    def get_tensor_name(self, index: int) -> str:
        return list(self._values)[index]

    def get_tensor_dtype(self, name: str) -> DataType:
        kind = self._values[name].type.tensor_type.elem_type
        return {1: DataType.FLOAT, 10: DataType.HALF, 7: DataType.INT64}[kind]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def _infer(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Shapes of the outputs, where only the batch is free; of others by a run on zeros."""
        outputs = {o.name: self._shapes[o.name] for o in self._session.get_outputs()}
        batch = next(iter(shapes.values()))[0]
        if not any(d < 0 for v in self._session.get_inputs() for d in self._shapes[v.name][1:]):
            return {n: tuple(batch if d < 0 else d for d in s) for n, s in outputs.items()}
        feeds = {
            v.name: np.zeros(shapes[v.name], _ELEMENTS[v.type]) for v in self._session.get_inputs()
        }
        values = self._session.run(list(outputs), feeds)
        return {name: value.shape for name, value in zip(outputs, values, strict=True)}

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self._inputs else TensorIOMode.OUTPUT

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.HOST if "host" in FAIL else TensorLocation.DEVICE

    @property
    def device_memory_size_v2(self) -> int:
        return SCRATCH

    def create_execution_context(
        self,
        strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC,
    ) -> IExecutionContext | None:
        if "context" in FAIL:
            return None
        RECORDED["contexts"] = RECORDED.get("contexts", 0) + 1
        return IExecutionContext(self, strategy == ExecutionContextAllocationStrategy.STATIC)

    def _run(
        self, shapes: dict[str, Any], addresses: dict[str, int], scratch: int, undefined: bool
    ) -> None:
        with _busy_lock:
            undefined |= scratch in _busy
            _busy.add(scratch)
        session = self._session
        feeds = {}
        for value in session.get_inputs():
            element = np.dtype(_ELEMENTS[value.type])
            feeds[value.name] = _view(addresses[value.name], shapes[value.name], element).copy()
        names = [o.name for o in session.get_outputs()]
        for name, found in zip(names, session.run(names, feeds), strict=True):
            _view(addresses[name], found.shape, found.dtype)[...] = np.nan if undefined else found
        if undefined:
            RECORDED["undefined"] = RECORDED.get("undefined", 0) + 1
        with _busy_lock:
            _busy.discard(scratch)

    def create_engine_inspector(self) -> EngineInspector:
        return EngineInspector(self._model)


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        _start(logger)
        self._logger = logger

    def get_plugin_registry(self) -> IPluginRegistry:
        return IPluginRegistry(self._logger)

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        if not serialized_engine.startswith(b"PLAN"):
            self._logger.log(ILogger.ERROR, "magic tag does not match")
            return None
        return ICudaEngine(onnx.load_model_from_string(bytes(serialized_engine[4:])), self._logger)


def install(cudart: Any) -> Any:
    """Use a stand-in for libcudart; the callback must be kept by the caller."""
    global library
    library = cudart
    kind = ctypes.CFUNCTYPE(None, ctypes.c_ssize_t)
    callback = kind(lambda graph: _graphs[graph]())
    cudart.fake_captured.restype = ctypes.c_ssize_t
    cudart.fake_enqueue.argtypes = [
        ctypes.c_void_p,
        kind,
        ctypes.c_ssize_t,
    ]
    cudart.fake_on_launch(callback)
    return callback


def reset() -> None:
    """As if nothing had happened."""
    for state in (FAIL, RECORDED, _graphs, _queued, PLUGINS_LOADED):
        state.clear()
