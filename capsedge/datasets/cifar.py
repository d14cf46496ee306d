"""Read the Python version of CIFAR-10, whose batches are pickles.

https://www.cs.toronto.edu/~kriz/cifar.html: a batch is a dictionary with ``data``, an array of bytes
``[N, 3072]``, and ``labels``. A sandboxed process unpickles it. Whatever the pickle names is looked up in one
table of stand-ins for what an array of bytes needs, so nothing is imported, and numpy gets only bytes.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import struct
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets.array_files import check_bytes
from capsedge.errors import UsageError
from capsedge.runtime.files.reading import file_size, open_regular_file
from capsedge.runtime.files.sandbox import (
    SandboxLimits,
    SandboxResult,
    enter_sandbox,
    forbid_new_files,
    run_in_sandbox,
)
from capsedge.spec import limits

_SHAPE = (3, 32, 32)
_PIXELS = math.prod(_SHAPE)
_WORDS = 500  # bytes of a refusal


class BadBatch(ValueError):
    """The file is damaged, exceeds the limits, or is no such batch; the message says why."""


def read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images ``[N, 32, 32, 3]`` and labels ``[N]`` of one batch."""
    with open_regular_file(path) as file:
        size = file_size(file)
        check_bytes(path, (size,))
        # Labels take up to eight times their bytes in the file, and texts twice.
        bounds = SandboxLimits(limits.CIFAR_SECONDS, limits.CIFAR_MEMORY + 8 * size, 16 + 8 * size)
        try:
            with run_in_sandbox(__name__, file, bounds, fork=True) as ended:
                return _rows_of(ended)
        except BadBatch as error:
            raise UsageError(
                f"{path} is not a Python batch of CIFAR-10.",
                f"{str(error)[:1].upper()}{str(error)[1:]}.",
                "Download the Python version of CIFAR-10 again.",
            ) from error


def _rows_of(ended: SandboxResult) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """What the process returned: the number of rows, the labels and the pixels, or -1 and a refusal."""
    if ended.exit_code is None:
        raise BadBatch(f"reading it takes over {limits.CIFAR_SECONDS} s")
    head = ended.output.read(8)
    if ended.exit_code or len(head) < 8:
        last = (ended.log.strip().splitlines() or ["it said nothing"])[-1]
        raise BadBatch(f"the process that read it ended ({ended.exit_code}): {last[:200]}")
    (rows,) = struct.unpack("<q", head)
    if rows < 0:
        raise BadBatch(ended.output.read(_WORDS).decode(errors="replace"))
    labels = np.frombuffer(ended.output.read(8 * rows), "<i8").astype(np.int64)
    pixels = np.frombuffer(ended.output.read(rows * _PIXELS), np.uint8)
    if not (labels.min(initial=0) >= 0 and labels.max(initial=0) < limits.WIDTH):
        raise BadBatch("it has labels that are not classes")
    return pixels.reshape(rows, *_SHAPE).transpose(0, 2, 3, 1), labels


# --- In the sandboxed process ---


def main() -> None:
    """Read the batch of CIFAR-10 on standard input, within the limits in the arguments."""
    enter_sandbox()
    forbid_new_files()
    try:
        data, labels = _batch(_Unpickler(io.BufferedReader(io.FileIO(0)), encoding="bytes").load())
        parts = [struct.pack("<q", len(labels)), labels.tobytes(), data.tobytes()]
    except MemoryError:
        parts = [struct.pack("<q", -1), b"it needs too much memory"]
    except BadBatch as error:
        parts = [struct.pack("<q", -1), str(error).encode()[:_WORDS]]
    except Exception as error:  # a damaged pickle ends in any of a dozen kinds
        reason = f"it is damaged: {type(error).__name__}: {error}"
        parts = [struct.pack("<q", -1), reason.encode(errors="replace")[:_WORDS]]
    with os.fdopen(1, "wb", closefd=False) as answer:
        for part in parts:
            answer.write(part)


def _batch(values: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The rows ``[N, 3072]`` and labels ``[N]`` of a dictionary. Raises BadBatch if it is no batch."""
    if type(values) is not dict:
        raise BadBatch("it is not a dictionary")
    data = values.get(b"data", values.get("data"))
    labels = values.get(b"labels", values.get("labels"))
    if not isinstance(data, _Array) or data.content is None:
        raise BadBatch("its 'data' is not an array of bytes")
    if type(labels) is not list or not set(map(type, labels)) <= {int}:
        raise BadBatch("its 'labels' are not a list of whole numbers")
    if data.shape != (len(labels), _PIXELS):
        raise BadBatch(f"its data is {list(data.shape)[:8]} for {len(labels)} labels")
    rows = np.frombuffer(data.content, np.uint8).reshape(data.shape, order=data.order)
    return rows, np.array(labels, "<i8")


class _Type:
    """Stands for ``numpy.dtype``: that of bytes, the only one."""

    def __init__(self, name: Any, *_flags: Any) -> None:
        if name not in ("u1", b"u1", "|u1", b"|u1", "uint8"):
            raise BadBatch("it has an array whose type is not bytes")

    def __setstate__(self, state: Any) -> None:
        # Version, byte order, no sub-array, no names, no fields, no size, no alignment, no flags.
        plain = (None, None, None, -1, -1, 0)
        if type(state) is not tuple or state[1:8] not in (("|", *plain), (b"|", *plain)):
            raise BadBatch("it has an array whose type is not bytes")


class _Array:
    """Stands for ``numpy.ndarray``: an array of bytes, whose content comes with its state."""

    shape: tuple[int, ...] = ()
    content: bytes | bytearray | None = None
    order: Literal["C", "F"] = "C"

    def __setstate__(self, state: Any) -> None:
        if type(state) is not tuple or len(state) != 5 or not isinstance(state[2], _Type):
            raise BadBatch("it has an array whose type is not bytes")
        _, shape, _, fortran, content = state
        self.fill(shape, fortran, content)

    def fill(self, shape: Any, fortran: Any, content: Any) -> None:
        """Set its content, if that fits."""
        if type(shape) is not tuple or not set(map(type, shape)) <= {int}:
            raise BadBatch("it has an array without a shape")
        if len(shape) != 2 or min(shape) < 0 or type(content) not in (bytes, bytearray):
            raise BadBatch("it has an array whose bytes do not fit its shape")
        if len(content) != math.prod(shape):
            raise BadBatch("it has an array whose bytes do not fit its shape")
        if fortran not in (False, True, "C", "F"):
            raise BadBatch("it has an array in an unknown memory order")
        self.order = "F" if fortran in (True, "F") else "C"
        self.shape, self.content = shape, content


def _reconstruct(*_arguments: Any) -> _Array:
    """An array whose class, shape and type the state replaces."""
    return _Array()


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any) -> _Array:
    """An array as protocol 5 writes it."""
    if not isinstance(kind, _Type):
        raise BadBatch("it has an array whose type is not bytes")
    array = _Array()
    array.fill(shape, order, content)
    return array


def _encode(text: Any, encoding: Any) -> bytes:
    """Bytes as protocol 2 writes them."""
    if type(text) is not str or encoding not in ("latin1", b"latin1"):
        raise BadBatch("it has bytes in an unknown encoding")
    return text.encode("latin-1")


# All that a pickle may name; numpy 2 writes ``numpy._core``.
_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        kind = _NAMES.get((module.replace("numpy._core", "numpy.core"), name))
        if kind is None:
            raise BadBatch(f"it names {module[:80]}.{name[:80]}, which would run code")
        return kind


if __name__ == "__main__":
    main()
