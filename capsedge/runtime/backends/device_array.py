"""Arrays on the GPU, shared without a copy: DLPack and ``__cuda_array_interface__``, in and out.

Order: the producer of an array may still be writing it, on its own stream. DLPack makes the reader's stream
wait. For an array that has only the other protocol, the reader waits for the stream that it names or, if it
names none, for the default stream and torch's current stream.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from capsedge.errors import ShapeError, UsageError
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.backends.cuda import DEVICE_MEMORY, HOST_MEMORY, LEGACY_STREAM, Cuda

CUDA, CUDA_HOST, CUDA_MANAGED = 2, 3, 13  # DLDeviceType of dlpack.h
_KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLDataTypeCode by numpy's kind
_NAME, _USED_NAME = b"dltensor", b"used_dltensor"


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("type", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_python = ctypes.pythonapi
_new = _python.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = _python.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = _python.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]

# Arrays that were handed out and not yet returned, by the address of their descriptor.
_lent: dict[int, tuple[Any, ...]] = {}


@_Deleter  # type: ignore[untyped-decorator]
def _give_back(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_raw_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _python)
)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # type: ignore[untyped-decorator]
def _drop_capsule(capsule: int) -> None:
    """A capsule that was never consumed returns its tensor itself."""
    if _raw_valid(capsule, _NAME):
        _lent.pop(_raw_pointer(capsule, _NAME), None)


class DeviceArray:
    """Contiguous memory on a GPU.

    Attributes:
        address: address of the first element.
        shape, dtype: as numpy's.
        device: number of the GPU.
        stream: the stream that still writes it; None if it is complete.
        on_host: whether it is pinned host memory, which the GPU reads.
        read_only: whether its owner forbids writing.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: str,
        device: int,
        *,
        on_host: bool = False,
        read_only: bool = False,
        keep: object = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.address, self.shape, self.dtype, self.device = address, tuple(shape), dtype, device
        self.stream: int | None = None
        self.on_host, self.read_only = on_host, read_only
        self._cuda: Cuda | None = None
        self._keep, self._release = keep, release

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def written_on(self, stream: int | None, cuda: Cuda) -> DeviceArray:
        """This array, marked as still being written by a stream; None marks it as complete."""
        self.stream, self._cuda = stream, cuda
        return self

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": np.dtype(self.dtype).str,
            "data": (self.address, self.read_only),
            "version": 3,
            "strides": None,
            "stream": self.stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA_HOST if self.on_host else CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        if self.stream is not None and self._cuda is not None and stream != -1:
            with self._cuda.on(self.device):
                self._cuda.wait(stream or LEGACY_STREAM, self.stream)
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        element = np.dtype(self.dtype)
        managed = _Managed(
            tensor=_DLTensor(
                data=self.address,
                device=_Device(*self.__dlpack_device__()),
                rank=len(self.shape),
                type=_DLDataType(_KINDS[element.kind], 8 * element.itemsize, 1),
                shape=shape,
            ),
            deleter=_give_back,
        )
        address = ctypes.addressof(managed)
        _lent[address] = (managed, shape, self)
        return _new(address, _NAME, ctypes.cast(_drop_capsule, ctypes.c_void_p))

    def __del__(self) -> None:
        release, self._release = getattr(self, "_release", None), None
        if release is not None:
            release()


def device_array(value: object, name: str, cuda: Cuda, device: int, stream: int) -> DeviceArray:
    """An array of another library on a GPU, without a copy and ready for work on ``stream``.

    Args:
        value: an object with ``__dlpack__`` or ``__cuda_array_interface__``.
        device: number of the GPU that it must be on, which must be the calling thread's current one.
    """
    if isinstance(value, DeviceArray):
        _check_device(name, value.device, device)
        if value.stream is not None:
            cuda.wait(stream, value.stream)
        return value
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value, name, cuda, device, stream)
    if hasattr(value, "__cuda_array_interface__"):
        return _from_interface(value, name, cuda, device, stream)
    raise UsageError(
        f"'{name}' has the type {type(value).__name__}.",
        "Expected: an array on the GPU, with __dlpack__ or __cuda_array_interface__.",
        "Pass arrays in host memory to `Session.run`.",
    )


def check_array(port: Port, wanted: tuple[int, ...], array: DeviceArray) -> None:
    """Refuse an array that is not what an input or output needs."""
    if array.dtype != port.dtype or array.shape != wanted:
        raise ShapeError(
            f"'{port.name}' is {array.dtype} {list(array.shape)}.",
            f"Expected: {port.dtype} {list(wanted)}.",
            "Convert it before inference.",
        )


def check_writable(name: str, array: DeviceArray) -> None:
    """Refuse an array that may not be written."""
    if array.read_only:
        raise UsageError(f"'{name}' is read-only.", "", "Pass a writable array.")


def stream_address(stream: object) -> int:
    """The ``cudaStream_t`` of a number or an object with ``__cuda_stream__``, ``cuda_stream`` or ``ptr``."""
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    raise UsageError(
        f"The stream has the type {type(stream).__name__}.",
        "Expected: a CUDA stream of torch or cupy, an object with __cuda_stream__, or its address.",
        "For example: `stream=torch.cuda.current_stream()`.",
    )


def _check_device(name: str, actual: int, device: int) -> None:
    if actual != device:
        raise UsageError(
            f"'{name}' is on GPU {actual}.",
            f"The model runs on GPU {device}.",
            f"Move it there, or load the model with device='cuda:{actual}'.",
        )


def _from_interface(value: Any, name: str, cuda: Cuda, device: int, stream: int) -> DeviceArray:
    interface: dict[str, Any] = value.__cuda_array_interface__
    element = np.dtype(interface["typestr"])
    shape = tuple(int(d) for d in interface["shape"])
    strides = interface.get("strides")
    if strides is not None and not _contiguous(
        shape, [int(s) // element.itemsize for s in strides]
    ):
        raise _scattered(name)
    address = int(interface["data"][0])
    kind, number = cuda.memory(address) if math.prod(shape) else (DEVICE_MEMORY, device)
    if not kind:
        raise UsageError(
            f"'{name}' is not on the GPU.",
            "CUDA does not recognize its memory.",
            "Move it there, or pass it to `Session.run` as a numpy array.",
        )
    if kind == DEVICE_MEMORY:
        _check_device(name, number, device)
    if interface.get("stream") is None:
        _wait_for_defaults(cuda, stream)
    else:
        cuda.wait(stream, int(interface["stream"]))
    return DeviceArray(
        address, shape, element.name, device, on_host=kind == HOST_MEMORY,
        read_only=bool(interface["data"][1]), keep=value,
    )  # fmt: skip


def _wait_for_defaults(cuda: Cuda, stream: int) -> None:
    """Later work on ``stream`` waits for producers that did not name their stream.

    That is the default stream and torch's current one: a torch tensor wrapped in another object does not name
    its stream.
    """
    cuda.wait(stream, LEGACY_STREAM)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        current = int(torch.cuda.current_stream().cuda_stream)
        if current:
            cuda.wait(stream, current)


def _from_dlpack(value: Any, name: str, cuda: Cuda, device: int, stream: int) -> DeviceArray:
    if getattr(value, "requires_grad", False):
        raise UsageError(
            f"'{name}' is a tensor that requires gradients.",
            "Inference does not compute gradients.",
            "Pass its `.detach()`, or create it inside `torch.no_grad()`.",
        )
    kind, number = value.__dlpack_device__()
    if kind not in (CUDA, CUDA_HOST, CUDA_MANAGED):
        raise UsageError(
            f"'{name}' is not on the GPU.",
            f"Its DLPack device is ({int(kind)}, {number}).",
            "Move it there, or pass it to `Session.run` as a numpy array.",
        )
    on_host = kind == CUDA_HOST
    if on_host:
        _wait_for_defaults(cuda, stream)
    elif kind == CUDA:
        _check_device(name, int(number), device)
    try:
        # For memory on the GPU, the producer makes the stream wait; host memory has no stream.
        capsule = value.__dlpack__() if on_host else value.__dlpack__(stream=stream)
    except (BufferError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise UsageError(
            f"'{name}' cannot be shared by DLPack.",
            f"{type(error).__name__}: {error}",
            "Make a plain copy of it first (in torch: `x.detach().clone()`).",
        ) from error
    address = _pointer(capsule, _NAME)
    managed = _Managed.from_address(address)
    tensor = managed.tensor
    kinds = {code: letter for letter, code in _KINDS.items()}
    letter, bits = kinds.get(tensor.type.code), tensor.type.bits
    if letter is None or tensor.type.lanes != 1 or bits not in (8, 16, 32, 64):
        raise ShapeError(
            f"'{name}' has elements of a type that numpy does not have.",
            f"DLPack type {tensor.type.code}, {bits} bits, {tensor.type.lanes} lanes.",
            "Convert it to the type that `Session.inputs` names.",
        )
    element = np.dtype("bool" if letter == "b" else f"{letter}{bits // 8}")
    shape = tuple(tensor.shape[k] for k in range(tensor.rank))
    if tensor.strides and not _contiguous(shape, [tensor.strides[k] for k in range(tensor.rank)]):
        raise _scattered(name)
    _rename(capsule, _USED_NAME)

    def release() -> None:
        if managed.deleter:
            managed.deleter(ctypes.pointer(managed))

    return DeviceArray(
        int(tensor.data or 0) + int(tensor.offset), shape, element.name, device,
        on_host=on_host, keep=capsule, release=release,
    )  # fmt: skip


def _contiguous(shape: tuple[int, ...], strides: list[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return 0 in shape
        expected *= size
    return True


def _scattered(name: str) -> ShapeError:
    return ShapeError(
        f"'{name}' is not contiguous.",
        "There are gaps between its elements in memory.",
        "Make a contiguous copy of it first (in torch: `x.contiguous()`).",
    )
