"""The CUDA kernels' C interface (capsedge/runtime/native/kernels/cuda/capsedge_cuda.h) through ctypes.

The same calls run on a GPU over torch's buffers and, in a build for the host, over numpy's: `Memory` is the
difference.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import os
import shutil
import subprocess
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.cuda import load_cuda
from capsedge.spec.operators import EM_EPSILONS
from tests import tiers
from tests.native.library import NativeError, output_shapes

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "capsedge" / "runtime" / "native" / "kernels" / "cuda"
VARIABLE = "CAPSEDGE_CUDA_LIBRARY"
KERNELS = "CAPSEDGE_CUDA_KERNELS"  # the fat binary; by default the one beside the library
FILL = "CAPSEDGE_CUDA_FILL"
CHECKS = "CAPSEDGE_CUDA_CHECKS"  # what the host build reports beside wrong results: a key of FLAGS
MUTANT = "CAPSEDGE_CUDA_MUTANT"  # folder of other sources for the host build
RACES = Path(__file__).with_name("races.cpp")
FLAGS = {
    "": ["-O2", "-Wall", "-Wextra", "-Werror"],
    # Wrong addresses and arithmetic. Frames on the fibers' own stacks are not the address sanitizer's.
    "sanitized": [
        "-O2",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "--param=asan-stack=0",
    ],
    # Races: the calls that g++ compiles for its thread sanitizer go to races.cpp.
    "races": ["-O1"],
}
INSTRUMENTED = ["-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"]
Array = NDArray[Any]
TYPES = {"float32": 0, "float16": 1, "int8": 2}
OPERATIONS = {
    "DynamicRouting": 0,
    "VoteRouting": 3,
    "EMRouting": 1,
    "AttentionRouting": 2,
    "SelfAttentionRouting": 4,
}
OPERATORS = (
    "Squash",
    *OPERATIONS,
    *(f"Quantized{name}" for name in OPERATIONS if name != "VoteRouting"),
)
SCHEMES = {"auto": 0, "generic": 1, "split": 2, "tiled": 3, "cluster": 4, "portable": 5}
_INTEGERS = (
    "operation", "type", "weight_type", "images", "height", "width", "types", "kernel_height",
    "kernel_width", "stride_rows", "stride_columns", "grid_height", "grid_width", "parents", "rows",
    "inner", "columns", "iterations", "leaky", "coordinates", "shared",
    "normalize_activations", "ones_first", "parent_images",
    "over_children", "replace", "normalize", "elementwise", "one_weight", "vote_biases",
)  # fmt: skip
_ADDRESSES = (
    "pose", "activation", "parent", "weight", "weight_scale", "vote_bias", "log_prior", "scale", "bias",
    "beta_u", "beta_a", "additions", "out_pose", "out_activation",
)  # fmt: skip


class Layer(ctypes.Structure):
    """``capsedge_cuda_routing``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in _INTEGERS),
        *((name, ctypes.c_float) for name in EM_EPSILONS),
        ("epsilon", ctypes.c_float),
        ("agreement_scale", ctypes.c_float),
        ("inverse_temperatures", ctypes.c_float * 64),
        *((name, ctypes.c_void_p) for name in _ADDRESSES),
        ("scheme", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
    )


class Memory(Protocol):
    """Where tensors are while a kernel runs."""

    def put(self, array: Array) -> Any:
        """A tensor with these values."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A tensor of NaN."""

    def address(self, tensor: Any) -> int: ...

    def get(self, tensor: Any) -> Array:
        """Its values, when all work is done."""

    def stream(self) -> int: ...


class Host:
    """numpy's memory, for the build that emulates blocks on the host."""

    def put(self, array: Array) -> Array:
        return np.ascontiguousarray(array)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        return np.full(shape, np.nan if dtype != "uint8" else 255, dtype)

    def address(self, tensor: Array) -> int:
        return int(tensor.ctypes.data)

    def get(self, tensor: Array) -> Array:
        return tensor

    def stream(self) -> int:
        return 0


@dataclass(frozen=True, eq=False)
class DeviceTensor:
    """Memory of its own on the GPU, so that compute-sanitizer sees where it ends."""

    address: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Gpu:
    """Memory and a stream of a GPU, by the CUDA runtime; no other package is needed.

    With ``CAPSEDGE_CUDA_FILL=0``, new tensors stay unwritten: compute-sanitizer's initcheck then sees reads
    of what no kernel wrote.
    """

    def __init__(self) -> None:
        self.cuda = load_cuda()
        self._stream = self.cuda.create_stream()
        weakref.finalize(self, self.cuda.destroy_stream, self._stream)

    def put(self, array: Array) -> DeviceTensor:
        source = np.ascontiguousarray(array)
        tensor = self._allocate(source.shape, source.dtype.name)
        self.cuda.to_device(tensor.address, source.ctypes.data, source.nbytes, self._stream)
        self.cuda.synchronize(self._stream)  # `source` may go now
        return tensor

    def empty(self, shape: tuple[int, ...], dtype: str) -> DeviceTensor:
        if os.environ.get(FILL) == "0":
            return self._allocate(shape, dtype)
        return self.put(np.full(shape, np.nan if dtype != "uint8" else 255, dtype))

    def address(self, tensor: DeviceTensor) -> int:
        return tensor.address

    def get(self, tensor: DeviceTensor) -> Array:
        found = np.empty(tensor.shape, tensor.dtype)
        self.cuda.to_host(found.ctypes.data, tensor.address, found.nbytes, self._stream)
        self.cuda.synchronize(self._stream)
        return found

    def fill(self, tensor: DeviceTensor, value: float) -> None:
        """Overwrite every element."""
        source = np.full(tensor.shape, value, tensor.dtype)
        self.cuda.to_device(tensor.address, source.ctypes.data, source.nbytes, self._stream)
        self.cuda.synchronize(self._stream)

    def stream(self) -> int:
        return self._stream

    def captured(self, call: Callable[[], None]) -> Callable[[], None]:
        """The call as a CUDA graph, which the result launches on the stream.

        Raises:
            NativeError: the call cannot be captured.
        """

        def enqueue() -> bool:
            call()
            return True

        graph, why = self.cuda.capture(self._stream, enqueue)
        if not graph:
            raise NativeError(why)

        def launch() -> None:
            self.cuda.launch(graph, self._stream)

        weakref.finalize(launch, self.cuda.destroy_graph, graph)
        return launch

    def _allocate(self, shape: tuple[int, ...], dtype: str) -> DeviceTensor:
        tensor = DeviceTensor(0, shape, dtype)
        tensor = replace(tensor, address=self.cuda.allocate(tensor.nbytes))
        weakref.finalize(tensor, self.cuda.free, tensor.address)
        return tensor


def units(sources: Path = SOURCES) -> list[str]:
    """The files to compile: the host's code and the kernels."""
    return [str(file) for file in sorted(sources.iterdir()) if file.suffix in (".cpp", ".cu")]


def bind(path: Path) -> ctypes.CDLL:
    """The library with its signatures, and its kernels loaded.

    Raises:
        NativeError: they are not, with the reason.
    """
    library = ctypes.CDLL(str(path))
    with suppress(EnvironmentProblem):
        load_cuda()  # it knows more places, and the library takes the CUDA runtime that the process has
    library.capsedge_cuda_load.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    why = ctypes.create_string_buffer(512)
    if library.capsedge_cuda_load(os.fsencode(kernels_of(path)), why, 512):
        raise NativeError(why.value.decode())
    layer, text = ctypes.POINTER(Layer), (ctypes.c_char_p, ctypes.c_size_t)
    library.capsedge_cuda_workspace.restype = ctypes.c_int64
    library.capsedge_cuda_workspace.argtypes = [layer]
    library.capsedge_cuda_route.argtypes = [
        layer, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, *text,
    ]  # fmt: skip
    library.capsedge_cuda_squash.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_int64,
        ctypes.c_float, ctypes.c_int32, ctypes.c_void_p, *text,
    ]  # fmt: skip
    library.capsedge_cuda_describe.restype = ctypes.c_char_p
    library.capsedge_cuda_describe.argtypes = [layer]
    return library


@lru_cache(maxsize=1)
def host_library() -> Path | None:
    """The kernels compiled for the host, with the checks that are asked for; None without a C++ compiler."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None or os.uname().sysname != "Linux":
        return None
    checks = os.environ.get(CHECKS, "")
    sources = Path(os.environ.get(MUTANT, SOURCES))
    folder = (
        sources if MUTANT in os.environ else ROOT / "build" / f"cuda-host{checks and '-'}{checks}"
    )
    target = folder / "libcapsedge_cuda_host.so"
    shared = (sources.parent / "cpu" / "simd" / name for name in ("half.h", "simd.h"))
    newest = max(file.stat().st_mtime for file in (*sources.iterdir(), *shared, RACES))
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_file() or target.stat().st_mtime <= newest:
            made = target.with_name(f"{target.name}.{os.getpid()}")
            with tiers.shared:
                _compile(compiler, checks, sources, made)
            made.replace(target)
    return target


def _compile(compiler: str, checks: str, sources: Path, target: Path) -> None:
    common = ["-std=c++17", "-Wno-unknown-pragmas", "-fPIC", "-fvisibility=hidden", f"-I{sources}"]
    common += ["-DCAPSEDGE_EMULATE", *FLAGS[checks], "-x", "c++"]
    if checks != "races":
        subprocess.run(
            [compiler, *common, "-shared", *units(sources), "-o", str(target)], check=True
        )
        return
    with TemporaryDirectory() as name:
        subprocess.run(
            [compiler, *common, *INSTRUMENTED, "-c", *units(sources)], cwd=name, check=True
        )
        subprocess.run(
            [compiler, *common, "-shared", str(RACES), "-x", "none",
             *map(str, Path(name).glob("*.o")), "-o", str(target)],
            check=True,
        )  # fmt: skip


def gpu_library() -> Path | None:
    """The kernels for the GPU: what the variable names, or what `make cuda` built."""
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else ROOT / "build" / "cuda" / "libcapsedge_cuda.so"
    return path if path.is_file() else None


def kernels_of(library: Path) -> Path:
    """The fat binary that the library loads: what the variable names, or the one beside it."""
    named = os.environ.get(KERNELS)
    return Path(named) if named else library.with_name("capsedge.fatbin")


def layer_of(operator: str, attributes: Mapping[str, Any], inputs: Mapping[str, Array]) -> Layer:
    """Dimensions and attributes of one node; addresses are left empty."""
    name = operator.removeprefix("Quantized")
    first = next(iter(inputs.values()))
    weight = inputs.get("weight", first)
    layer = Layer(
        operation=OPERATIONS[name],
        type=TYPES[first.dtype.name],
        weight_type=TYPES[weight.dtype.name],
        images=len(first),
        epsilon=attributes["epsilon"],
        iterations=attributes.get("iterations", 2 if name == "SelfAttentionRouting" else 1),
        leaky=attributes.get("leaky", 0),
        coordinates=attributes.get("coordinate_addition", 0),
        shared=attributes.get("shared", 0),
        normalize_activations=attributes.get("normalize_activations", 0),
        ones_first=attributes.get("ones_first", 0),
        agreement_scale=attributes.get("agreement_scale", 1),
        **{
            k: attributes.get(k, 0)
            for k in ("over_children", "replace", "normalize", "elementwise", *EM_EPSILONS)
        },
        grid_height=1,
        grid_width=1,
        kernel_height=1,
        kernel_width=1,
        stride_rows=1,
        stride_columns=1,
        rows=1,
    )
    if name.startswith(("DynamicRouting", "SelfAttention")):
        layer.height = layer.width = 1
        layer.types = first.shape[1]
        weights, layer.parents, layer.columns, layer.inner = weight.shape
        layer.one_weight = int(weights < layer.types)
        layer.vote_biases = len(inputs["vote_bias"]) if "vote_bias" in inputs else 0
        return layer
    if name == "VoteRouting":
        layer.height = layer.width = layer.inner = 1
        layer.types, layer.parents, layer.columns = first.shape[1:]
        return layer
    layer.height, layer.width, layer.types = first.shape[1:4]
    layer.kernel_height, layer.kernel_width, _, layer.parents, layer.inner, layer.columns = (
        weight.shape
    )
    if "inverse_temperatures" in attributes or attributes["matrix_pose"]:
        layer.rows = layer.inner
    for k, value in enumerate(attributes.get("inverse_temperatures", ())):
        layer.inverse_temperatures[k] = value
    if not layer.shared:
        layer.stride_rows, layer.stride_columns = attributes["strides"]
        layer.grid_height = (layer.height - layer.kernel_height) // layer.stride_rows + 1
        layer.grid_width = (layer.width - layer.kernel_width) // layer.stride_columns + 1
    if "parent" in inputs:
        layer.parent_images = len(inputs["parent"])
    return layer


_NAMES = {"u": "pose", "votes": "pose", "a": "activation", "coordinates": "additions"}


def prepare(
    library: ctypes.CDLL,
    memory: Memory,
    operator: str,
    attributes: Mapping[str, Any],
    inputs: Mapping[str, Array],
    *,
    scheme: str = "auto",
    multiprocessors: int = 0,
) -> tuple[Callable[[], None], list[Any]]:
    """A call that puts the operator on the stream, and the tensors that it fills.

    Raises:
        NativeError: by the call, if the library refuses the layer.
    """
    given = {name: memory.put(array) for name, array in inputs.items()}
    first = next(iter(inputs.values()))
    plain = operator.removeprefix("Quantized")
    without = [array for name, array in inputs.items() if name != "weight_scale"]
    shapes = output_shapes(plain, without, attributes)
    if plain == "AttentionRouting":
        shapes = [(len(first), *shapes[0][1:])]
    outputs = [memory.empty(tuple(shape), first.dtype.name) for shape in shapes]
    text = ctypes.create_string_buffer(256)

    def check(code: int) -> None:
        if code:
            raise NativeError(text.value.decode())

    if plain == "Squash":
        axis = attributes["axis"] % first.ndim
        outer, inner = int(np.prod(first.shape[:axis])), int(np.prod(first.shape[axis + 1 :]))

        def squash() -> None:
            check(
                library.capsedge_cuda_squash(
                    memory.address(given["x"]), memory.address(outputs[0]), outer, first.shape[axis],
                    inner, attributes["epsilon"], TYPES[first.dtype.name], memory.stream(), text, 256,
                )
            )  # fmt: skip

        return squash, outputs
    layer = layer_of(operator, attributes, inputs)
    layer.scheme, layer.multiprocessors = SCHEMES[scheme], multiprocessors
    for name, tensor in given.items():
        setattr(layer, _NAMES.get(name, name), memory.address(tensor))
    layer.out_pose = memory.address(outputs[0])
    if "a" in inputs:
        layer.out_activation = memory.address(outputs[1])
    size = library.capsedge_cuda_workspace(ctypes.byref(layer))
    workspace = memory.empty((max(size, 1) + 64,), "uint8")
    start = -memory.address(workspace) % 64

    def route() -> None:
        del_keep = given  # the addresses in the layer are these tensors'
        assert del_keep
        check(
            library.capsedge_cuda_route(
                ctypes.byref(layer),
                memory.address(workspace) + start,
                size,
                memory.stream(),
                text,
                256,
            )
        )

    return route, outputs
