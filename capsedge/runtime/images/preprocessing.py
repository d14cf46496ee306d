"""Turn pixels into a model's input tensor, bit for bit as libcapsedge does.

The steps and their arithmetic are specified in docs/reference/runtime.md ("Images"), so that C++
computes the same bits. Pillow only decodes.

The resizing filter is a separable triangle. Where the image shrinks, the triangle widens by the same
factor, so that every source pixel counts (antialiasing); where it grows, this is linear
interpolation. Positions and weights are integers up to a single division.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ShapeError, UsageError
from capsedge.runtime.images.decoding import check_size, read_pixels
from capsedge.runtime.metadata.metadata import Preprocessing

# --- Resizing, as in docs/reference/runtime.md ("Resizing") ---

_ROWS = 32  # converted to float32 at once


def taps(source: int, target: int, index: int) -> tuple[int, NDArray[np.float32]]:
    """First source pixel and the weights of the following ones, for target pixel ``index``.

    With n source and m target pixels the centres are ``k + 1/2`` and ``(i + 1/2) n/m``. The
    triangle's half width is ``max(n, m)/m`` source pixels. Everything times ``2m`` is a whole number:

        w_ik = 2 max(n, m) - |(2k + 1) m - (2i + 1) n|        where positive

    and the weight is ``w_ik / sum_k w_ik``, one division of doubles, rounded to float32.
    """
    centre, half = (2 * index + 1) * source, 2 * max(source, target)
    # (2k + 1) m > centre - half  and  (2k + 1) m < centre + half
    first = max(0, ((centre - half) // target + 1) // 2)
    last = min(source - 1, ((centre + half) // target + 1) // 2)
    k = np.arange(first, last + 1, dtype=np.int64)
    w = half - np.abs((2 * k + 1) * target - centre)
    keep = np.flatnonzero(w > 0)
    w = w[keep[0] : keep[-1] + 1]
    return first + int(keep[0]), (w / w.sum()).astype(np.float32)


@lru_cache(maxsize=16)  # the frames of a video have one size; weights take at most 256 KiB
def _filter(source: int, target: int) -> tuple[tuple[int, NDArray[np.float32]], ...]:
    """`taps` of every target pixel."""
    return tuple(taps(source, target, index) for index in range(target))


def resize_rows(
    source: int,
    target: int,
    rows: Callable[[int, int], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """Filter along the first axis.

    Args:
        source, target: number of rows before and after.
        rows: returns the source rows ``[first:last]`` as float32, so that a large photograph is
            never entirely in float32.

    Returns:
        ``[target, ...]``: for each target row ``sum_k weight_k * row_k`` in ascending k, every product and
        every sum rounded to float32.
    """
    result = []
    for first, weights in _filter(source, target):
        total: NDArray[np.float32] | None = None
        for start in range(0, len(weights), _ROWS):
            some = weights[start : start + _ROWS]
            block = rows(first + start, first + start + len(some))
            for weight, row in zip(some, block, strict=True):
                if total is None:
                    total = weight * row
                    product = np.empty_like(total)
                else:
                    np.multiply(weight, row, out=product)
                    np.add(total, product, out=total)
        assert total is not None  # every target row has a source row
        result.append(total)
    return np.stack(result)


def resize(
    height: int,
    width: int,
    target_height: int,
    target_width: int,
    rows: Callable[[int, int], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """Resize an image ``[h, w, C]``, passed by rows, to ``[target_h, target_w, C]``: rows first."""
    if (height, width) == (target_height, target_width):
        return rows(0, height)
    tall = resize_rows(height, target_height, rows)
    columns = np.ascontiguousarray(tall.transpose(1, 0, 2))
    wide = resize_rows(width, target_width, lambda first, last: columns[first:last])
    return np.ascontiguousarray(wide.transpose(1, 0, 2))


# --- From an image to the input tensor ---

# Luma of ITU-R BT.601 in 1/65536: the weights sum to one exactly, so a grey RGB pixel keeps its value.
_LUMA = (19595.0, 38470.0, 7471.0)
_LUMA_UNIT = 65536.0
KINDS = "image files (a path, bytes or an open file), Pillow images and arrays"


def prepare(
    image: object,
    preprocessing: Preprocessing,
    invert: bool = False,
    name: str = "the image",
) -> NDArray[np.float32]:
    """Turn one image into the input of a model: ``[C, H, W]`` float32, or ``[H, W, C]`` if the preprocessing
    has that layout. Arguments as for `sized`."""
    return sized(image, preprocessing, invert, name)[0]


def sized(
    image: object,
    preprocessing: Preprocessing,
    invert: bool = False,
    name: str = "the image",
) -> tuple[NDArray[np.float32], tuple[int, int]]:
    """Turn one image into the input of a model, and return the image's own size with it.

    Args:
        image: an image file, by its path, as bytes or open; a Pillow image; or an array of pixels
            ``[H, W]`` or ``[H, W, C]``: uint8, uint16, bool, or floats in 0..1. C is 1, 2 (grey and alpha),
            3, 4 (RGB and alpha), or the number of channels that the model takes.
        invert: for dark ink on a light background.

    Returns:
        The input, as `prepare`; height and width of the image.
    """
    wanted = preprocessing.channels
    if isinstance(image, np.ndarray):
        pixels = _pixels_of_array(image, wanted, name)
    else:
        pixels = _read(image, name)
        if wanted not in (1, 3):
            raise UsageError(
                f"This model takes {wanted} channels, which no image file has.",
                "",
                f"Pass an array [height, width, {wanted}] from Python.",
            )
    return _prepared(pixels, preprocessing, invert), (pixels.shape[0], pixels.shape[1])


def _read(image: object, name: str) -> NDArray[Any]:
    pixels = read_pixels(image, name)
    if pixels is None:
        raise UsageError(
            f"{name} {describe_non_image(image)}.", f"Images are {KINDS}.", "Convert it first."
        )
    return pixels


def colour_pixels(image: object, name: str = "the image") -> NDArray[np.uint8]:
    """An image as RGB ``[H, W, 3]`` of its own size, on black; for pictures, not as the input of a model."""
    pixels = (
        _pixels_of_array(image, 3, name) if isinstance(image, np.ndarray) else _read(image, name)
    )
    return np.rint(_to_channels(pixels, 3, invert=False)).astype(np.uint8)


def prepare_all(images: NDArray[Any], preprocessing: Preprocessing) -> list[NDArray[np.float32]]:
    """`prepare` of each of several images ``[N, H, W]`` or ``[N, H, W, C]``; bytes are checked together."""
    if images.dtype != np.uint8 or not len(images):
        return [prepare(image, preprocessing) for image in images]
    first = _pixels_of_array(images[0], preprocessing.channels, "the image")
    return [_prepared(pixels.reshape(first.shape), preprocessing) for pixels in images]


def _prepared(
    pixels: NDArray[Any], preprocessing: Preprocessing, invert: bool = False
) -> NDArray[np.float32]:
    """Pixels ``[H, W, C]`` of uint8, uint16 or float32 (0..255) as the input of a model."""
    wanted = preprocessing.channels
    placed = placement_of(preprocessing, pixels.shape[0], pixels.shape[1])
    top, left, height, width = placed.part

    def rows(first: int, last: int) -> NDArray[np.float32]:
        block = pixels[top + first : top + last, left : left + width]
        return _to_channels(block, wanted, invert)

    result = resize(height, width, *placed.inner, rows)
    if preprocessing.resize in ("pad", "center"):
        result = _pad(result, preprocessing.height, preprocessing.width)
    planes = result.transpose(2, 0, 1)
    planes = planes[::-1] if preprocessing.order == "BGR" else planes
    values = normalized(np.ascontiguousarray(planes), preprocessing)
    if preprocessing.layout == "NHWC":
        return np.ascontiguousarray(values.transpose(1, 2, 0))
    return values


class Placement(NamedTuple):
    """Which part of an image becomes which part of the input; what is left of the input is padding.

    Attributes:
        part: top, left, height and width in the image.
        inner: its height and width in the input, where it is centred.
    """

    part: tuple[int, int, int, int]
    inner: tuple[int, int]

    def corner(self, height: int, width: int) -> tuple[int, int]:
        """Top and left of the part in the input; an odd extra row or column is below or right of it."""
        return (height - self.inner[0]) // 2, (width - self.inner[1]) // 2


def placement_of(preprocessing: Preprocessing, height: int, width: int) -> Placement:
    """The placement of an image with this size."""
    target = preprocessing.height, preprocessing.width
    if preprocessing.resize == "crop":
        return Placement(_centre(height, width, *target), target)
    if preprocessing.resize == "pad":
        return Placement((0, 0, height, width), _fit(height, width, *target))
    if preprocessing.resize == "center":
        inner = min(height, target[0]), min(width, target[1])
        return Placement(((height - inner[0]) // 2, (width - inner[1]) // 2, *inner), inner)
    return Placement((0, 0, height, width), target)


def channel_counts(wanted: int) -> tuple[int, ...]:
    """The channels that pixels may have for a model that takes ``wanted``."""
    return (1, 2, 3, 4) if wanted in (1, 3) else (wanted,)


def describe_non_image(value: object) -> str:
    """A description of a value that is not an image, as the end of a sentence."""
    return "is None" if value is None else f"has the type {type(value).__name__}"


def normalized(image: NDArray[np.float32], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Levels 0..255 ``[C, H, W]`` of an image in the model's size as the model's input."""
    if preprocessing.per_image == "min-max":
        low, high = image.min(), image.max()
        span = high - low if high > low else np.float32(1)
        image = (image - low) / span * np.float32(255)
    mean, std = (
        np.asarray(v, np.float32).reshape(-1, 1, 1) for v in (preprocessing.mean, preprocessing.std)
    )
    image = (image * np.float32(preprocessing.scale) - mean) / std
    if preprocessing.per_image == "standardize":
        values = image.astype(np.float64)
        centred = values - _sum(values) / values.size
        deviation = math.sqrt(_sum(centred * centred) / values.size)
        image = (centred / max(deviation, 1 / math.sqrt(values.size))).astype(np.float32)
    return image


def _sum(values: NDArray[np.float64]) -> float:
    """Sum from the first value to the last, as C++ does; numpy's ``sum`` adds in another order."""
    return float(np.add.accumulate(values.ravel())[-1])


def _pixels_of_array(array: NDArray[Any], wanted: int, name: str) -> NDArray[Any]:
    """Check an array of pixels; returns ``[H, W, C]`` of uint8, uint16 or float32 (0..255)."""
    if array.ndim not in (2, 3):
        raise UsageError(
            f"{name} has the shape {list(array.shape)}.",
            "Expected: [height, width] or [height, width, channels].",
            "Reshape the array.",
        )
    pixels = array[:, :, None] if array.ndim == 2 else array
    height, width, channels = pixels.shape
    allowed = channel_counts(wanted)
    if channels not in allowed:
        raise UsageError(
            f"{name} has {channels} channels (shape {list(array.shape)}).",
            f"Expected: [height, width, channels] with {_either(allowed)} channels.",
            "Put the channels last, and remove those that the model does not use.",
        )
    check_size(name, height, width)
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype in (np.uint8, np.uint16):
        return pixels
    if pixels.dtype.kind != "f":
        raise UsageError(
            f"{name} has the type {pixels.dtype}.",
            "Pixels are uint8, uint16, bool, or floats from 0 to 1.",
            "Convert it: `array.astype(np.uint8)` if its values are 0 to 255.",
        )
    if not np.isfinite(pixels).all():
        raise UsageError(
            f"{name} has values that are NaN or infinite.",
            f"{int((~np.isfinite(pixels)).sum())} of {pixels.size} values.",
            "Remove these values before inference.",
        )
    _check_range(pixels, name)
    return pixels.astype(np.float32) * np.float32(255)


def _check_range(pixels: NDArray[Any], name: str) -> None:
    low, high = pixels.min(), pixels.max()
    if low >= 0 and high <= 1:
        return
    full = next((whole for whole in (255, 65535) if high <= whole), None)
    if low < 0:
        fix = "Pass uint8; or, if they are prepared as the model takes them, prepared=True."
    elif full is None:
        fix = "Divide by the largest possible value."
    else:
        fix = f"Pass uint{8 if full == 255 else 16}, or divide by {full}."
    raise UsageError(
        f"{name} has values from {low:g} to {high:g}.",
        "Floating-point pixels go from 0 to 1.",
        fix,
    )


def _either(numbers: tuple[int, ...]) -> str:
    texts = [str(n) for n in numbers]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + f" or {texts[-1]}"


def _to_channels(pixels: NDArray[Any], wanted: int, invert: bool) -> NDArray[np.float32]:
    """Pixels ``[h, w, C]`` as float32 0..255 in the model's channels: inverted, composited on black."""
    values = pixels.astype(np.float32)
    if pixels.dtype == np.uint16:
        values = values / np.float32(257)
    channels = values.shape[-1]
    alpha = None
    if channels != wanted and channels in (2, 4):
        values, alpha = values[..., :-1], values[..., -1:] / np.float32(255)
    if invert:
        values = np.float32(255) - values
    if alpha is not None:
        values = values * alpha
    if values.shape[-1] == wanted:
        return values
    if wanted == 3:
        return np.repeat(values, 3, axis=-1)
    red, green, blue = (np.float32(_LUMA[c]) * values[..., c : c + 1] for c in range(3))
    grey: NDArray[np.float32] = ((red + green) + blue) / np.float32(_LUMA_UNIT)
    return grey


def _fit(height: int, width: int, target_height: int, target_width: int) -> tuple[int, int]:
    """Largest size with the image's aspect ratio within the target; halves round up."""
    if height * target_width >= width * target_height:
        return target_height, max(1, (2 * width * target_height + height) // (2 * height))
    return max(1, (2 * height * target_width + width) // (2 * width)), target_width


def _centre(
    height: int, width: int, target_height: int, target_width: int
) -> tuple[int, int, int, int]:
    """Top, left, height and width of the largest centred part with the target's aspect ratio."""
    part_height, part_width = _fit(target_height, target_width, height, width)
    return (height - part_height) // 2, (width - part_width) // 2, part_height, part_width


def _pad(image: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """Centre on black; an odd extra row or column goes to the bottom or the right."""
    result = np.zeros((height, width, image.shape[2]), np.float32)
    top, left = (height - image.shape[0]) // 2, (width - image.shape[1]) // 2
    result[top : top + image.shape[0], left : left + image.shape[1]] = image
    return result


# --- The axes of an array, inferred from its shape if that is unambiguous ---

LAYOUTS = ("HW", "HWC", "CHW")
_NAMES = (*LAYOUTS, "NHW", "NHWC", "NCHW")
_EXAMPLES = "[H, W], [H, W, C], [C, H, W], [N, H, W], [N, H, W, C] and [N, C, H, W]"


def check_layout(layout: str | None) -> None:
    """Raise a UsageError if it is not the name of a layout."""
    if layout is not None and layout not in _NAMES:
        raise UsageError(f"layout is '{layout}'.", "", f"Choose one of: {', '.join(_NAMES)}.")


def pixel_batch(
    array: NDArray[np.generic], preprocessing: Preprocessing, layout: str | None, name: str
) -> NDArray[np.generic]:
    """A view of pixels of any layout as ``[N, H, W, C]``.

    Args:
        array: one image ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``, or several with ``N`` in front.
        layout: one of the names above, with or without the ``N``; None infers it from the shape.
    """
    readers = (
        _possible_layouts(array.shape, preprocessing)
        if layout is None
        else [layout.removeprefix("N")]
    )
    if len(readers) > 1:
        names = [r if len(r) == array.ndim else f"N{r}" for r in readers]
        raise ShapeError(
            f"{name} has the shape {list(array.shape)}.",
            f"It can be read as {' or '.join('[' + ', '.join(n) + ']' for n in names)}.",
            f"Set layout={' or layout='.join(map(repr, names))}.",
        )
    if not readers or array.ndim not in (len(readers[0]), len(readers[0]) + 1):
        raise _unreadable(array, preprocessing.channels, layout, name)
    return _channels_last(array, readers[0])


def _possible_layouts(shape: Sequence[int], preprocessing: Preprocessing) -> list[str]:
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
    layouts = ["HWC"] if width in counts else []
    if first in counts and first != 2:
        layouts.append("CHW")
    square = height == width or (height, width) == (preprocessing.height, preprocessing.width)
    several = len(shape) == 3 and preprocessing.channels == 1 and square and "HWC" not in layouts
    return [*layouts, "HW"] if several and first != 1 else layouts


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
            f"layout '{layout}' has {len(layout.removeprefix('N'))} dimensions for an image.",
            "Reshape the array, or set its own layout.",
        )
    if len(shape) == 1:
        return ShapeError(
            f"{name} has the shape {list(shape)}.",
            f"Images are {_EXAMPLES}.",
            "For the bytes of an image file pass array.tobytes()."
            if array.dtype == np.uint8
            else "Pass only the images, such as `(image for image, label in loader)`.",
        )
    counts = channel_counts(channels)
    return ShapeError(
        f"{name} has the shape {list(shape)}.",
        f"Images are {_EXAMPLES}, where C is {', '.join(map(str, counts))}.",
        "For several grey images, set layout='NHW'." if len(shape) == 3 else "Reshape the array.",
    )
