"""How often the digit model finds nothing to see: test images, blanks, families of noise, and non-digits.

Usage: python -m benchmarks.typical_input DATA, where DATA holds mnist/ and, optionally, fashion-mnist/.
Prints the share of each family that is refused, and the cost of the criterion as the ratio of paired runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

import capsedge
from capsedge.datasets import read_split
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.session.session import Session
from capsedge.runtime.zoo import default_model

DRAWN = 1000  # pictures of a kind that is drawn
SIDE = 28
Pixels = NDArray[np.uint8]
Values = NDArray[Any]


def grey(values: Values) -> Pixels:
    """Round values to the nearest levels."""
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def blurred(images: Pixels, sigma: float, stretched: bool) -> Pixels:
    """Images blurred by a Gaussian, optionally stretched to the full range."""
    blur = ImageFilter.GaussianBlur(sigma)
    found = np.stack([np.asarray(Image.fromarray(image).filter(blur)) for image in images])
    if not stretched:
        return found
    low = found.min((1, 2), keepdims=True).astype(float)
    return grey((found - low) / (found.max((1, 2), keepdims=True) - low) * 255)


def enlarged(images: Pixels, resample: Image.Resampling) -> Pixels:
    """Images resized to the model's input size."""
    return np.stack([np.asarray(Image.fromarray(i).resize((SIDE, SIDE), resample)) for i in images])


def random_noise(count: int, rng: np.random.Generator) -> Iterator[tuple[str, Pixels]]:
    """Noise with independent pixels."""
    shape = (count, SIDE, SIDE)
    yield "uniform", grey(rng.integers(0, 256, shape))
    for mean in (0, 128, 255):
        for sigma in (10, 30, 60, 120):
            yield f"Gaussian, mean {mean}, sigma {sigma}", grey(rng.normal(mean, sigma, shape))
    for density in (0.005, 0.02, 0.05, 0.1, 0.2, 0.5):
        drawn = rng.random(shape) < density
        ends = 255 * rng.integers(0, 2, shape)
        yield f"salt on black, {density:.1%}", grey(255 * drawn)
        yield f"pepper on white, {density:.1%}", grey(255 - 255 * drawn)
        yield f"salt and pepper on grey, {density:.1%}", grey(np.where(drawn, ends, 128))
    for level in (0.5, 1, 2, 5, 10, 25):
        yield f"sensor noise on black, sigma {level}", grey(np.abs(rng.normal(0, level, shape)))
        yield f"shot noise on black, mean {level}", grey(rng.poisson(level, shape))
    yield "speckle", grey(128 * (1 + rng.normal(0, 0.4, shape)))
    yield "exponential", grey(rng.exponential(50, shape))
    yield "paper", grey(rng.normal(235, 6, shape))


def smooth_noise(count: int, rng: np.random.Generator) -> Iterator[tuple[str, Pixels]]:
    """Noise in which neighbouring pixels depend on each other."""
    white = grey(rng.integers(0, 256, (count, SIDE, SIDE)))
    for sigma in (0.7, 1, 1.5, 2, 3, 5):
        yield f"blurred, sigma {sigma}", blurred(white, sigma, False)
        yield f"blurred and stretched, sigma {sigma}", blurred(white, sigma, True)
    for sigma in (1, 2, 3):
        ink = blurred(white, sigma, True).astype(float)
        yield f"blobs, sigma {sigma}", grey(4 * (ink - 150))
        yield f"sparse blobs, sigma {sigma}", grey(6 * (ink - 190))
    for side in (2, 4, 7, 14, 20):
        small = grey(rng.integers(0, 256, (count, side, side)))
        yield f"{side}x{side}, enlarged", enlarged(small, Image.Resampling.BILINEAR)
        yield f"{side}x{side}, squares", enlarged(small, Image.Resampling.NEAREST)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(SIDE), np.fft.fftfreq(SIDE)))
    frequency[0, 0] = 1 / SIDE
    pink = np.fft.ifft2(np.fft.fft2(rng.normal(size=white.shape)) / frequency).real
    yield "1/f", grey(128 + 60 * pink / pink.std((1, 2), keepdims=True))
    patch = white[:, 4:-4, 4:-4]
    for sigma in (0.0, 1, 2):
        inner = blurred(patch, sigma, True) if sigma else patch
        yield (
            f"patch on black, blurred by {sigma:g}",
            np.pad(inner, ((0, 0), (4, 4), (4, 4))),
        )


def patterns(count: int, rng: np.random.Generator) -> Iterator[tuple[str, Pixels]]:
    """Blanks and regular patterns."""
    yield "constant", grey(np.linspace(0, 255, count)[:, None, None] + np.zeros((SIDE, SIDE)))
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2

    def drawn(low: float, high: float) -> Values:
        return rng.uniform(low, high, (count, 1, 1))

    for name, angle in (
        ("slanted", drawn(0, 2 * np.pi)),
        ("straight", np.pi / 2 * rng.integers(0, 4, (count, 1, 1))),
    ):
        along = np.cos(angle) * x + np.sin(angle) * y
        low, high = drawn(0, 255), drawn(0, 255)
        yield f"{name} gradient", grey(low + (high - low) * (along / 40 + 0.5))
        wave = np.sin(2 * np.pi * along / drawn(2, 20) + drawn(0, 7))
        yield f"{name} waves", grey(127.5 + 127.5 * wave)
        yield f"{name} stripes", grey(255 * (wave > 0))
        yield f"{name} edge", grey(255 * (along > drawn(-8, 8)))
    radius = np.hypot(x - drawn(-8, 8), y - drawn(-8, 8))
    yield "radial gradient", grey(255 - radius * drawn(6, 25))
    cell = rng.integers(1, 8, (count, 1, 1))
    yield "checkerboard", grey(255 * (((x + 14) // cell + (y + 14) // cell) % 2))


def others(data: Path, limit: int | None) -> Iterator[tuple[str, Pixels]]:
    """Pictures of something other than a digit, and inverted digits."""
    prep = Preprocessing(SIDE, SIDE, 1)
    fashion = data / "fashion-mnist" / "test_partial.npz"
    if fashion.is_file():
        yield "Fashion-MNIST", read_split(fashion, "test", prep, limit).images[..., 0]
    letters = [c for c in map(chr, range(65, 123)) if c.isalpha() and c not in "BDIOSZbdgilopqsz"]
    yield "printed letters", np.stack([letter(c, size) for c in letters for size in range(18, 25)])
    yield "inverted digits", 255 - read_split(data / "mnist", "test", prep, limit).images[..., 0]


def letter(character: str, size: int) -> Pixels:
    """A letter in Pillow's own font, white on black, centred."""
    image, font = Image.new("L", (SIDE, SIDE)), ImageFont.load_default(size)
    pen = ImageDraw.Draw(image)
    left, top, right, bottom = pen.textbbox((0, 0), character, font=font)
    at = (SIDE - left - right) / 2, (SIDE - top - bottom) / 2
    pen.text(at, character, fill=255, font=font)
    return np.asarray(image)


def refused(session: Session, images: Pixels) -> float:
    """The share of images in which there is nothing to see."""
    found = session.predict(images[..., None])
    return float(np.mean([bool(prediction.atypical) for prediction in found]))


def cost(session: Session, images: Pixels, rounds: int = 50) -> float:
    """The ratio of prediction time with the criterion to that without: minima of paired, interleaved runs."""
    metadata = session.metadata
    assert metadata is not None
    plain = replace(metadata, typical_input=None)
    best = {True: float("inf"), False: float("inf")}
    for _ in range(rounds):
        for judged in best:
            session.metadata = metadata if judged else plain
            start = time.perf_counter()
            session.predict(images[..., None])
            best[judged] = min(best[judged], time.perf_counter() - start)
    session.metadata = metadata
    return best[True] / best[False]


def main(say: Callable[[str], None] = print) -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="holds mnist/ and, optionally, fashion-mnist/")
    parser.add_argument(
        "--limit", type=int, help=f"images of each set (all of the data's, {DRAWN:,} drawn)"
    )
    options = parser.parse_args()
    data = options.data
    session = capsedge.load(default_model(), threads=1)
    prep = Preprocessing(SIDE, SIDE, 1)
    test = read_split(data / "mnist", "test", prep, options.limit).images[..., 0]
    say(f"{'MNIST test images':<40} {refused(session, test):8.2%} of {len(test)}")
    for families in (random_noise, smooth_noise, patterns):
        for name, images in families(options.limit or DRAWN, np.random.default_rng(1)):
            say(f"{name:<40} {refused(session, images):8.2%}")
    for name, images in others(data, options.limit):
        say(f"{name:<40} {refused(session, images):8.2%} of {len(images)}")
    say(f"time with over without the criterion, batch 64: {cost(session, test[:64]):.2f}")


if __name__ == "__main__":
    main()
