"""Deformed copies of images: stand-ins for images that a network was not trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]

STRENGTHS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.125)
# The largest deformation, at strength 1.
_ANGLE = np.deg2rad(25.0)
_ZOOM = 0.2
_SHEAR = 0.2
_SHIFT = 0.08  # of the sides
_BEND = 0.06  # of the sides, the standard deviation at the knots
_KNOTS = 5  # on each side
_NOISE = 0.25  # of an image's standard deviation


@dataclass(frozen=True)
class Deformation:
    """A random change of prepared images.

    Images are rotated, zoomed, sheared, shifted and bent (smooth random displacements, as the elastic
    distortions of Simard, Steinkraus and Platt 2003), and get Gaussian noise within their own range of
    values. Inputs without rows and columns get noise alone.

    Attributes:
        strength: factor of all of these, from 0 (none) to 1.
        channels_last: whether images are ``[N, H, W, C]`` instead of ``[N, C, H, W]``.
        seed: of the random numbers.
    """

    strength: float
    channels_last: bool = False
    seed: int = 0

    def copies(self, batches: Iterable[Array]) -> Iterator[Array]:
        """A deformed copy of each batch ``[n, ...]``, of the same shape and type."""
        rng = np.random.default_rng(self.seed)
        for batch in batches:
            yield self._of(batch, rng)

    def _of(self, batch: Array, rng: Generator) -> Array:
        values = batch.astype(np.float32)
        axes = tuple(range(1, values.ndim))
        low, high = values.min(axes, keepdims=True), values.max(axes, keepdims=True)
        if values.ndim == 4:
            images = values if self.channels_last else np.moveaxis(values, 1, 3)
            moved = _resampled(images, *_places(images.shape[:3], self.strength, rng))
            values = moved if self.channels_last else np.moveaxis(moved, 3, 1)
        spread = values.std(axes, keepdims=True) * np.float32(_NOISE * self.strength)
        values = np.clip(values + spread * rng.standard_normal(values.shape, np.float32), low, high)
        found: Array = values if batch.dtype.kind == "f" else np.rint(values)
        return found.astype(batch.dtype)


def _places(shape: tuple[int, ...], strength: float, rng: Generator) -> tuple[Floats, Floats]:
    """Rows and columns ``[N, H, W]`` that the pixels of the copies are read from."""
    count, height, width = shape

    def drawn(limit: float) -> Floats:
        return rng.uniform(-1, 1, (count, 1, 1)).astype(np.float32) * np.float32(limit * strength)

    y = np.arange(height, dtype=np.float32)[:, None] - (height - 1) / 2
    x = np.arange(width, dtype=np.float32)[None, :] - (width - 1) / 2
    angle, shear = drawn(_ANGLE), drawn(_SHEAR)
    zooms = 1 + drawn(_ZOOM), 1 + drawn(_ZOOM)
    rows = (np.cos(angle) * y - np.sin(angle) * x) * zooms[0] + drawn(_SHIFT) * height
    columns = (np.sin(angle) * y + np.cos(angle) * x) * zooms[1] + shear * y + drawn(_SHIFT) * width
    rows += _bend(shape, strength * _BEND * height, rng) + (height - 1) / 2
    columns += _bend(shape, strength * _BEND * width, rng) + (width - 1) / 2
    return rows.astype(np.float32), columns.astype(np.float32)


def _bend(shape: tuple[int, ...], size: float, rng: Generator) -> Floats:
    """Smooth random displacements ``[N, H, W]``: knots with a smoothstep between them."""
    count, height, width = shape
    knots = rng.normal(0.0, size, (count, _KNOTS, _KNOTS)).astype(np.float32)
    return np.asarray(_weights(height) @ knots @ _weights(width).T, np.float32)


def _weights(cells: int) -> Floats:
    """The share of every knot in each cell ``[cells, knots]``."""
    places = np.linspace(0, _KNOTS - 1, cells)
    apart = np.clip(1 - np.abs(places[:, None] - np.arange(_KNOTS)), 0, 1)
    return np.asarray(apart**2 * (3 - 2 * apart), np.float32)


def _resampled(images: Floats, rows: Floats, columns: Floats) -> Floats:
    """Images ``[N, H, W, C]`` read at places between pixels, bilinear; beyond the edge its pixels go on."""
    count, height, width = images.shape[:3]
    rows, columns = np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)
    top, left = rows.astype(np.intp), columns.astype(np.intp)
    bottom, right = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    down, across = (rows - top)[..., None], (columns - left)[..., None]
    n = np.arange(count)[:, None, None]
    upper = images[n, top, left] * (1 - across) + images[n, top, right] * across
    lower = images[n, bottom, left] * (1 - across) + images[n, bottom, right] * across
    return np.asarray(upper * (1 - down) + lower * down, np.float32)
