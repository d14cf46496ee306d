"""The inputs of a comparison: real samples, and hard cases that data sets do not contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import ImageSet, read_images
from capsedge.runtime.metadata import Preprocessing
from capsedge.runtime.vision.image_headers import SUFFIXES
from capsedge.runtime.vision.images import normalized, prepare

Floats = NDArray[np.float32]
GENERATED = 64  # images drawn when no data is given


def load_samples(
    source: Path | str,
    prep: Preprocessing | None,
    limit: int | None,
    inputs: Mapping[str, str] | None = None,
    classes: bool = True,
) -> ImageSet:
    """Samples of a data set (its test split), an archive, an idx file or images.

    Args:
        source, prep, limit, inputs, classes: as for ``datasets.read_images``.

    Raises:
        UsageError: the source cannot be read, or does not fit the model.
    """
    found = read_images(source, prep, "test", limit, inputs, classes)
    name = str(source) if found.whole else f"{source} (first {len(found)})"
    return replace(found, source=name)


def shipped_samples(
    prep: Preprocessing | None, shape: tuple[int, int, int], limit: int | None
) -> ImageSet:
    """The package's own samples: its drawn images if they fit, and generated strokes.

    Args:
        shape: shape of one input, ``(C, H, W)``.
    """
    parts = [generated(shape, prep, GENERATED)]
    folder = Path(__file__).parents[1] / "samples"
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
    if prep is not None and prep.channels in (1, 3) and files:
        parts.insert(0, np.stack([prepare(file, prep) for file in files]))
    names = (*(f.name for f in files if len(parts) == 2), *(f"drawn {k}" for k in range(GENERATED)))
    images = np.concatenate(parts)[:limit]
    return ImageSet("samples of the package", images, names=names[: len(images)])


def generated(
    shape: tuple[int, int, int], prep: Preprocessing | None, count: int, seed: int = 2017
) -> Floats:
    """Pen strokes on black, seeded: soft-edged random curves with the statistics of handwriting.

    Returns:
        ``[count, C, H, W]``, prepared.
    """
    rng = np.random.default_rng(seed)
    channels, height, width = shape
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    images = np.zeros((count, channels, height, width))
    t = np.linspace(0, 1, 48)[:, None]
    for image in images:
        for channel in image if rng.random() < 0.3 else [image]:
            for _ in range(rng.integers(1, 4)):
                # A cubic Bézier curve inside the middle of the picture.
                p = rng.uniform(0.15, 0.85, (4, 2))
                curve = (
                    (1 - t) ** 3 * p[0]
                    + 3 * t * (1 - t) ** 2 * p[1]
                    + 3 * t * t * (1 - t) * p[2]
                    + t**3 * p[3]
                )
                pen, strength = rng.uniform(0.02, 0.05), rng.uniform(0.6, 1)
                near = (
                    _within(y[:, 0], curve[:, 0], 1.6 * pen),
                    _within(x[0], curve[:, 1], 1.6 * pen),
                )
                ink = (
                    np.clip(1.6 - _distance(y[near[0], 0], x[0, near[1]], curve) / pen, 0, 1)
                    * strength
                )
                part = channel[(..., *near)]
                np.maximum(part, ink, out=part)
    return prepared(images, prep)


def _distance(
    y: NDArray[np.float64], x: NDArray[np.float64], curve: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Of every pixel ``[h, w]`` at rows and columns of a grid to the nearest point of a curve."""
    down, right = np.square(y[:, None] - curve[:, 0]), np.square(x[:, None] - curve[:, 1])
    nearest = down[:, :1] + right[:, 0]
    for k in range(1, len(curve)):
        np.minimum(nearest, down[:, k, None] + right[:, k], out=nearest)
    return np.asarray(np.sqrt(nearest))


def _within(grid: NDArray[np.float64], curve: NDArray[np.float64], reach: float) -> slice:
    """The part of a rising grid that ink around a curve can reach."""
    first = np.searchsorted(grid, curve.min() - reach)
    return slice(first, np.searchsorted(grid, curve.max() + reach, side="right"))


def hard_cases(shape: tuple[int, int, int], prep: Preprocessing | None) -> ImageSet:
    """Prepared extreme inputs: zero, tiny and huge norms, ties, no structure, too much structure."""
    _, height, width = shape
    rng = np.random.default_rng(2018)
    y, x = np.mgrid[0:height, 0:width]
    noise = rng.random(shape)
    strokes = generated(shape, None, 1)[0].astype(np.float64)

    def everywhere(picture: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.broadcast_to(picture, shape).astype(np.float64)

    spike = np.zeros((height, width))
    spike[height // 2, width // 2] = 1
    symmetric = (strokes + strokes[:, :, ::-1]) / 2
    pixels = {
        "black": np.zeros(shape),
        "white": np.ones(shape),
        "grey": np.full(shape, 0.5),
        "faint noise": noise / 255,
        "noise": noise,
        "saturated noise": (noise > 0.5).astype(np.float64),
        "checkerboard 1": everywhere(((y + x) % 2).astype(np.float64)),
        "checkerboard 4": everywhere((((y // 4) + (x // 4)) % 2).astype(np.float64)),
        "rows": everywhere((y % 2).astype(np.float64)),
        "one pixel": everywhere(spike),
        "ramp": everywhere(x / max(width - 1, 1)),
        "mirror image": symmetric,  # children that tie pairwise
        "inverted strokes": 1 - strokes,
    }
    arrays = {name: prepared(image, prep) for name, image in pixels.items()}
    # Values that pixels cannot reach, given directly to the model's input.
    arrays |= {
        "zero input": np.zeros(shape, np.float32),
        "tiny norm": (strokes * 1e-6).astype(np.float32),
        "huge norm": (strokes * 1e3).astype(np.float32),
        "huge noise": ((noise - 0.5) * 2e3).astype(np.float32),
    }
    return ImageSet("hard cases", np.stack(list(arrays.values())), names=tuple(arrays))


def prepared(images: NDArray[np.float64], prep: Preprocessing | None) -> Floats:
    """Values in [0, 1] ``[..., C, H, W]`` as the model's input."""
    if prep is None:
        return images.astype(np.float32)
    if prep.per_image:
        levels = (images * 255).astype(np.float32).reshape(-1, *images.shape[-3:])
        return np.stack([normalized(one, prep) for one in levels]).reshape(images.shape)
    mean, std = (np.reshape(v, (-1, 1, 1)) for v in (prep.mean, prep.std))
    return np.asarray((images * 255 * prep.scale - mean) / std, np.float32)
