"""Arrays of any library as numpy arrays, without importing the library."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError


class SupportsArray(Protocol):
    """What numpy can read: arrays of torch, TensorFlow, JAX, pandas and others."""

    def __array__(self) -> NDArray[Any]: ...


class SupportsDLPack(Protocol):
    """An array of the DLPack protocol."""

    def __dlpack__(self) -> object: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...


AnyArray: TypeAlias = NDArray[Any] | SupportsArray | SupportsDLPack

_PROTOCOLS = ("__array__", "__dlpack__", "__array_interface__", "__cuda_array_interface__")


def as_array(value: object, name: str = "the array") -> NDArray[Any] | None:
    """The numpy array of an array of any library; None for what is none.

    Nothing is copied where the library lends its memory. A tensor of torch is detached first, bfloat16
    becomes float32. An array on a GPU is copied to the host; on the same GPU without a copy,
    `Session.run_on_device` runs engines.

    Args:
        name: the name in errors.

    Raises:
        UsageError: the array is on a device that it cannot be copied from, is sparse or has masked values.
    """
    if isinstance(value, np.ndarray):
        return _unmasked(value, name)
    if isinstance(value, type):
        return None
    if isinstance(value, memoryview):
        return np.asarray(value)
    if not any(hasattr(value, protocol) for protocol in _PROTOCOLS):
        return None
    try:
        return _unmasked(_converted(value), name)
    except UsageError:
        raise
    except Exception as error:  # every library has errors of its own for what it does not lend
        raise UsageError(
            f"{name} is of type {type(value).__name__} and cannot be read as an array.",
            f"{error}".strip().split("\n")[0],
            "Copy it to the host as a dense array first, for instance with numpy.asarray.",
        ) from error


def _converted(value: Any) -> NDArray[Any]:
    if all(callable(getattr(value, name, None)) for name in ("detach", "cpu", "numpy")):
        tensor = value.detach().cpu()  # torch
        half = "bfloat16" in str(tensor.dtype)
        found: NDArray[Any] = (tensor.float() if half else tensor).numpy()
        return found
    if hasattr(value, "__cuda_array_interface__") and callable(getattr(value, "get", None)):
        return np.asarray(value.get())  # CuPy
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return np.asarray(value)
    return np.from_dlpack(value)


def _unmasked(array: NDArray[Any], name: str) -> NDArray[Any]:
    # The type first: numpy imports np.ma, which is large, when it is first named.
    if type(array) is np.ndarray:
        return array
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise UsageError(
            f"{name} has masked values.",
            f"{int(np.ma.getmaskarray(array).sum()):,} of {array.size:,}.",
            "Fill them: array.filled(0).",
        )
    return np.asarray(array)
