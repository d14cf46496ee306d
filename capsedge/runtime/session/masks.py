"""From maps of scores to masks of an image's own size, bit for bit as libcapsedge and the npm package do.

The steps are specified in docs/reference/runtime.md ("Masks"). A mask is ``[H, W]`` of uint8: the class of
each pixel, and `UNKNOWN` where the network did not see the image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ShapeError
from capsedge.runtime.images.preprocessing import placement_of, taps
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.spec.fields import UNKNOWN

Mask = NDArray[np.uint8]
Maps = NDArray[np.float32]  # scores [h, w, K] of one image
_STRIP = 64  # rows that are decided at once; bounds memory


def map_classes(shape: Sequence[int | str | None], layout: str) -> int | str | None:
    """The number of maps of an output ``[H, W]``, ``[K, H, W]`` or, with the channels last, ``[H, W, K]``.

    Args:
        shape: of one image.
        layout: of the preprocessing.
    """
    if len(shape) == 2:
        return 1
    return shape[2] if layout == "NHWC" else shape[0]


def as_maps(values: NDArray[Any], layout: str) -> Maps:
    """The scores of one image, of a shape as in `map_classes`, as ``[h, w, K]``."""
    maps = values.astype(np.float32, copy=False)
    if maps.ndim == 2:
        return maps[..., None]
    return maps if layout == "NHWC" else maps.transpose(1, 2, 0)


def level_of(threshold: float, kind: str) -> np.float32:
    """The score from which a pixel is foreground: for logits ``log(t / (1 - t))``."""
    if kind != "logits":
        return np.float32(threshold)
    if threshold in (0, 1):
        return np.float32(math.copysign(math.inf, threshold - 0.5))
    return np.float32(math.log(threshold / (1 - threshold)))


def mask_of_image(
    maps: Maps,
    preprocessing: Preprocessing | None,
    size: tuple[int, int],
    level: np.float32,
) -> Mask:
    """The mask of an image.

    Args:
        maps: its scores, ``[h, w, K]``: of one class that is there or not, or of every class.
        preprocessing: how the image became the input; None leaves the maps as they are.
        size: height and width of the image.
        level: the score of one map from which a pixel is foreground.

    Returns:
        ``[H, W]``.
    """
    if preprocessing is None:
        return _decided(maps, maps.shape[:2], level)
    p = preprocessing
    placed = placement_of(p, *size)
    maps = _resized(maps, (p.height, p.width))
    (down, right), (height, width) = placed.corner(p.height, p.width), placed.inner
    top, left, *part = placed.part
    found = _decided(maps[down : down + height, right : right + width], (part[0], part[1]), level)
    mask = np.full(size, UNKNOWN, np.uint8)
    mask[top : top + part[0], left : left + part[1]] = found
    return mask


def _decided(maps: Maps, size: tuple[int, int], level: np.float32) -> Mask:
    """The class of every pixel after resizing: the one with the largest score, the first of equal ones."""
    mask = np.empty(size, np.uint8)
    for first in range(0, size[0], _STRIP):
        rows = range(first, min(first + _STRIP, size[0]))
        scores = _resized(maps, size, rows)
        one = scores.shape[-1] == 1
        mask[rows.start : rows.stop] = scores[..., 0] >= level if one else scores.argmax(axis=-1)
    return mask


def _resized(maps: Maps, size: tuple[int, int], rows: range | None = None) -> Maps:
    """Some rows of the maps, resized by the filter for images: first along the height, then the width."""
    if maps.shape[:2] == size:
        return maps if rows is None else maps[rows.start : rows.stop]
    tall = _filtered(maps, size[0], rows or range(size[0]))
    return _filtered(tall.transpose(1, 0, 2), size[1], range(size[1])).transpose(1, 0, 2)


def _filtered(values: Maps, target: int, wanted: range) -> Maps:
    """As `preprocessing.resize_rows`, of some target rows at once: ``sum_k weight_k * row_k``."""
    found = [taps(len(values), target, index) for index in wanted]
    most = max(len(weights) for _, weights in found)
    weights = np.zeros((most, len(found)), np.float32)
    for column, (_, own) in enumerate(found):
        weights[: len(own), column] = own
    starts = np.array([first for first, _ in found])
    total: Maps | None = None
    for k in range(most):  # a weight of 0 past the last tap adds nothing
        part = weights[k, :, None, None] * values[np.minimum(starts + k, len(values) - 1)]
        total = part if total is None else total + part
    assert total is not None
    return total


# --- What a mask holds ---


@dataclass(frozen=True)
class ClassArea:
    """The part of an image that belongs to a class.

    Attributes:
        name: the class.
        index: its number.
        pixels: how many belong to it.
        share: of the pixels that the network saw, 0 to 1.
    """

    name: str
    index: int
    pixels: int
    share: float


def class_areas(mask: Mask, names: Sequence[str]) -> tuple[ClassArea, ...]:
    """The area of each class, in their order."""
    counts = np.bincount(mask.ravel(), minlength=len(names))[: len(names)]
    seen = max(int(counts.sum()), 1)
    return tuple(
        ClassArea(name, k, int(count), int(count) / seen)
        for k, (name, count) in enumerate(zip(names, counts, strict=True))
    )


def run_lengths(chosen: NDArray[np.bool_]) -> dict[str, list[int]]:
    """COCO's uncompressed run lengths of the pixels ``[H, W]`` of a class, by columns; the first run is of
    pixels outside. pycocotools.mask.frPyObjects reads them."""
    flat = chosen.ravel(order="F")
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    bounds = np.concatenate([[0], changes, [flat.size]])
    counts = np.diff(bounds).tolist()
    starts = [0] if flat.size and flat[0] else []
    return {"size": list(chosen.shape), "counts": [*starts, *counts]}


def mask_values(mask: Mask, names: Sequence[str]) -> dict[str, Any]:
    """JSON values: the size, and of each class in the mask its area and run lengths."""
    return {
        "height": mask.shape[0],
        "width": mask.shape[1],
        "unknown": int(np.count_nonzero(mask == UNKNOWN)),
        "classes": [
            {
                "label": area.name,
                "index": area.index,
                "pixels": area.pixels,
                "share": area.share,
                "rle": run_lengths(mask == area.index),
            }
            for area in class_areas(mask, names)
        ],
    }


def palette() -> NDArray[np.uint8]:
    """The colours ``[256, 3]`` of PASCAL VOC: the bits of a class's number, spread over the channels."""
    index = np.arange(256)
    colours = np.zeros((256, 3), np.int64)
    for bit in range(8):
        colours[:, bit % 3] |= (index >> bit & 1) << (7 - bit // 3)
    return colours.astype(np.uint8)


def overlaid(pixels: NDArray[np.uint8], mask: Mask) -> NDArray[np.uint8]:
    """An image ``[H, W, 3]`` with the colours of a mask over it; class 0 shows the image, unknown is dark.

    Raises:
        ShapeError: the image has another size.
    """
    if pixels.shape[:2] != mask.shape:
        raise ShapeError(
            f"The image has {pixels.shape[0]}x{pixels.shape[1]} pixels.",
            f"The mask has {mask.shape[0]}x{mask.shape[1]}.",
            "Pass the image that the mask was predicted for.",
        )
    colours = palette().astype(np.uint16)
    colours[UNKNOWN] = 0
    mixed = ((pixels.astype(np.uint16) + colours[mask]) // 2).astype(np.uint8)
    return np.where((mask == 0)[..., None], pixels, mixed)
