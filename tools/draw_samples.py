"""Draw the sample and test images: digits in pen strokes, by several hands.

A digit is a few strokes; a stroke is a smooth curve through points. A hand gives slant, width, pressure and
unsteadiness. As in MNIST, the ink is scaled into a box of 20x20 pixels with its aspect ratio kept, and its
centre of mass is placed at the centre of 28x28. Nothing here comes from a data set.

    python -m tools.draw_samples --out DIR [--each N | --clutter] [--seed S]
"""

from __future__ import annotations

import argparse
import io
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import CapsedgeError
from capsedge.runtime.files.writing import make_folder, write_bytes
from tools.zoo.clutter_images import draw

Stroke = Sequence[tuple[float, float]]

SIDE = 28
BOX = 20.0
_STEPS = 24  # curve points between given points

# Points (x right, y down) that a pen passes, on a sheet about 1 high. Variants of a digit are different
# habits.
GLYPHS: dict[int, tuple[tuple[Stroke, ...], ...]] = {
    0: (
        (
            (
                (0.52, 0.02), (0.22, 0.14), (0.08, 0.50), (0.20, 0.86), (0.45, 0.98),
                (0.72, 0.82), (0.80, 0.48), (0.68, 0.14), (0.48, 0.03),
            ),
        ),
    ),
    1: (
        (((0.42, 0.00), (0.40, 0.33), (0.38, 0.67), (0.36, 1.00)),),
        (((0.22, 0.22), (0.34, 0.12), (0.44, 0.00)), ((0.44, 0.00), (0.44, 0.50), (0.44, 1.00))),
    ),
    2: (
        (
            (
                (0.10, 0.22), (0.28, 0.04), (0.56, 0.04), (0.68, 0.24), (0.56, 0.50),
                (0.30, 0.76), (0.08, 0.97),
            ),
            ((0.08, 0.97), (0.40, 0.95), (0.78, 0.94)),
        ),
        (
            (
                (0.10, 0.24), (0.30, 0.03), (0.60, 0.10), (0.62, 0.38), (0.42, 0.68),
                (0.18, 0.92), (0.06, 0.84), (0.18, 0.74), (0.42, 0.86), (0.62, 0.98), (0.80, 0.90),
            ),
        ),
    ),
    3: (
        (
            (
                (0.10, 0.12), (0.34, 0.01), (0.60, 0.10), (0.60, 0.34), (0.30, 0.46),
            ),
            (
                (0.30, 0.46), (0.60, 0.54), (0.68, 0.76), (0.48, 0.97), (0.22, 0.98), (0.04, 0.86),
            ),
        ),
    ),
    4: (
        (
            ((0.16, 0.02), (0.12, 0.28), (0.10, 0.50)),
            ((0.10, 0.50), (0.36, 0.53), (0.70, 0.48)),
            ((0.66, 0.04), (0.62, 0.50), (0.58, 1.00)),
        ),
        (
            ((0.50, 0.00), (0.28, 0.34), (0.04, 0.62)),
            ((0.04, 0.62), (0.40, 0.62), (0.80, 0.60)),
            ((0.56, 0.34), (0.54, 0.66), (0.52, 1.00)),
        ),
    ),
    5: (
        (
            ((0.20, 0.04), (0.17, 0.22), (0.14, 0.42)),
            (
                (0.14, 0.42), (0.36, 0.36), (0.60, 0.48), (0.66, 0.72), (0.50, 0.94), (0.24, 0.99),
                (0.04, 0.90),
            ),
            ((0.20, 0.04), (0.46, 0.04), (0.74, 0.00)),
        ),
    ),
    6: (
        (
            (
                (0.58, 0.00), (0.32, 0.18), (0.14, 0.50), (0.14, 0.80), (0.34, 0.99), (0.58, 0.92),
                (0.66, 0.72), (0.50, 0.56), (0.30, 0.60), (0.17, 0.76),
            ),
        ),
    ),
    7: (
        (
            ((0.04, 0.08), (0.36, 0.07), (0.72, 0.04)),
            ((0.72, 0.04), (0.52, 0.40), (0.38, 0.70), (0.30, 1.00)),
        ),
        (
            ((0.04, 0.12), (0.08, 0.04), (0.40, 0.06), (0.72, 0.04)),
            ((0.72, 0.04), (0.56, 0.34), (0.40, 0.66), (0.28, 1.00)),
        ),
    ),
    8: (
        (
            (
                (0.62, 0.14), (0.42, 0.01), (0.20, 0.10), (0.20, 0.30), (0.40, 0.48), (0.60, 0.66),
                (0.62, 0.88), (0.40, 1.00), (0.16, 0.90), (0.16, 0.68), (0.36, 0.50), (0.58, 0.32),
                (0.62, 0.14),
            ),
        ),
    ),
    9: (
        (
            (
                (0.62, 0.20), (0.44, 0.03), (0.20, 0.12), (0.12, 0.34), (0.28, 0.48), (0.50, 0.40),
                (0.63, 0.20),
            ),
            ((0.63, 0.20), (0.60, 0.50), (0.54, 0.78), (0.46, 1.00)),
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Hand:
    """A way of writing.

    Attributes:
        slant: how far the top leans right, relative to the height.
        width: width of the pen, in pixels of a 28x28 image.
        pressure: how much the width varies along a stroke, 0..1.
        unsteady: how far points are off, relative to the height.
        stretch: width of the figures relative to the usual width.
        habit: which variant of a digit is written.
    """

    slant: float
    width: float
    pressure: float
    unsteady: float
    stretch: float
    habit: int


HANDS: tuple[Hand, ...] = (
    Hand(slant=0.00, width=2.4, pressure=0.15, unsteady=0.010, stretch=1.00, habit=0),
    Hand(slant=0.20, width=2.0, pressure=0.30, unsteady=0.020, stretch=0.95, habit=0),
    Hand(slant=-0.10, width=3.0, pressure=0.10, unsteady=0.015, stretch=1.05, habit=0),
    Hand(slant=0.10, width=2.6, pressure=0.25, unsteady=0.025, stretch=1.10, habit=1),
    Hand(slant=0.28, width=2.2, pressure=0.20, unsteady=0.012, stretch=0.90, habit=1),
)


def curve(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """A Catmull-Rom curve through points ``[K, 2]``, as short lines."""
    if len(points) < 2:
        return points
    padded = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    t = np.arange(_STEPS)[:, None] / _STEPS
    pieces = []
    for a, b, c, d in zip(padded, padded[1:], padded[2:], padded[3:], strict=False):
        pieces.append(
            0.5
            * (
                2 * b
                + (c - a) * t
                + (2 * a - 5 * b + 4 * c - d) * t**2
                + (3 * b - a - 3 * c + d) * t**3
            )
        )
    return np.concatenate([*pieces, points[-1:]])


def ink(
    lines: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], height: int, width: int
) -> NDArray[np.float64]:
    """Coverage ``[height, width]``, 0..1, of lines given as points ``[K, 2]`` (x, y in pixels) and
    pen widths ``[K]``.

    A pixel's value depends on how near the pen comes to its centre: 1 inside, fading over one pixel at the
    edge.
    """
    y, x = np.mgrid[0:height, 0:width] + 0.5
    centres = np.stack([x.ravel(), y.ravel()], axis=1)
    cover = np.zeros(len(centres))
    for points, widths in lines:
        for a, b, wa, wb in zip(points, points[1:], widths, widths[1:], strict=False):
            along = b - a
            length2 = max(float(along @ along), 1e-12)
            near = np.clip((centres - a) @ along / length2, 0.0, 1.0)
            offset = centres - a - near[:, None] * along
            distance = np.sqrt((offset**2).sum(axis=1))
            cover = np.maximum(cover, 0.5 * (wa + near * (wb - wa)) + 0.5 - distance)
    return np.clip(cover, 0.0, 1.0).reshape(height, width)


def digit(
    value: int,
    hand: Hand,
    rng: np.random.Generator,
    *,
    shift: tuple[float, float] = (0.0, 0.0),
    side: int = SIDE,
) -> NDArray[np.uint8]:
    """One digit, white on black, ``[side, side]``; ``shift`` in pixels of a 28x28 image."""
    variants = GLYPHS[value]
    strokes = variants[hand.habit % len(variants)]
    lines = []
    for stroke in strokes:
        points = np.array(stroke, dtype=np.float64)
        points += hand.unsteady * _bell(rng, points.shape)
        points[:, 0] = points[:, 0] * hand.stretch + hand.slant * (1.0 - points[:, 1])
        line = curve(points)
        # the pen presses hardest in the first half of a stroke and is lifted at its end
        s = np.linspace(0.0, 1.0, len(line))
        wobble = 1.0 + hand.pressure * (4.0 * s * (1.0 - s) - 0.5 - 0.5 * s)
        lines.append((line, hand.width * wobble))
    unit = side / SIDE
    everything = np.concatenate([line for line, _ in lines])
    low, high = everything.min(axis=0), everything.max(axis=0)
    scale = (BOX - hand.width) / float((high - low).max())
    placed = [((line - low) * scale * unit, widths * unit) for line, widths in lines]
    # Centre of mass, measured on a first drawing with a wide margin.
    room = 4.0 * unit
    first = ink([(line + room, widths) for line, widths in placed], side, side)
    y, x = np.mgrid[0:side, 0:side] + 0.5
    mass = np.array([(first * x).sum(), (first * y).sum()]) / first.sum() - room
    move = side / 2 - mass + np.array(shift) * unit
    cover = ink([(line + move, widths) for line, widths in placed], side, side)
    return np.rint(255.0 * cover).astype(np.uint8)


def overlapping(
    first: NDArray[np.uint8],
    second: NDArray[np.uint8],
    shift: tuple[int, int] = (4, 2),
    side: int = 36,
) -> NDArray[np.uint8]:
    """Two digits in one image, moved apart by twice ``shift`` (right, down), as in MultiMNIST."""
    result = np.zeros((side, side), np.uint8)
    for picture, sign in ((first, -1), (second, 1)):
        top = (side - picture.shape[0]) // 2 + sign * shift[1]
        left = (side - picture.shape[1]) // 2 + sign * shift[0]
        rows = slice(max(0, top), min(side, top + picture.shape[0]))
        columns = slice(max(0, left), min(side, left + picture.shape[1]))
        part = picture[
            rows.start - top : rows.stop - top, columns.start - left : columns.stop - left
        ]
        result[rows, columns] = np.maximum(result[rows, columns], part)
    return result


def on_paper(picture: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Dark ink on paper ``[H, W, 3]``: uneven light, grain, bluish ink."""
    height, width = picture.shape
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    light = 246.0 - 10.0 * x - 8.0 * y + 2.0 * _bell(rng, (height, width))
    paper = light[:, :, None] * np.array([1.0, 0.995, 0.97])
    pen = np.array([38.0, 40.0, 74.0])
    cover = picture[:, :, None] / 255.0
    mixed: NDArray[np.uint8] = np.rint(np.clip(paper * (1 - cover) + pen * cover, 0, 255)).astype(
        np.uint8
    )
    return mixed


def _bell(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Roughly normal deviates, as sums of uniform ones, which stay the same between numpy versions."""
    total: NDArray[np.float64] = rng.random((12, *shape)).sum(axis=0) - 6.0
    return total


def samples(seed: int = 7) -> dict[str, NDArray[np.uint8]]:
    """The images that come with the package, by file name."""
    rng = np.random.default_rng(seed)
    pictures = {
        f"digit-{value}.png": digit(value, HANDS[value % len(HANDS)], rng) for value in range(10)
    }
    large = digit(5, HANDS[1], rng, side=200)
    pictures["paper-5.png"] = on_paper(large, rng)
    two, four = digit(2, HANDS[0], rng), digit(4, HANDS[1], rng)
    pictures["overlapping-2-4.png"] = overlapping(two, four, shift=(3, 2), side=SIDE)
    return pictures


def cluttered(seed: int = 7) -> dict[str, NDArray[np.uint8]]:
    """The images in clutter that come with the package, by file name."""
    rng = np.random.default_rng(seed)
    return {
        f"digit-{value}.png": draw(digit(value, HANDS[value % len(HANDS)], rng), rng)[0]
        for value in (2, 3, 8)
    }


def many(each: int, seed: int) -> dict[str, NDArray[np.uint8]]:
    """Test images: every digit by every hand, ``each`` times, shifted by up to two pixels."""
    rng = np.random.default_rng(seed)
    pictures = {}
    for number in range(each):
        for value in GLYPHS:
            for h, hand in enumerate(HANDS):
                dx, dy = (math.floor(5 * v) - 2 for v in rng.random(2))
                pictures[f"digit-{value}-hand-{h}-{number}.png"] = digit(
                    value, hand, rng, shift=(dx, dy)
                )
    return pictures


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the images as PNG files."""
    from PIL import Image

    parser = argparse.ArgumentParser(prog="python -m tools.draw_samples", description=main.__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the images"
    )
    parser.add_argument(
        "--each",
        type=int,
        default=0,
        metavar="N",
        help="draw N of every digit by every hand instead",
    )
    parser.add_argument("--clutter", action="store_true", help="draw the digits in clutter instead")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    if options.each:
        pictures = many(options.each, options.seed)
    else:
        pictures = (cluttered if options.clutter else samples)(options.seed)
    try:
        make_folder(options.out)
        for name, picture in pictures.items():
            buffer = io.BytesIO()
            Image.fromarray(picture).save(buffer, "PNG", optimize=True)
            write_bytes(options.out / name, buffer.getvalue())
    except CapsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(f"wrote {len(pictures)} images to {options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
