"""Draw digits in clutter, with their masks: a digit of MNIST over lines and rectangles.

    python -m tools.zoo.clutter_images DATA FOLDER

writes a folder of images with masks (docs/reference/data.md) from the MNIST in DATA.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from capsedge.datasets import read_split
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.session.masks import mask_png

SIDE = 32
DIGIT = 28
CLASSES = ("background", "digit")
COUNTS = {"train": 20_000, "validation": 500, "test": 2000}
SEEDS = {"train": 1, "validation": 2, "test": 3}
_LINES, _RECTANGLES = 3, 2

Pixels = NDArray[np.uint8]


def draw(ink: Pixels, random: np.random.Generator) -> tuple[Pixels, Pixels]:
    """A digit ``[28, 28]`` over clutter, and its mask, 1 where the ink covers half: both ``[32, 32]``.

    The ground is noise below 64; lines and rectangles have any brightness from 64 on. The ink is white and
    covers what lies below it.
    """
    pixels = random.integers(0, 64, (SIDE, SIDE)).astype(np.float64)
    along = np.linspace(0, 1, 3 * SIDE)[:, None]
    for _ in range(_LINES):
        start, end = random.uniform(0, SIDE - 1, (2, 2))
        rows, columns = np.rint(start + (end - start) * along).astype(int).T
        pixels[rows, columns] = random.integers(64, 256)
    for _ in range(_RECTANGLES):
        height, width = random.integers(4, 9, 2)
        top, left = random.integers(0, SIDE - height + 1), random.integers(0, SIDE - width + 1)
        pixels[top : top + height, left : left + width] = random.integers(64, 256)
    top, left = random.integers(0, SIDE - DIGIT + 1, 2)
    place = np.s_[top : top + DIGIT, left : left + DIGIT]
    share = ink / 255
    pixels[place] = share * 255 + (1 - share) * pixels[place]
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[place] = ink >= 128
    return np.rint(pixels).astype(np.uint8), mask


def write(data: Path, folder: Path) -> None:
    """Write the three splits: the first 20,000 digits for training, the last 500 of the training images for
    validation, and the first 2000 test images."""
    prep = Preprocessing(DIGIT, DIGIT, 1)
    training = read_split(data, "train", prep).images[..., 0]
    inks = {
        "train": training[: COUNTS["train"]],
        "validation": training[-COUNTS["validation"] :],
        "test": read_split(data, "test", prep).images[: COUNTS["test"], ..., 0],
    }
    for split, digits in inks.items():
        random = np.random.default_rng(SEEDS[split])
        for name in ("images", "masks"):
            (folder / split / name).mkdir(parents=True)
        for number, ink in enumerate(digits):
            pixels, mask = draw(ink, random)
            Image.fromarray(pixels).save(folder / split / "images" / f"{number:05}.png")
            file = folder / split / "masks" / f"{number:05}.png"
            file.write_bytes(mask_png(mask, CLASSES))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    write(Path(sys.argv[1]), Path(sys.argv[2]))
