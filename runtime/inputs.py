"""The inputs of a model: whether arrays fit them, and batches of images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ShapeError, UsageError
from capsedge.runtime.backends.onnxruntime_backend import Port

# Of images: layers may amplify them 2^20 times, and squares of 2^20 such values still add up within float32
# (2 * (32 + 20) + 20 < 128). The same in libcapsedge (session.cpp, decoder.cpp) and in decoder.ts.
LARGEST = 2.0**32


def stacked(images: NDArray[Any] | Iterable[NDArray[Any]], size: int) -> Iterator[NDArray[Any]]:
    """Batches ``[n, C, H, W]`` of at most ``size`` images, of a batch or of single images ``[C, H, W]``.

    Raises:
        ShapeError: the images of one batch have different shapes.
    """
    if isinstance(images, np.ndarray):
        if not images.ndim:
            raise ShapeError("The images are a single number.", "Wanted: [N, C, H, W].")
        yield from (images[i : i + size] for i in range(0, len(images), size))
        return
    rest = iter(images)
    while batch := list(islice(rest, size)):
        shapes = {np.shape(image) for image in batch}
        if len(shapes) > 1:
            raise ShapeError(
                "Images of one batch have different shapes.",
                f"Found: {', '.join(map(str, map(list, sorted(shapes))))}.",
                "Prepare them with `Session.prepare`.",
            )
        yield np.stack(batch)


def fixed_bytes(port: Port) -> int:
    """Bytes of a value, with free dimensions counted as one."""
    width = 1 if port.numpy_dtype is None else port.numpy_dtype.itemsize
    return width * math.prod(d for d in port.shape if isinstance(d, int) and d > 0)


def shape_text(shape: Sequence[int | str | None]) -> str:
    """A shape for people: ``[N, 1, 28, 28]``."""
    return f"[{', '.join('N' if d is None else str(d) for d in shape)}]"


def fits(found: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    """Whether sizes agree with the declared ones, some of which may be free."""
    if len(found) != len(declared):
        return False
    # A loop is faster than `all`, and this is in the path of every run.
    for size, wanted in zip(found, declared, strict=True):
        if isinstance(wanted, int) and wanted != size:
            return False
    return True


def _small(array: NDArray[Any], bound: float) -> bool:
    """Whether the sum of squares tells that all values are below ``bound``; never if one is NaN or infinite.

    One pass without copies, after which ordinary arrays need no closer look. Between passes numpy waits for
    the interpreter, which in a busy server takes longer than the pass.
    """
    flat = array.reshape(-1)
    return bool(np.einsum("i,i->", flat, flat) < bound * bound)


def checked(port: Port, array: object, bound: float, any_batch: bool = False) -> NDArray[Any]:
    """Check that an input fits its port and has values below ``bound``.

    With ``any_batch`` the first dimension and the floating-point type are free.
    """
    if not isinstance(array, np.ndarray):
        raise ShapeError(
            f"Input '{port.name}' has the type {type(array).__name__}.",
            f"Wanted: a numpy array {list(port.shape)} of {port.dtype}.",
            "Convert it with `numpy.asarray`.",
        )
    if (port.numpy_dtype is None or array.dtype != port.numpy_dtype) and not (
        any_batch and array.dtype.kind == "f" and port.dtype.startswith("float")
    ):
        raise ShapeError(
            f"Input '{port.name}' has the type {array.dtype}.",
            f"Wanted: {port.dtype}.",
            f"Convert it: `array.astype('{port.dtype}')`.",
        )
    wanted = (None, *port.shape[1:]) if any_batch else port.shape
    if not fits(array.shape, wanted):
        raise ShapeError(
            f"Input '{port.name}' has the shape {list(array.shape)}.",
            f"Wanted: {shape_text(wanted)}.",
            "Reshape the array, or prepare the image with `Session.prepare`.",
        )
    if array.dtype.kind == "f" and not _small(array, bound):
        most = bound if array.dtype.itemsize > 2 else math.inf  # float16 never reaches the bound
        wrong = int((~(np.abs(array) < most)).sum())
        if wrong:
            raise UsageError(
                f"Input '{port.name}' has values that are NaN or infinite"
                + (", or of 2^32 and more." if bound == LARGEST else "."),
                f"{wrong} of {array.size} values; wanted: finite numbers"
                + (" below 2^32." if bound == LARGEST else "."),
                "Clean the array before inference.",
            )
    return array
