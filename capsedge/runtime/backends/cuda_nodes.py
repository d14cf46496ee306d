"""Single nodes on the CUDA kernels: the operator library's C interface (``onnxruntime/cuda_nodes.h``)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from capsedge.errors import EnvironmentProblem

NATIVE_TYPES = {
    "float32": 0,
    "float16": 1,
    "int8": 2,
    "uint8": 3,
    "int32": 4,
}  # of capsedge/kernels.h
_WORDS = 512  # characters of a reason


class NativeAttribute(ctypes.Structure):
    """``capsedge_kernel_attribute`` of capsedge/kernels.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("values", ctypes.POINTER(ctypes.c_double)),
        ("count", ctypes.c_int32),
    )


class NativeTensor(ctypes.Structure):
    """``capsedge_kernel_tensor`` of capsedge/kernels.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("type", ctypes.c_int32),
    )


class NativeNode(ctypes.Structure):
    """``capsedge_cuda_node`` of onnxruntime/cuda_nodes.h."""

    _fields_ = (
        ("type", ctypes.c_char_p),
        ("attributes", ctypes.POINTER(NativeAttribute)),
        ("attribute_count", ctypes.c_int32),
        ("inputs", ctypes.POINTER(NativeTensor)),
        ("input_count", ctypes.c_int32),
    )


@dataclass(frozen=True)
class CudaNode:
    """A node with the shapes of its inputs; any thread may use it.

    Attributes:
        library: the operator library.
        native: the node as the library takes it.
    """

    library: Path
    native: NativeNode

    def refused(self) -> str:
        """Why the kernels do not take it, which needs no GPU; empty if they do."""
        return self._call("capsedge_cuda_takes")[1]

    def scratch(self) -> tuple[int, str]:
        """Bytes of scratch memory that it needs on the current GPU, and why the kernels do not take it."""
        return self._call("capsedge_cuda_scratch", result=ctypes.c_int64)

    def run(
        self, inputs: Sequence[int], outputs: Sequence[int], scratch: tuple[int, int], stream: int
    ) -> str:
        """Queue the node on a stream of the current GPU.

        Args:
            inputs, outputs: addresses on the device, in the order of the specification.
            scratch: address and bytes of scratch memory, which lasts until the work is done.

        Returns:
            Why it could not be queued; empty if it was.
        """
        address, size = scratch
        return self._call(
            "capsedge_cuda_run",
            (ctypes.c_void_p * len(inputs))(*inputs),
            (ctypes.c_void_p * len(outputs))(*outputs),
            ctypes.c_void_p(address),
            ctypes.c_int64(size),
            ctypes.c_void_p(stream),
        )[1]

    def _call(self, name: str, *arguments: Any, result: Any = ctypes.c_int) -> tuple[int, str]:
        function, text = function_of(self.library, name), ctypes.create_string_buffer(_WORDS)
        function.restype = result
        code = function(ctypes.byref(self.native), *arguments, text, ctypes.c_size_t(_WORDS))
        return code, text.value.decode(errors="replace")


def cuda_node(
    library: Path,
    name: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[tuple[Sequence[int], str]],
) -> CudaNode:
    """A node for the kernels.

    Args:
        attributes: those that are no numbers or lists of numbers are left out.
        inputs: shape and type of each; the type is one of `NATIVE_TYPES`.
    """
    tensors = (NativeTensor * len(inputs))()
    for tensor, (shape, kind) in zip(tensors, inputs, strict=True):
        tensor.shape = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        tensor.rank, tensor.type = len(shape), NATIVE_TYPES[kind]
    numbers = _attributes(attributes)
    return CudaNode(
        library, NativeNode(name.encode(), numbers, len(numbers), tensors, len(tensors))
    )


def _attributes(attributes: Mapping[str, Any]) -> Any:
    """The numbers among attributes."""
    numbers = {
        name: list(value) if isinstance(value, (list, tuple)) else [value]
        for name, value in attributes.items()
        if isinstance(value, (int, float, list, tuple))
    }
    native = (NativeAttribute * len(numbers))()
    for attribute, (name, values) in zip(native, numbers.items(), strict=True):
        attribute.name = name.encode()
        attribute.values = (ctypes.c_double * max(1, len(values)))(*values)
        attribute.count = len(values)
    return native


@lru_cache
def function_of(library: Path, name: str) -> Any:
    """A function of the operator library."""
    try:
        return getattr(ctypes.CDLL(str(library)), name)
    except (OSError, AttributeError) as error:
        raise EnvironmentProblem(
            f"The operator library {library} does not load, or is of another version.",
            f"{error}.",
            "Reinstall capsedge, or run without the library: `--ops portable` (ops='portable').",
        ) from error
