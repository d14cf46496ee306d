"""The native library's C interface (capsedge/runtime/native/include/capsedge/kernels.h) through ctypes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.backends.cuda_operators import NATIVE_TYPES as TYPES
from capsedge.runtime.backends.cuda_operators import NativeAttribute, NativeTensor
from capsedge.runtime.backends.native_library import find_library
from capsedge.spec.operators import OPERATORS, WINDOWS_OF

Array = NDArray[Any]
LEVEL_VARIABLE = "CAPSEDGE_SIMD"


class NativeError(Exception):
    """What the library says."""


@lru_cache(maxsize=1)
def load(path: Path | None = None) -> ctypes.CDLL | None:
    """The library, or None if it is not installed."""
    path = path or find_library()
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    library.capsedge_kernel_levels.restype = ctypes.c_char_p
    library.capsedge_kernel_operators.restype = ctypes.c_char_p
    library.capsedge_kernel_level_of.restype = ctypes.c_char_p
    library.capsedge_kernel_level_of.argtypes = [ctypes.c_void_p]
    library.capsedge_kernel_destroy.argtypes = [ctypes.c_void_p]
    library.capsedge_kernel_destroy.restype = None
    return library


def levels() -> list[str]:
    """SIMD levels of this machine, slowest first; none without the library."""
    library = load()
    return library.capsedge_kernel_levels().decode().split(",") if library else []


def _tensors(arrays: Sequence[Array]) -> ctypes.Array[NativeTensor]:
    made = (NativeTensor * len(arrays))()
    for tensor, array in zip(made, arrays, strict=True):
        assert array.flags.c_contiguous
        tensor.data = array.ctypes.data
        tensor.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        tensor.rank = array.ndim
        tensor.type = TYPES[array.dtype.name]
    return made


class Operator:
    """One operator with its attributes at one SIMD level.

    Raises:
        NativeError: an attribute is wrong, or the machine lacks the level.
    """

    def __init__(
        self,
        name: str,
        attributes: Mapping[str, Any],
        *,
        level: str | None = None,
        threads: int = 2,
    ) -> None:
        library = load()
        assert library is not None
        self._library = library
        self._handle = ctypes.c_void_p()
        self.threads = threads
        listed = (NativeAttribute * len(attributes))()
        for entry, (key, value) in zip(listed, attributes.items(), strict=True):
            values = list(value) if isinstance(value, (list, tuple)) else [value]
            entry.name = key.encode()
            entry.values = (ctypes.c_double * len(values))(*values)
            entry.count = len(values)
        before = os.environ.get(LEVEL_VARIABLE)
        if level is not None:
            os.environ[LEVEL_VARIABLE] = level
        try:
            self._call(
                "capsedge_kernel_create",
                name.encode(),
                listed,
                len(listed),
                ctypes.byref(self._handle),
            )
        finally:
            if level is not None:
                os.environ.pop(LEVEL_VARIABLE)
                if before is not None:
                    os.environ[LEVEL_VARIABLE] = before

    @property
    def level(self) -> str:
        return str(self._library.capsedge_kernel_level_of(self._handle).decode())

    def constant(self, index: int, array: Array) -> None:
        """Pack input ``index``, which is the same from now on."""
        self._call("capsedge_kernel_constant", self._handle, index, _tensors([array]))

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Fill ``outputs``, whose shapes must be right."""
        self._call(
            "capsedge_kernel_run",
            self._handle,
            _tensors(inputs),
            len(inputs),
            _tensors(outputs),
            len(outputs),
            self.threads,
        )

    def _call(self, function: str, *arguments: Any) -> None:
        text = ctypes.create_string_buffer(1024)
        if getattr(self._library, function)(*arguments, text, ctypes.c_size_t(len(text))) != 0:
            raise NativeError(text.value.decode())

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.capsedge_kernel_destroy(self._handle)


def unwritten(shape: tuple[int, ...], dtype: Any) -> Array:
    """What an output holds before it is written: NaN where the type has it."""
    return np.full(shape, np.nan if np.issubdtype(dtype, np.floating) else 99, dtype)


def output_shapes(
    operator: str, inputs: Sequence[Array], attributes: Mapping[str, Any]
) -> list[tuple[int, ...]]:
    """Shapes of the outputs, as the names of their dimensions in the table say."""
    spec = OPERATORS[operator]
    given = spec.complete(attributes)
    sizes: dict[str, int] = {}
    for value, x in zip(spec.inputs, inputs, strict=False):
        for name, size in zip(value.shape, x.shape, strict=False):
            if name not in (*value.ones, "..."):
                sizes.setdefault(name, size)
    for name, (size, window, k) in WINDOWS_OF.items():
        if size in sizes and window in sizes:
            pads, dilations = given.get("pads", (0, 0, 0, 0)), given.get("dilations", (1, 1))
            room = sizes[size] + pads[k] + pads[2 + k] - dilations[k] * (sizes[window] - 1) - 1
            sizes[name] = 1 if given.get("shared") else room // given["strides"][k] + 1
    return [
        inputs[0].shape if "..." in value.shape else tuple(sizes[name] for name in value.shape)
        for value in spec.outputs
    ]


def compute(
    operator: str,
    inputs: Sequence[Array],
    attributes: Mapping[str, Any],
    *,
    level: str | None = None,
    threads: int = 2,
) -> list[Array]:
    """Outputs of one run."""
    made = Operator(operator, attributes, level=level, threads=threads)
    outputs = [
        unwritten(shape, inputs[0].dtype) for shape in output_shapes(operator, inputs, attributes)
    ]
    made.run(inputs, outputs)
    return outputs
