"""Convert between tensors of the Open Inference Protocol (version 2) and numpy arrays."""

from __future__ import annotations

import base64
import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.images.headers import encoding_of
from capsedge.spec import limits

BYTES = "BYTES"
DATATYPES = {
    "bool": "BOOL",
    **{f"{s}int{b}": f"{s.upper()}INT{b}" for s in ("", "u") for b in (8, 16, 32, 64)},
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
TYPES = {datatype: np.dtype(name) for name, datatype in DATATYPES.items()}
_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}  # kinds of values that a type takes
_PIECE = 2**16  # values, and bytes of base64 (a multiple of 4), at a time


def datatype_of(port: Port, path: object) -> str:
    """The protocol's name for the data type of an input or output."""
    if port.dtype not in DATATYPES:
        raise UnsupportedModelError(
            f"{path} cannot be served.",
            f"'{port.name}' is of type {port.dtype}, which the Open Inference Protocol does not support.",
            "Serve a model with tensors of numbers.",
        )
    return DATATYPES[port.dtype]


def checked_value_count(name: str, shape: Sequence[int]) -> int:
    """The number of values of a tensor with a given shape."""
    sizes = list(shape)
    if len(sizes) > limits.DIMENSIONS:
        raise UsageError(
            f"Input '{name}' has {len(sizes):,} axes.", f"The limit is {limits.DIMENSIONS}."
        )
    if any(type(s) is not int or s < 0 for s in sizes):
        raise UsageError(
            f"Input '{name}' has the shape {sizes[:8]}.", "Sizes are whole numbers from 0."
        )
    # Check sizes next to a 0 too: numpy multiplies all the others in 64 bits.
    if max(sizes, default=0) > limits.REQUEST_VALUES or (
        math.prod(size or 1 for size in sizes) > limits.REQUEST_VALUES
    ):
        raise UsageError(
            f"Input '{name}' is too large.",
            f"Its shape is {sizes[:8]}, the limit of a request is {limits.REQUEST_VALUES:,} values.",
            "Send fewer images at a time.",
        )
    return math.prod(sizes)


def array_of(name: str, datatype: str, shape: Sequence[int], data: object) -> NDArray[Any]:
    """An array of numbers from a tensor of a request.

    Args:
        datatype: the protocol's name of its type.
        shape: its sizes.
        data: its values in row-major order, flat or nested.
    """
    count = checked_value_count(name, shape)
    dtype = TYPES.get(datatype)
    if dtype is None:
        known = ", ".join(TYPES)
        raise UsageError(
            f"Input '{name}' has the datatype {datatype!r}.", "", f"Choose one of: {known}."
        )
    try:
        with np.errstate(over="ignore"):  # overflow gives infinity, which the session refuses
            # In one step where possible: numpy releases the interpreter for a cast, and then has to wait for
            # it.
            array = np.array(data, dtype) if _floats(data, dtype) else as_array(data)
    except (ValueError, OverflowError) as error:
        raise _no_numbers(name, datatype) from error
    if array.size != count:
        raise UsageError(
            f"Input '{name}' has {array.size:,} values.",
            f"Its shape {list(shape)} has {count:,}.",
        )
    if count and array.dtype.kind not in _KINDS[dtype.kind]:
        raise _no_numbers(name, datatype)
    if count and dtype.kind in "iu":
        info = np.iinfo(dtype)
        if array.min() < info.min or array.max() > info.max:
            raise UsageError(f"Input '{name}' has values outside the range of {datatype}.")
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False).reshape(list(shape))


def as_array(data: object) -> NDArray[Any]:
    """Values as numpy reads them, except 64-bit integers next to smaller ones, which numpy would round."""
    if isinstance(data, list) and bool in (kinds := _kinds(data)) and len(kinds) > 1:
        raise ValueError("truth values next to numbers")
    array = np.asarray(data)
    if array.dtype.kind == "f" and isinstance(data, list) and set(map(type, data)) == {int}:
        with contextlib.suppress(OverflowError):  # some are negative
            return np.array(data, np.uint64)
    return array


def _kinds(data: list[Any]) -> set[type]:
    """The types of the values of lists in lists."""
    types: set[type] = set()
    waiting = [data]
    while waiting:
        some = waiting.pop()
        kinds = set(map(type, some))
        if list in kinds:
            waiting += [each for each in some if type(each) is list]
            kinds.discard(list)
        types |= kinds
    return types


def _floats(data: object, dtype: np.dtype[Any]) -> bool:
    """Whether data are a flat list of floats, perhaps with some integers, for a floating-point type."""
    return (
        dtype.kind == "f"
        and isinstance(data, list)
        and {float} <= set(map(type, data)) <= {float, int}
    )


def _no_numbers(name: str, datatype: str) -> UsageError:
    return UsageError(f"The data of input '{name}' are not values of type {datatype}.")


def encoded_images(name: str, shape: Sequence[int], data: object) -> list[bytes]:
    """The files in a tensor of type BYTES, either raw or in base64, which JSON requires."""
    count = checked_value_count(name, shape)
    elements = list(data) if isinstance(data, (list, tuple)) else [data]
    if len(elements) != count or not count:
        raise UsageError(
            f"Input '{name}' has {len(elements)} elements.",
            f"Its shape {list(shape)} has {count}.",
            "Send [N] files, one for each image.",
        )
    return [_file(f"image {k} of input '{name}'", element) for k, element in enumerate(elements)]


def _file(name: str, element: object) -> bytes:
    if isinstance(element, bytes) and encoding_of(element) is not None:  # none of those is base64
        return element
    if not isinstance(element, (str, bytes)):
        raise UsageError(f"{name} is not a string.", "", "Send the file in base64.")
    text = element.encode() if isinstance(element, str) else element
    try:
        parts = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        if any(b"=" in part for part in parts[:-1]):
            raise ValueError("it ends in the middle")
        return b"".join(base64.b64decode(part, validate=True) for part in parts)
    except ValueError as error:  # also binascii.Error
        raise UsageError(
            f"{name} is neither an image file nor base64.", "", "Send the file in base64."
        ) from error
