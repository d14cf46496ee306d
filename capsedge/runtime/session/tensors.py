"""Convert arrays of any library to numpy, in batches, and check that they fit an input."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, ShapeError, UsageError
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.metadata.table_indices import check_indices, check_lengths
from capsedge.spec import limits

# Of images: layers may amplify them 2^20 times, and squares of 2^20 such values still add up within float32
# (2 * (32 + 20) + 20 < 128).
LARGEST = float(limits.INPUT_MAGNITUDE)


class SupportsArray(Protocol):
    """Anything that numpy can read: arrays of torch, TensorFlow, JAX, pandas and others."""

    def __array__(self) -> NDArray[Any]: ...


class SupportsDLPack(Protocol):
    """An array of the DLPack protocol."""

    def __dlpack__(self) -> object: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...


AnyArray: TypeAlias = NDArray[Any] | SupportsArray | SupportsDLPack

_PROTOCOLS = ("__array__", "__dlpack__", "__array_interface__", "__cuda_array_interface__")


def as_array(value: object, name: str = "the array") -> NDArray[Any] | None:
    """An array of any library as a numpy array; None for anything else.

    Nothing is copied if the library shares its memory. A tensor of torch is detached first, bfloat16
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
    except (
        Exception
    ) as error:  # every library raises its own errors for memory that it does not share
        raise UsageError(
            f"{name} is of type {type(value).__name__} and cannot be read as an array.",
            f"{error}".strip().split("\n")[0],
            "Copy it to the host as a dense array first, for example with numpy.asarray.",
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


def stack_images(
    images: NDArray[Any] | Iterable[NDArray[Any]], size: int
) -> Iterator[NDArray[Any]]:
    """Batches ``[n, C, H, W]`` of at most ``size`` images, of a batch or of single images ``[C, H, W]``.

    Raises:
        ShapeError: the images of one batch have different shapes.
    """
    if isinstance(images, np.ndarray):
        if not images.ndim:
            raise ShapeError("The images are a single number.", "Expected: [N, C, H, W].")
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
    """A shape as text: ``[N, 1, 28, 28]``."""
    return f"[{', '.join('N' if d is None else str(d) for d in shape)}]"


def shape_fits(actual: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    """Whether sizes agree with the declared ones, some of which may be free."""
    if len(actual) != len(declared):
        return False
    # A loop is faster than `all`, and this is in the path of every run.
    for size, wanted in zip(actual, declared, strict=True):
        if isinstance(wanted, int) and wanted != size:
            return False
    return True


def _small(array: NDArray[Any], bound: float) -> bool:
    """Whether the sum of squares shows that all values are below ``bound``; never if one is NaN or infinite.

    One pass without copies, after which ordinary arrays need no closer look. Between passes numpy waits for
    the interpreter, which in a busy server takes longer than the pass.
    """
    flat = array.reshape(-1)
    return bool(np.einsum("i,i->", flat, flat) < bound * bound)


def _shape_advice(array: NDArray[Any], wanted: Sequence[int | str | None]) -> str:
    if array.ndim == len(wanted) and shape_fits(array.shape[1:], wanted[1:]):
        return f"The batch is fixed: pass {wanted[0]} in each run, and fill up the last one."
    if array.dtype.kind == "f":
        return "Reshape the array, or prepare the image with `Session.prepare`."
    return "Pad shorter inputs, such as a history, as in training, and cut longer ones."


def checked_input(port: Port, array: object, bound: float, any_batch: bool = False) -> NDArray[Any]:
    """Check that an input fits its port and has values below ``bound``.

    With ``any_batch`` the first dimension and the floating-point type are free.
    """
    if not isinstance(array, np.ndarray):
        raise ShapeError(
            f"Input '{port.name}' has the type {type(array).__name__}.",
            f"Expected: a numpy array {list(port.shape)} of {port.dtype}.",
            "Convert it with `numpy.asarray`.",
        )
    if (port.numpy_dtype is None or array.dtype != port.numpy_dtype) and not (
        any_batch and array.dtype.kind == "f" and port.dtype.startswith("float")
    ):
        raise ShapeError(
            f"Input '{port.name}' has the type {array.dtype}.",
            f"Expected: {port.dtype}.",
            f"Convert it: `array.astype('{port.dtype}')`.",
        )
    wanted = (None, *port.shape[1:]) if any_batch else port.shape
    if not shape_fits(array.shape, wanted):
        raise ShapeError(
            f"Input '{port.name}' has the shape {list(array.shape)}.",
            f"Expected: {shape_text(wanted)}.",
            _shape_advice(array, wanted),
        )
    if 0 in array.shape[1:]:
        raise ShapeError(
            f"Input '{port.name}' has an empty axis.",
            f"Its shape is {list(array.shape)}; only the batch may be empty.",
            "Represent an empty history by one element of padding.",
        )
    if port.longest:
        check_lengths(port.name, array.shape, port.longest)
    if array.dtype.kind == "f" and not _small(array, bound):
        most = bound if array.dtype.itemsize > 2 else math.inf  # float16 never reaches the bound
        wrong = int((~(np.abs(array) < most)).sum())
        if wrong:
            raise UsageError(
                f"Input '{port.name}' has values that are NaN or infinite"
                + (", or of 2^32 and more." if bound == LARGEST else "."),
                f"{wrong} of {array.size} values; expected: finite numbers"
                + (" below 2^32." if bound == LARGEST else "."),
                "Remove these values before inference.",
            )
    if port.entries is not None and array.dtype.kind in "iu":
        check_indices(port.name, array, port.entries)
    return array


def check_sizes_agree(ports: Sequence[Port], feeds: Mapping[str, NDArray[Any]]) -> None:
    """Refuse inputs whose sizes differ where the file gives them one name, such as that of the batch.

    Raises:
        ShapeError: they do.
    """
    known: dict[str, tuple[Port, int]] = {}
    for port in ports:
        for axis, name in enumerate(port.shape):
            if not isinstance(name, str):
                continue
            size = feeds[port.name].shape[axis]
            other, wanted = known.setdefault(name, (port, size))
            if size != wanted:
                raise ShapeError(
                    f"Inputs '{other.name}' and '{port.name}' do not fit together.",
                    f"{name} is {wanted} in {list(feeds[other.name].shape)} and {size} in "
                    f"{list(feeds[port.name].shape)}.",
                    "Pass every input for the same samples.",
                )


def check_rows(path: Path, outputs: Mapping[str, NDArray[Any]], images: int) -> None:
    """Refuse outputs of a file that do not have one row per image.

    Raises:
        ArtefactError: one does not.
    """
    for name, value in outputs.items():
        if value.ndim < 1 or len(value) != images:
            raise ArtefactError(
                f"{path} computed a wrong number of rows of '{name}'.",
                f"Its shape is {list(value.shape)} for {images} images.",
                "Export the model again so that every output has one row per image.",
            )
