"""The decoder's pictures as one PNG: the model's input, and the pictures of its most active capsules."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.files.writing import write_bytes
from capsedge.runtime.metadata import Preprocessing

# Red and green are those of the MultiMNIST figure in Sabour et al. 2017; pixels where both digits have
# ink are yellow.
COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (1.0, 0.0, 0.0),
    "green": (0.0, 1.0, 0.0),
    "blue": (0.2, 0.3, 1.0),
    "magenta": (1.0, 0.0, 1.0),
    "cyan": (0.0, 1.0, 1.0),
    "orange": (1.0, 0.5, 0.0),
}
MAX_ROWS = 100
_GAP = (64, 64, 64)
_SIDE = 224  # pictures are enlarged to at most this many pixels, and at least half of it


def seen(prepared: NDArray[np.float32], preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """The prepared input as pixels ``[H, W, 3]`` again; where each image is standardized by
    itself, from its darkest to its lightest value."""
    if preprocessing.layout == "NHWC":
        prepared = prepared.transpose(2, 0, 1)
    if preprocessing.per_image == "standardize":
        low, high = prepared.min(), prepared.max()
        pixels = (prepared - low) / (high - low if high > low else 1.0)
    else:
        mean, std = (np.reshape(v, (-1, 1, 1)) for v in (preprocessing.mean, preprocessing.std))
        pixels = (prepared * std + mean) / preprocessing.scale / 255.0
    return _pixels(pixels[::-1] if preprocessing.order == "BGR" else pixels)


def overlay(pictures: NDArray[np.float32], classes: Sequence[int]) -> NDArray[np.uint8]:
    """The pictures of some classes in one: a single class in its own colours, several in one colour each.

    Args:
        pictures: ``[J, C, H, W]``, values 0..1.
        classes: best first, at most as many as there are `COLOURS`.

    Returns:
        ``[H, W, 3]``.
    """
    if len(classes) == 1:
        return _pixels(pictures[classes[0]])
    total = np.zeros((3, *pictures.shape[2:]))
    for index, colour in zip(classes, COLOURS.values(), strict=False):
        ink = np.clip(pictures[index], 0.0, 1.0).mean(axis=0)
        total += np.reshape(colour, (3, 1, 1)) * ink
    return _pixels(total)


def _pixels(values: NDArray[Any]) -> NDArray[np.uint8]:
    """``[C, H, W]`` of 0..1 as ``[H, W, 3]``; other than three channels are shown grey."""
    if len(values) != 3:
        values = np.repeat(values.mean(axis=0, keepdims=True), 3, axis=0)
    pixels: NDArray[np.uint8] = np.rint(np.clip(values, 0.0, 1.0) * 255.0).astype(np.uint8)
    return pixels.transpose(1, 2, 0)


def check_sheet(target: Path | str, rows: int) -> None:
    """Raise a UsageError if a sheet with this many rows cannot be written to that file."""
    if Path(target).suffix.lower() != ".png":
        raise UsageError(f"Cannot write {target}.", "Pictures are PNG files.", "Name it *.png.")
    if rows > MAX_ROWS:
        raise UsageError(
            f"{rows} reconstructions do not fit into one picture.",
            f"It takes {MAX_ROWS}.",
            "Name fewer images with --reconstruct.",
        )


def write_sheet(
    target: Path | str, rows: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]]
) -> None:
    """Write a PNG with one row per image: the model's input on the left, the decoder's picture on the right.

    Raises:
        UsageError: the path cannot be written, or there are too many rows.
    """
    check_sheet(target, len(rows))
    from PIL import Image

    lines: list[NDArray[np.uint8]] = []
    for left, right in rows:
        left, right = _enlarged(left), _enlarged(right)
        height = max(len(left), len(right))
        gap = np.full((height, 4, 3), _GAP, np.uint8)
        line = np.concatenate([_filled(left, height), gap, _filled(right, height)], axis=1)
        if lines:
            lines.append(np.full((4, line.shape[1], 3), _GAP, np.uint8))
        lines.append(line)
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(lines)).save(buffer, "PNG")
    write_bytes(target, buffer.getvalue())


def _enlarged(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    times = max(1, _SIDE // max(picture.shape[:2]))
    return picture.repeat(times, axis=0).repeat(times, axis=1)


def _filled(picture: NDArray[np.uint8], height: int) -> NDArray[np.uint8]:
    result = np.zeros((height, *picture.shape[1:]), np.uint8)
    result[: len(picture)] = picture
    return result
