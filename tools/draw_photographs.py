"""Make the sample images of the network for photographs: three painted scenes and a photograph of a cat.

The scenes are drawn here. The cat is Chelsea, photographed by Stéfan van der Walt and dedicated to the public
domain (CC0); scikit-image carries the picture as `data/chelsea.png`.

    python -m tools.draw_photographs CHELSEA.png --out capsedge/zoo/photographs
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from capsedge.runtime.files.writing import make_folder, write_bytes

SIDE, FINER = 128, 8  # pixels of a sample, and drawn pixels for each of them
QUALITY = 90
CAT = (95, 0, 395, 300)  # of chelsea.png: the head

Colour = tuple[int, int, int]
Points = Sequence[tuple[float, float]]  # in a unit square, y down


class Canvas:
    """A unit square to paint on, which becomes a sample."""

    def __init__(self, top: Colour, bottom: Colour, horizon: float = 1.0) -> None:
        self._side = SIDE * FINER
        shade = np.linspace(0, 1, int(self._side * horizon))[:, None, None]
        rows = (np.array(top) * (1 - shade) + np.array(bottom) * shade).astype(np.uint8)
        canvas = np.broadcast_to(rows[-1:], (self._side, self._side, 3)).copy()
        canvas[: len(rows)] = rows
        self._image = Image.fromarray(canvas)
        self._draw = ImageDraw.Draw(self._image)

    def shape(self, points: Points, colour: Colour) -> None:
        """A polygon."""
        self._draw.polygon([(x * self._side, y * self._side) for x, y in points], colour)

    def oval(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        """An ellipse in a box."""
        box = [value * self._side for value in (left, top, right, bottom)]
        self._draw.ellipse(box, colour)

    def sample(self, seed: int, grain: float = 5) -> Image.Image:
        """The painting, slightly blurred and grainy, like a camera image."""
        small = self._image.filter(ImageFilter.GaussianBlur(FINER)).resize(
            (SIDE, SIDE), Image.Resampling.BOX
        )
        noise = np.random.default_rng(seed).normal(0, grain, (SIDE, SIDE, 3))
        return Image.fromarray(np.clip(np.asarray(small) + noise, 0, 255).astype(np.uint8))


def airplane() -> Image.Image:
    """An airliner from the side, in the sky."""
    canvas = Canvas((92, 140, 205), (178, 208, 235))
    white, shade, dark = (236, 238, 242), (176, 184, 198), (70, 80, 104)
    canvas.shape([(0.72, 0.47), (0.84, 0.24), (0.92, 0.24), (0.88, 0.47)], dark)
    canvas.shape(
        [
            (0.06, 0.50),
            (0.14, 0.455),
            (0.70, 0.45),
            (0.93, 0.44),
            (0.86, 0.51),
            (0.68, 0.56),
            (0.16, 0.565),
        ],
        white,
    )
    canvas.shape([(0.10, 0.535), (0.86, 0.50), (0.68, 0.56), (0.16, 0.565)], shade)
    canvas.shape([(0.40, 0.53), (0.54, 0.53), (0.76, 0.74), (0.68, 0.74)], shade)
    canvas.shape([(0.42, 0.46), (0.52, 0.46), (0.66, 0.32), (0.61, 0.32)], (200, 206, 216))
    canvas.shape([(0.80, 0.47), (0.90, 0.47), (0.97, 0.40), (0.93, 0.40)], shade)
    canvas.oval(0.46, 0.60, 0.58, 0.66, dark)
    for k in range(11):
        canvas.oval(0.20 + 0.045 * k, 0.487, 0.215 + 0.045 * k, 0.503, dark)
    canvas.shape([(0.09, 0.482), (0.14, 0.465), (0.155, 0.49), (0.10, 0.497)], dark)
    return canvas.sample(1)


def ship() -> Image.Image:
    """A freighter on the sea."""
    canvas = Canvas((150, 182, 214), (214, 224, 230), 0.58)
    canvas.shape([(0, 0.58), (1, 0.58), (1, 1), (0, 1)], (48, 84, 112))
    rng = np.random.default_rng(3)
    for x, y in rng.uniform((0, 0.62), (1, 1), (160, 2)):
        long = 0.02 + 0.05 * (y - 0.6)
        canvas.oval(
            x, y, x + 2 * long, y + 0.15 * long, (74, 112, 140) if x * 7 % 1 < 0.6 else (36, 66, 92)
        )
    canvas.shape([(0.06, 0.52), (0.95, 0.50), (0.87, 0.70), (0.14, 0.70)], (38, 44, 58))
    canvas.shape([(0.125, 0.66), (0.89, 0.655), (0.87, 0.70), (0.14, 0.70)], (150, 46, 40))
    canvas.shape([(0.62, 0.30), (0.82, 0.30), (0.82, 0.51), (0.62, 0.515)], (236, 236, 232))
    canvas.shape([(0.65, 0.24), (0.79, 0.24), (0.79, 0.30), (0.65, 0.30)], (222, 222, 220))
    canvas.shape([(0.70, 0.14), (0.77, 0.14), (0.77, 0.24), (0.70, 0.24)], (196, 92, 44))
    for k in range(4):
        canvas.shape(
            [
                (0.64 + 0.045 * k, 0.34),
                (0.67 + 0.045 * k, 0.34),
                (0.67 + 0.045 * k, 0.37),
                (0.64 + 0.045 * k, 0.37),
            ],
            (60, 76, 96),
        )
    for k, colour in enumerate(
        [(176, 84, 52), (62, 104, 140), (190, 160, 70), (96, 130, 96), (170, 70, 60)]
    ):
        left = 0.14 + 0.09 * k
        canvas.shape([(left, 0.44), (left + 0.08, 0.44), (left + 0.08, 0.52), (left, 0.52)], colour)
    canvas.shape([(0.10, 0.30), (0.112, 0.30), (0.112, 0.52), (0.10, 0.52)], (90, 90, 90))
    return canvas.sample(2)


def automobile() -> Image.Image:
    """A red car from the side, on a road."""
    canvas = Canvas((196, 206, 214), (224, 226, 222), 0.5)
    canvas.shape([(0, 0.5), (1, 0.5), (1, 0.62), (0, 0.62)], (120, 140, 100))
    canvas.shape([(0, 0.62), (1, 0.62), (1, 1), (0, 1)], (118, 118, 122))
    red, deep, glass = (186, 34, 32), (130, 20, 22), (60, 74, 90)
    canvas.oval(0.10, 0.74, 0.92, 0.82, (70, 70, 74))
    canvas.shape(
        [
            (0.05, 0.56),
            (0.09, 0.50),
            (0.28, 0.475),
            (0.38, 0.345),
            (0.66, 0.34),
            (0.80, 0.475),
            (0.93, 0.51),
            (0.95, 0.58),
            (0.95, 0.70),
            (0.05, 0.70),
        ],
        red,
    )
    canvas.shape([(0.05, 0.62), (0.95, 0.62), (0.95, 0.71), (0.05, 0.71)], deep)
    canvas.shape([(0.31, 0.475), (0.395, 0.37), (0.50, 0.37), (0.50, 0.475)], glass)
    canvas.shape([(0.53, 0.475), (0.53, 0.37), (0.645, 0.37), (0.74, 0.475)], glass)
    canvas.oval(0.06, 0.53, 0.11, 0.58, (240, 236, 200))
    for x in (0.17, 0.67):
        canvas.oval(x, 0.60, x + 0.18, 0.78, (24, 24, 26))
        canvas.oval(x + 0.045, 0.645, x + 0.135, 0.735, (176, 178, 182))
    return canvas.sample(4)


def main() -> None:
    """Write the four samples."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("chelsea", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with Image.open(options.chelsea) as photograph:
        cat = photograph.convert("RGB").crop(CAT).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    make_folder(options.out)
    for painted in (airplane, automobile, ship):
        save(painted(), options.out / f"{painted.__name__}.jpg")
    save(cat, options.out / "cat.jpg")


def save(image: Image.Image, path: Path) -> None:
    """Write a JPEG file."""
    data = io.BytesIO()
    image.save(data, "JPEG", quality=QUALITY)
    write_bytes(path, data.getvalue())


if __name__ == "__main__":
    main()
