"""Call the CUDA runtime through ctypes: devices, memory, streams, graphs.

Needs libcudart, no Python package. The current device belongs to a thread, so every caller works inside
`Cuda.on`, which restores the thread's own choice. A stream, its buffers and its graphs belong to one caller
at a time.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from capsedge.errors import EnvironmentProblem

VARIABLE = "CAPSEDGE_CUDART"
_NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
_WHEELS = (("cu13", "lib"), ("cuda_runtime", "lib"))  # folders inside the package "nvidia"
_FOLDERS = ("/usr/local/cuda/lib64",)

# Numbers of the CUDA runtime's interface, the same in CUDA 12 and 13 (driver_types.h).
_HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE = 1, 2, 3
_STREAM_NON_BLOCKING = 1
_EVENT_WITHOUT_TIMING = 2
_CAPTURE_THREAD_LOCAL = 1
_MAJOR, _MINOR, _MULTIPROCESSORS = 75, 76, 16
_OLD_DRIVER = 35
LEGACY_STREAM = 1  # the default stream of a process
HOST_MEMORY, DEVICE_MEMORY, MANAGED_MEMORY = 1, 2, 3  # 0: none that CUDA knows

_Handle = ctypes.c_void_p
_SIGNATURES: dict[str, list[Any]] = {
    "cudaGetDeviceCount": [ctypes.POINTER(ctypes.c_int)],
    "cudaGetDevice": [ctypes.POINTER(ctypes.c_int)],
    "cudaSetDevice": [ctypes.c_int],
    "cudaDeviceGetAttribute": [ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int],
    "cudaMemGetInfo": [ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)],
    "cudaDriverGetVersion": [ctypes.POINTER(ctypes.c_int)],
    "cudaRuntimeGetVersion": [ctypes.POINTER(ctypes.c_int)],
    "cudaMalloc": [ctypes.POINTER(_Handle), ctypes.c_size_t],
    "cudaFree": [_Handle],
    "cudaHostAlloc": [ctypes.POINTER(_Handle), ctypes.c_size_t, ctypes.c_uint],
    "cudaFreeHost": [_Handle],
    "cudaMemcpyAsync": [_Handle, _Handle, ctypes.c_size_t, ctypes.c_int, _Handle],
    "cudaPointerGetAttributes": [_Handle, _Handle],
    "cudaStreamCreateWithFlags": [ctypes.POINTER(_Handle), ctypes.c_uint],
    "cudaStreamDestroy": [_Handle],
    "cudaStreamSynchronize": [_Handle],
    "cudaEventCreateWithFlags": [ctypes.POINTER(_Handle), ctypes.c_uint],
    "cudaEventRecord": [_Handle, _Handle],
    "cudaStreamWaitEvent": [_Handle, _Handle, ctypes.c_uint],
    "cudaEventDestroy": [_Handle],
    "cudaStreamBeginCapture": [_Handle, ctypes.c_int],
    "cudaStreamEndCapture": [_Handle, ctypes.POINTER(_Handle)],
    "cudaGraphInstantiateWithFlags": [ctypes.POINTER(_Handle), _Handle, ctypes.c_ulonglong],
    "cudaGraphLaunch": [_Handle, _Handle],
    "cudaGraphExecDestroy": [_Handle],
    "cudaGraphDestroy": [_Handle],
}


class _Memory(ctypes.Structure):
    """cudaPointerAttributes; in CUDA 13, more fields follow."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("device", ctypes.c_int),
        ("rest", ctypes.c_uint8 * 248),
    )


_WITHOUT_GPU = (35, 100)  # cudaErrorInsufficientDriver (or no driver), cudaErrorNoDevice


class CudaError(EnvironmentProblem):
    """A call of the CUDA runtime failed."""

    def __init__(self, function: str, code: int, words: str) -> None:
        self.code = code
        if code in _WITHOUT_GPU:
            super().__init__(
                "There is no NVIDIA GPU that CUDA can use on this machine.",
                f"CUDA error {code}: {words} ({function}).",
                "Run an ONNX file on the CPU, `capsedge infer --device cpu --model MODEL.onnx IMAGE.png`; if "
                "there is a GPU, `capsedge doctor` says what keeps it from being used.",
            )
            return
        super().__init__(
            f"The GPU refused {function}.",
            f"CUDA error {code}: {words}.",
            "Check `nvidia-smi` (on a Jetson: `tegrastats`) and `capsedge doctor`; if memory is "
            "short, use a smaller batch or fewer `contexts`.",
        )


def candidates() -> list[str]:
    """Where libcudart may be, best first."""
    named = os.environ.get(VARIABLE)
    if named:
        return [named]
    libraries = list(_NAMES)
    specification = importlib.util.find_spec("nvidia")
    roots = list(specification.submodule_search_locations or []) if specification else []
    for root in roots:
        for parts in _WHEELS:
            libraries += sorted(map(str, Path(root).joinpath(*parts).glob("libcudart.so.*")))
    for folder in _FOLDERS:
        libraries += sorted(map(str, Path(folder).glob("libcudart.so.1?")))
    return libraries


def _open() -> ctypes.CDLL:
    """The first libcudart that the driver supports: those of its own CUDA version and of older ones."""
    refused = []
    for name in candidates():
        try:
            library = ctypes.CDLL(name)
            runtime, driver = ctypes.c_int(0), ctypes.c_int(0)
            library.cudaRuntimeGetVersion(ctypes.byref(runtime))
            library.cudaDriverGetVersion(ctypes.byref(driver))
        except OSError:
            continue
        except AttributeError as error:
            raise EnvironmentProblem(
                f"{name} is not a CUDA runtime library.", f"{error}.", "Install CUDA 12 or 13."
            ) from error
        # Without a driver, none can run, and the first one reports that.
        if not driver.value or runtime.value // 1000 <= driver.value // 1000:
            return library
        refused.append(f"{name} is CUDA {_version(runtime.value)}")
    if not refused:
        raise EnvironmentProblem(
            "The CUDA runtime library (libcudart) was not found.",
            f"Looked for {', '.join(candidates())}.",
            "Install it: `pip install 'capsedge[tensorrt-cu13]'` (or -cu12, by the driver) includes it, "
            f"JetPack has it in /usr/local/cuda; or set {VARIABLE} to its path.",
        )
    known = driver.value // 1000 == 12
    raise EnvironmentProblem(
        "No installed CUDA runtime library (libcudart) works with this driver.",
        f"The driver supports CUDA {_version(driver.value)}; {', '.join(refused)}.",
        "Install a newer driver, or an older libcudart"
        + (": `pip install nvidia-cuda-runtime-cu12`." if known else "."),
    )


class Cuda:
    """The loaded CUDA runtime library.

    Raises:
        EnvironmentProblem: there is no libcudart, none that the driver supports, or one that lacks a
            required function.
    """

    def __init__(self) -> None:
        library = _open()
        self._here = threading.local()  # whether this thread captures
        self._later: deque[Callable[[], None]] = deque()
        self._library = library
        try:
            for name, arguments in _SIGNATURES.items():
                function = getattr(library, name)
                function.argtypes, function.restype = arguments, ctypes.c_int
            library.cudaGetErrorString.restype = ctypes.c_char_p
            library.cudaGetErrorString.argtypes = [ctypes.c_int]
        except AttributeError as error:
            raise EnvironmentProblem(
                "The CUDA runtime library is too old.", f"{error}.", "Install CUDA 12 or 13."
            ) from error

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code:
            self._library.cudaGetLastError()  # clears it, or the next call reports it again
            words = self._library.cudaGetErrorString(code) or b"unknown"
            raise CudaError(name, code, words.decode(errors="replace"))

    def _number(self, name: str, *before: Any) -> int:
        value = ctypes.c_int(0)
        self._call(name, ctypes.byref(value), *before)
        return value.value

    def _handle(self, name: str, *after: Any) -> int:
        handle = _Handle()
        self._call(name, ctypes.byref(handle), *after)
        return int(handle.value or 0)

    def device_count(self) -> int:
        """GPUs that this process may use."""
        return self._number("cudaGetDeviceCount")

    def check_device(self, device: int) -> None:
        """Refuse a GPU that this machine does not have.

        Raises:
            EnvironmentProblem: its number is too large, or CUDA sees no GPU.
        """
        count = self.device_count()
        if device >= count:
            known = {0: "no GPU", 1: "1 GPU, number 0,"}
            gpus = known.get(count, f"{count} GPUs, numbered from 0,")
            raise EnvironmentProblem(
                f"There is no GPU {device}.",
                f"CUDA sees {gpus} on this machine.",
                "Run `capsedge doctor`; `nvidia-smi` lists the GPUs.",
            )

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Select a GPU for the calling thread; its own choice is restored afterwards."""
        before = self._number("cudaGetDevice")
        self._call("cudaSetDevice", device)
        try:
            yield
        finally:
            self._call("cudaSetDevice", before)

    def compute_capability(self, device: int) -> str:
        """``"8.7"`` for an Orin."""
        major = self._number("cudaDeviceGetAttribute", _MAJOR, device)
        return f"{major}.{self._number('cudaDeviceGetAttribute', _MINOR, device)}"

    def multiprocessors(self, device: int) -> int:
        """Active streaming multiprocessors; on a Jetson, they depend on the power mode."""
        return self._number("cudaDeviceGetAttribute", _MULTIPROCESSORS, device)

    def runtime_version(self) -> str:
        """The version of libcudart, such as ``"13.0"``."""
        return _version(self._number("cudaRuntimeGetVersion"))

    def driver_version(self) -> str:
        """Newest CUDA that the driver supports."""
        return _version(self._number("cudaDriverGetVersion"))

    def free_memory(self) -> int:
        """Bytes free on the current GPU."""
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        self._call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """Address of device memory; at least one byte, so that an empty tensor has an address."""
        return self._handle("cudaMalloc", max(1, size))

    def free(self, address: int) -> None:
        self._call("cudaFree", address)

    def allocate_host(self, size: int) -> int:
        """Address of pinned host memory."""
        return self._handle("cudaHostAlloc", max(1, size), 0)

    def free_host(self, address: int) -> None:
        self._call("cudaFreeHost", address)

    def memory(self, address: int) -> tuple[int, int]:
        """Kind of the memory (`HOST_MEMORY`, ...; 0 where CUDA does not know it), and number of its GPU."""
        memory = _Memory()
        self._call("cudaPointerGetAttributes", ctypes.addressof(memory), address)
        return memory.kind, memory.device

    def to_device(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy from the host, queued on the stream; only copies of pinned memory are really asynchronous."""
        self._call("cudaMemcpyAsync", target, source, size, _HOST_TO_DEVICE, stream)

    def to_host(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy to the host, queued on the stream."""
        self._call("cudaMemcpyAsync", target, source, size, _DEVICE_TO_HOST, stream)

    def on_device(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy on the device, queued on the stream."""
        self._call("cudaMemcpyAsync", target, source, size, _DEVICE_TO_DEVICE, stream)

    def create_stream(self) -> int:
        """A stream that does not wait for the default one."""
        return self._handle("cudaStreamCreateWithFlags", _STREAM_NON_BLOCKING)

    def destroy_stream(self, stream: int) -> None:
        self._call("cudaStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        """Wait for everything on the stream."""
        self._call("cudaStreamSynchronize", stream)

    def wait(self, stream: int, producer: int) -> None:
        """Later work on ``stream`` waits for the work on ``producer``; the host does not."""
        event = self._handle("cudaEventCreateWithFlags", _EVENT_WITHOUT_TIMING)
        try:
            self._call("cudaEventRecord", event, producer)
            self._call("cudaStreamWaitEvent", stream, event, 0)
        finally:
            self._call("cudaEventDestroy", event)  # CUDA keeps it until it is over

    def when_allowed(self, release: Callable[[], None]) -> None:
        """Free something now or, if this thread is capturing a graph, after the capture.

        Garbage collection runs in any thread; freeing memory while that thread captures would fail and
        invalidate the graph.
        """
        if getattr(self._here, "capturing", False):
            self._later.append(release)
        else:
            release()

    def capture(self, stream: int, enqueue: Callable[[], bool]) -> tuple[int, str]:
        """Record what ``enqueue`` puts on the stream.

        Returns:
            The executable graph and an empty string; or 0 and the reason why the work cannot be captured. In
            both cases, the stream remains usable.
        """
        graph = _Handle()
        self._call("cudaStreamBeginCapture", stream, _CAPTURE_THREAD_LOCAL)
        self._here.capturing = True
        try:
            accepted = enqueue()
        finally:
            self._here.capturing = False
            code = self._library.cudaStreamEndCapture(stream, ctypes.byref(graph))
            while self._later:
                with suppress(IndexError):  # another thread was first
                    self._later.popleft()()
        if code or not accepted or not graph.value:
            self._library.cudaGetLastError()
            if graph.value:
                self._library.cudaGraphDestroy(graph)
            words = (self._library.cudaGetErrorString(code) or b"").decode(errors="replace")
            return 0, words if code else "the engine contains work that cannot be captured"
        try:
            return self._handle("cudaGraphInstantiateWithFlags", graph, 0), ""
        except CudaError as error:
            return 0, error.why
        finally:
            self._library.cudaGraphDestroy(graph)

    def launch(self, graph: int, stream: int) -> None:
        """Run a captured graph."""
        self._call("cudaGraphLaunch", graph, stream)

    def destroy_graph(self, graph: int) -> None:
        self._call("cudaGraphExecDestroy", graph)


@lru_cache(maxsize=1)
def load_cuda() -> Cuda:
    """The library, loaded once per process."""
    return Cuda()


def driver_version() -> str:
    """Newest CUDA that the driver supports, ``"12.6"``; empty without a driver. Does not need libcudart."""
    version = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
            return ""
    except (OSError, AttributeError):
        return ""
    return _version(version.value)


def device_name(device: int) -> str:
    """The GPU's name as the driver reports it; empty if it reports none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        text = ctypes.create_string_buffer(256)
        handle = ctypes.c_int(0)
        failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), device)
        if failed or driver.cuDeviceGetName(text, len(text), handle):
            return ""
    except (OSError, AttributeError):
        return ""
    return text.value.decode(errors="replace")


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
