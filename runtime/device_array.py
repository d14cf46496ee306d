"""Arrays on the GPU, shared without a copy: ``__cuda_array_interface__`` and DLPack, in and out."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from capsedge.errors import ShapeError, UsageError
from capsedge.runtime.cuda import Cuda

CUDA, CUDA_HOST, CUDA_MANAGED = 2, 3, 13  # DLDeviceType of dlpack.h
_KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLDataTypeCode by numpy's kind
_NAME, _USED_NAME = b"dltensor", b"used_dltensor"


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_python = ctypes.pythonapi
_new = _python.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = _python.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = _python.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]

# What was handed out and not yet given back, by the address of its descriptor.
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
    """A capsule that nobody consumed gives its tensor back itself."""
    if _raw_valid(capsule, _NAME):
        _lent.pop(_raw_pointer(capsule, _NAME), None)


class DeviceArray:
    """Contiguous memory on a GPU.

    Attributes:
        address: of the first element.
        shape, dtype: as numpy's.
        device: number of the GPU.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: str,
        device: int,
        *,
        keep: object = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.address, self.shape, self.dtype, self.device = address, tuple(shape), dtype, device
        self._keep, self._release = keep, release

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": np.dtype(self.dtype).str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": None,  # the results are complete: `run_on_device` has waited for them
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        element = np.dtype(self.dtype)
        managed = _Managed(
            tensor=_Tensor(
                data=self.address,
                device=_Device(CUDA, self.device),
                rank=len(self.shape),
                type=_Type(_KINDS[element.kind], 8 * element.itemsize, 1),
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


def device_array(value: object, name: str, cuda: Cuda, stream: int) -> DeviceArray:
    """What another library holds on a GPU, without a copy; ready for work on ``stream``.

    Args:
        value: an object with ``__cuda_array_interface__`` or ``__dlpack__``.
        name: of the input, for errors.

    Raises:
        UsageError: the object is of neither kind, or not on a GPU.
        ShapeError: the memory is not contiguous.
    """
    if isinstance(value, DeviceArray):
        return value
    if hasattr(value, "__cuda_array_interface__"):
        told = value.__cuda_array_interface__
        if told.get("stream") is not None:
            cuda.synchronize(int(told["stream"]))  # the stream that still writes it
        return _from_interface(told, value, name)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value, name, stream)
    raise UsageError(
        f"Input '{name}' is a {type(value).__name__}.",
        "Wanted: an array on the GPU, with __dlpack__ or __cuda_array_interface__.",
        "Give arrays in host memory to `Session.run`.",
    )


def _from_interface(told: dict[str, Any], owner: object, name: str) -> DeviceArray:
    element = np.dtype(told["typestr"])
    shape = tuple(int(d) for d in told["shape"])
    strides = told.get("strides")
    if strides is not None and not _contiguous(
        shape, [int(s) // element.itemsize for s in strides]
    ):
        raise _scattered(name)
    return DeviceArray(int(told["data"][0]), shape, element.name, 0, keep=owner)


def _from_dlpack(value: Any, name: str, stream: int) -> DeviceArray:
    kind, number = value.__dlpack_device__()
    if kind not in (CUDA, CUDA_HOST, CUDA_MANAGED):
        raise UsageError(
            f"Input '{name}' is not on the GPU.",
            f"Its DLPack device is ({int(kind)}, {number}).",
            "Move it there, or give it to `Session.run` as a numpy array.",
        )
    capsule = value.__dlpack__(stream=stream)  # whose later work waits for the producer's
    address = _pointer(capsule, _NAME)
    managed = _Managed.from_address(address)
    tensor = managed.tensor
    kinds = {code: letter for letter, code in _KINDS.items()}
    letter = kinds.get(tensor.type.code)
    if letter is None or tensor.type.lanes != 1:
        raise ShapeError(
            f"Input '{name}' has elements that numpy has no name for.",
            f"DLPack type {tensor.type.code}, {tensor.type.bits} bits, {tensor.type.lanes} lanes.",
            "Convert it to the type that `Session.inputs` names.",
        )
    element = np.dtype("bool" if letter == "b" else f"{letter}{tensor.type.bits // 8}")
    shape = tuple(tensor.shape[k] for k in range(tensor.rank))
    if tensor.strides and not _contiguous(shape, [tensor.strides[k] for k in range(tensor.rank)]):
        raise _scattered(name)
    _rename(capsule, _USED_NAME)

    def release() -> None:
        if managed.deleter:
            managed.deleter(ctypes.pointer(managed))

    return DeviceArray(
        int(tensor.data or 0) + int(tensor.offset), shape, element.name, int(number),
        keep=capsule, release=release,
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
        f"Input '{name}' is not contiguous.",
        "Its elements lie apart in memory.",
        "Make a contiguous copy of it first (in torch: `x.contiguous()`).",
    )
