"""The axes of arrays of images: told from their shape where it leaves one reading, otherwise asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ShapeError, UsageError
from capsedge.runtime.metadata import Preprocessing
from capsedge.runtime.vision.images import channel_counts

LAYOUTS = ("HW", "HWC", "CHW")
_NAMES = (*LAYOUTS, "NHW", "NHWC", "NCHW")
_EXAMPLES = "[H, W], [H, W, C], [C, H, W], [N, H, W], [N, H, W, C] and [N, C, H, W]"


def check_layout(layout: str | None) -> None:
    """Raise a UsageError if it is not the name of a layout."""
    if layout is not None and layout not in _NAMES:
        raise UsageError(
            f"layout is '{layout}'.", f"Known: {', '.join(_NAMES)}.", "Use one of them."
        )


def pixel_batch(
    array: NDArray[np.generic], preprocessing: Preprocessing, layout: str | None, name: str
) -> NDArray[np.generic]:
    """A view of pixels of any layout as ``[N, H, W, C]``.

    Args:
        array: one image ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``, or several with ``N`` in front.
        preprocessing: of the model.
        layout: one of the names above, with or without the ``N``; None tells it from the shape.
        name: the name in errors.

    Raises:
        ShapeError: the shape fits no layout, several layouts, or not the one that is given.
    """
    readings = (
        _readings(array.shape, preprocessing) if layout is None else [layout.removeprefix("N")]
    )
    if len(readings) > 1:
        names = [r if len(r) == array.ndim else f"N{r}" for r in readings]
        raise ShapeError(
            f"{name} has the shape {list(array.shape)}.",
            f"It can be read as {' or '.join('[' + ', '.join(n) + ']' for n in names)}.",
            f"Say which: layout={' or layout='.join(map(repr, names))}.",
        )
    if not readings or array.ndim not in (len(readings[0]), len(readings[0]) + 1):
        raise _unreadable(array, preprocessing.channels, layout, name)
    return _channels_last(array, readings[0])


def _readings(shape: Sequence[int], preprocessing: Preprocessing) -> list[str]:
    """The layouts that a shape may have.

    Two dimensions are one grey image. Otherwise channels are 1, 3 or 4 in front (grey, RGB and with alpha) or
    1 to 4 at the end; a model with other counts has exactly those. Three dimensions are several grey images
    for a model of grey images, if they are square or of the model's size.
    """
    if len(shape) == 2:
        return ["HW"]
    if len(shape) not in (3, 4):
        return []
    first, height, width = shape[-3:]
    if {first, height, width} == {1}:  # one pixel
        return ["HWC"]
    counts = channel_counts(preprocessing.channels)
    found = ["HWC"] if width in counts else []
    if first in counts and first != 2:
        found.append("CHW")
    square = height == width or (height, width) == (preprocessing.height, preprocessing.width)
    several = len(shape) == 3 and preprocessing.channels == 1 and square and "HWC" not in found
    return [*found, "HW"] if several and first != 1 else found


def _channels_last(array: NDArray[np.generic], layout: str) -> NDArray[np.generic]:
    batch = array if array.ndim > len(layout) else array[None]
    if layout == "HW":
        return batch[..., None]
    return batch.transpose(0, 2, 3, 1) if layout == "CHW" else batch


def _unreadable(
    array: NDArray[np.generic], channels: int, layout: str | None, name: str
) -> ShapeError:
    shape = array.shape
    if layout is not None:
        return ShapeError(
            f"{name} has the shape {list(shape)}.",
            f"layout is '{layout}', of {len(layout.removeprefix('N'))} dimensions an image.",
            "Reshape the array, or name its own layout.",
        )
    if len(shape) == 1:
        return ShapeError(
            f"{name} has the shape {list(shape)}.",
            f"Images are {_EXAMPLES}.",
            "For the bytes of an image file pass array.tobytes()."
            if array.dtype == np.uint8
            else "Pass images alone, such as `(image for image, label in loader)`.",
        )
    counts = channel_counts(channels)
    return ShapeError(
        f"{name} has the shape {list(shape)}.",
        f"Images are {_EXAMPLES}, where C is {', '.join(map(str, counts))}.",
        "Several grey images: layout='NHW'." if len(shape) == 3 else "Reshape the array.",
    )
