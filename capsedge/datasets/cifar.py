"""Read the Python version of CIFAR-10, whose batches are pickles.

https://www.cs.toronto.edu/~kriz/cifar.html: a batch is a dictionary with ``data``, an array of bytes
``[N, 3072]``, and ``labels``. Its pickle is interpreted by `capsedge.runtime.files.pickles`, and the only
thing made besides plain values is such an array.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets.array_files import check_bytes
from capsedge.errors import UsageError
from capsedge.runtime.files import pickles
from capsedge.runtime.files.pickles import BadPickle, Name
from capsedge.runtime.files.reading import file_size, open_regular_file
from capsedge.spec import limits

_SHAPE = (3, 32, 32)
_CORE = ("numpy.core", "numpy._core")  # before and from numpy 2 on
_BYTES_TYPES = ("u1", b"u1", "|u1", b"|u1", "uint8")


def read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images ``[N, 32, 32, 3]`` and labels ``[N]`` of one batch.

    Raises:
        UsageError: the file is missing, damaged, too large or no such batch.
    """
    with open_regular_file(path) as file:
        check_bytes(path, (file_size(file),))
        content = file.read(limits.ARRAY_BYTES)
    try:
        return _batch(pickles.loads(content, _FORMAT))
    except BadPickle as error:
        raise UsageError(
            f"{path} is not a Python batch of CIFAR-10.",
            f"{str(error)[:1].upper()}{str(error)[1:]}.",
            "Download the Python version of CIFAR-10 again.",
        ) from error


def _batch(values: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if type(values) is not dict:
        raise BadPickle("it is not a dictionary")
    data = values.get(b"data", values.get("data"))
    labels = values.get(b"labels", values.get("labels"))
    if not isinstance(data, _Array) or data.content is None:
        raise BadPickle("its 'data' is not an array of bytes")
    if type(labels) is not list or not set(map(type, labels)) <= {int}:
        raise BadPickle("its 'labels' are not a list of whole numbers")
    if not all(0 <= label < limits.WIDTH for label in labels):
        raise BadPickle("it has labels that are not classes")
    if data.shape != (len(labels), math.prod(_SHAPE)):
        raise BadPickle(f"its data is {list(data.shape)} for {len(labels)} labels")
    rows = np.frombuffer(data.content, np.uint8).reshape(data.shape, order=data.order)
    return rows.reshape(-1, *_SHAPE).transpose(0, 2, 3, 1), np.array(labels, np.int64)


class _Type:
    """numpy's type of unsigned bytes, the only one."""


class _Array:
    """An array of bytes in the making: its content comes with its state."""

    shape: tuple[int, ...] = ()
    content: bytes | None = None
    order: Literal["C", "F"] = "C"

    def fill(self, shape: Any, fortran: Any, content: Any) -> None:
        """Set its content, if that fits."""
        if type(shape) is not tuple or not set(map(type, shape)) <= {int}:
            raise BadPickle("it has an array without a shape")
        if (
            type(content) is not bytes
            or len(content) != math.prod(shape)
            or min(shape, default=0) < 0
        ):
            raise BadPickle("it has an array whose bytes do not fit its shape")
        if fortran not in (False, True, "C", "F"):
            raise BadPickle("it has an array in an unknown memory order")
        self.order = "F" if fortran in (True, "F") else "C"
        self.shape, self.content = shape, content


def _call(name: Name, arguments: tuple[Any, ...]) -> Any:
    if (name.module, name.name) == ("_codecs", "encode"):  # how protocol 2 writes bytes
        return _encoded(arguments)
    if (name.module, name.name) == ("numpy", "dtype"):
        # (name, align, copy): flags that change nothing of bytes.
        if arguments[:1] and arguments[0] in _BYTES_TYPES and len(arguments) <= 3:
            return _Type()
        raise BadPickle("it has an array whose type is not bytes")
    package, _, module = name.module.rpartition(".")
    if package in _CORE and (module, name.name) == ("multiarray", "_reconstruct"):
        # The class, and a shape and type that the state replaces.
        if arguments[:1] == (Name("numpy", "ndarray"),):
            return _Array()
    elif package in _CORE and (module, name.name) == ("numeric", "_frombuffer"):
        content, kind, shape, order = arguments if len(arguments) == 4 else (None,) * 4
        if isinstance(kind, _Type):
            array = _Array()
            array.fill(shape, order, content)
            return array
    raise BadPickle(f"it names {name}, which would run code")


def _encoded(arguments: tuple[Any, ...]) -> bytes:
    if len(arguments) == 2 and type(arguments[0]) is str and arguments[1] == "latin1":
        try:
            return arguments[0].encode("latin-1")
        except UnicodeEncodeError:
            pass
    raise BadPickle("it has bytes in an unknown encoding")


def _set_state(value: Any, state: Any) -> None:
    if isinstance(value, _Type):
        # Version, byte order, no sub-array, no names, no fields, no size, no alignment, no flags.
        if (
            type(state) is tuple
            and state[1:8] in (_PLAIN, (b"|", *_PLAIN[1:]))
            and len(state) in (8, 9)
        ):
            return
        raise BadPickle("it has an array whose type is not bytes")
    if isinstance(value, _Array) and type(state) is tuple and len(state) == 5:
        if isinstance(state[2], _Type):
            value.fill(state[1], state[3], state[4])
            return
        raise BadPickle("it has an array whose type is not bytes")
    raise BadPickle("it sets the state of an object that has none")


_PLAIN = ("|", None, None, None, -1, -1, 0)
_FORMAT = pickles.Format(_call, _set_state)
