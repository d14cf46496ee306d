"""Images that tell what a network's outputs do: plain ones, shapes, noise, and values beyond the range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.metadata import Preprocessing

Floats = NDArray[np.float32]
_NOISE, _SHAPES, _BEYOND = 16, 14, 16
_LARGE = 3 * 64 * 64  # values of an image from which on fewer are run


@dataclass(frozen=True)
class Probes:
    """Prepared images ``[n, ...]``; what they are, by row.

    Attributes:
        images: in the layout of the input.
        inside: rows in the range of pixels; the others lie beyond it, where classes differ more.
        noise: rows of noise.
    """

    images: Floats
    inside: NDArray[np.bool_]
    noise: NDArray[np.bool_]


def probes(shape: Sequence[int], preprocessing: Preprocessing | None = None) -> Probes:
    """Images for an input of this shape, ``[C, H, W]`` or ``[H, W, C]``.

    Args:
        preprocessing: how pixels become the input; without it they go from 0 to 1.
    """
    channels_last = preprocessing is not None and preprocessing.layout == "NHWC"
    channels, height, width = (shape[2], *shape[:2]) if channels_last else tuple(shape)
    few = 2 if channels * height * width > _LARGE else 1
    rng = np.random.default_rng(0)
    noise = rng.random((_NOISE // few, channels, height, width), np.float32)
    plain = np.stack([np.full(noise.shape[1:], level, np.float32) for level in (0.0, 1.0)])
    drawn = _drawn(rng, _SHAPES // few, (channels, height, width))
    pixels = np.concatenate([plain, drawn, noise])
    inside = _prepared(pixels, preprocessing)
    spread = float(np.abs(inside).max()) or 1.0
    # Far from the origin biases count for nothing, and even untrained networks answer differently.
    beyond = rng.standard_normal((_BEYOND // few, channels, height, width)).astype(np.float32)
    factors = spread * np.float32(3.0) ** (1 + np.arange(len(beyond)) % 4)
    images = np.concatenate([inside, beyond * factors[:, None, None, None].astype(np.float32)])
    if channels_last:
        images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    rows = np.arange(len(images))
    first = len(plain) + len(drawn)
    return Probes(images, rows < len(inside), (rows >= first) & (rows < len(inside)))


def _drawn(rng: np.random.Generator, count: int, shape: tuple[int, int, int]) -> Floats:
    """Bright bars and patches on a dark ground, and the reverse; coloured where there are colours."""
    channels, height, width = shape
    found = np.zeros((count, *shape), np.float32)
    for image in found:
        for _ in range(3):
            top, left = rng.integers(0, height), rng.integers(0, width)
            bottom = top + rng.integers(1, height // 2 + 2)
            right = left + rng.integers(1, width // 2 + 2)
            image[:, top:bottom, left:right] = rng.random((channels, 1, 1)) / 2 + 0.5
    found[1::4] = 1 - found[1::4]
    return found


def _prepared(pixels: Floats, preprocessing: Preprocessing | None) -> Floats:
    """Pixels 0..1 ``[n, C, H, W]`` as the input of a network, by the formulas of `Preprocessing`."""
    if preprocessing is None:
        return pixels
    p = preprocessing
    values = pixels * np.float32(255 * p.scale)
    if p.per_image == "standardize":
        flat = values.reshape(len(values), -1)
        mean, std = flat.mean(1), np.maximum(flat.std(1), 1 / np.sqrt(flat.shape[1]))
        return np.asarray(
            (values - mean[:, None, None, None]) / std[:, None, None, None], np.float32
        )
    mean, std = (np.asarray(v, np.float32).reshape(1, -1, 1, 1) for v in (p.mean, p.std))
    return np.asarray((values - mean) / std, np.float32)
