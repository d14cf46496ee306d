"""The package makes the same input of an image as Python, to the last bit."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.images.preprocessing import prepare
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.typical_input import measure
from capsedge.spec.fields import LEAST_SIDE
from capsedge.spec.vocabularies import RESIZE_RULES
from tests.native.test_libcapsedge_preprocessing import random_pixels, random_preprocessing

from .package import Package, Refused
from .pictures import RULES, written


def in_typescript(
    web: Package, pixels: NDArray[Any], preprocessing: Preprocessing, invert: bool
) -> tuple[bytes, dict[str, Any]]:
    """The input's bytes, and its measurements."""
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    pixels = pixels.astype(np.uint8) * 255 if pixels.dtype == np.bool_ else pixels
    height, width, channels = pixels.shape
    answer, data = web.ask(
        "prepare", np.ascontiguousarray(pixels).tobytes(), kind=str(pixels.dtype), invert=invert,
        preprocessing=json.dumps(asdict(preprocessing)), height=height, width=width, channels=channels,
    )  # fmt: skip
    return data, answer["measured"]


def compare(web: Package, pixels: NDArray[Any], preprocessing: Preprocessing, invert: bool) -> None:
    wanted = prepare(pixels, preprocessing, invert)
    found, measured = in_typescript(web, pixels, preprocessing, invert)
    assert found == wanted.astype("<f4").tobytes(), (
        pixels.shape,
        pixels.dtype,
        preprocessing,
        invert,
    )
    if min(preprocessing.height, preprocessing.width) < LEAST_SIDE:
        return
    with np.errstate(all="ignore"):
        of_python = asdict(measure(wanted, preprocessing.layout))
    names = {"frameLevel": "frame_level", "frameContrast": "frame_contrast"}
    for name, value in measured.items():  # JSON has no NaN
        same = of_python[names.get(name, name)]
        assert (value == same) or (value is None and not np.isfinite(same)), name


@pytest.mark.parametrize("rule", RESIZE_RULES)
def test_random_images(web: Package, rule: str) -> None:
    """Of every type, layout and rule; sides from 1 to 120, a few to 700."""
    rng = np.random.default_rng([RESIZE_RULES.index(rule), 9])
    for number in range(75):
        preprocessing = random_preprocessing(rng, rule, 40)
        largest = 700 if number % 25 == 24 else 120 if number % 2 else 12
        height, width = (int(v) for v in rng.integers(1, largest + 1, 2))
        pixels = random_pixels(rng, preprocessing.channels, height, width)
        compare(web, pixels, preprocessing, bool(rng.random() < 0.5))


@pytest.mark.sample(6)
@pytest.mark.parametrize("rule", RESIZE_RULES)
@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (3000, 1), (28, 28), (28, 4000), (3000, 28)])
def test_extreme_sizes(web: Package, rule: str, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    for target in ((28, 28), (1, 1), (32, 48)):
        preprocessing = Preprocessing(*target, 1, mean=(0.13,), std=(0.31,), resize=rule)
        compare(web, rng.integers(0, 256, (*size, 1)).astype(np.uint8), preprocessing, False)


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_pictures(web: Package, tmp_path: Path, count: int) -> None:
    """PNG files of odd sizes, of grey, RGB and palettes, given as a browser gives them: RGBA."""
    from PIL import Image

    for number, path in enumerate(written(tmp_path, count)):
        preprocessing = RULES[number % len(RULES)]
        wanted = prepare(path, preprocessing)
        rgba = np.asarray(Image.open(path).convert("RGBA"))
        assert in_typescript(web, rgba, preprocessing, False)[0] == wanted.tobytes(), path.name


@pytest.mark.parametrize(
    ("pixels", "channels", "message"),
    [
        (np.zeros((4, 4, 5), np.uint8), 5, "has 5 channels"),
        (np.zeros((4, 4, 1), np.uint8), 3, "has 16 values"),
        (np.zeros((40000, 1, 1), np.uint8), 1, "40,000 pixels; the limit"),
        (np.full((4, 4, 1), 1.5, np.float32), 1, "outside 0 to 1"),
        (np.full((4, 4, 1), -0.5, np.float32), 1, "outside 0 to 1"),
        (np.full((4, 4, 1), np.nan, np.float32), 1, "outside 0 to 1"),
    ],
)
def test_what_is_refused(web: Package, pixels: NDArray[Any], channels: int, message: str) -> None:
    preprocessing = Preprocessing(4, 4, 1)
    if channels == pixels.shape[2]:
        with pytest.raises(UsageError):
            prepare(pixels, preprocessing)
    height, width = pixels.shape[:2]
    with pytest.raises(Refused, match=message) as error:
        web.ask(
            "prepare", pixels.tobytes(), kind=str(pixels.dtype),
            preprocessing=json.dumps(asdict(preprocessing)), width=width, height=height,
            channels=channels, invert=False,
        )  # fmt: skip
    assert error.value.code in ("input", "limit")


def test_half_precision_is_numpys(web: Package) -> None:
    """Every float16, and values between, at and beyond them."""
    every = np.arange(2**16, dtype=np.uint16)
    _, data = web.ask("fromHalf", every.tobytes())
    wanted = every.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(np.frombuffer(data, "<f4"), wanted)
    finite = wanted[np.isfinite(wanted)]
    middle = np.sort(finite)[:-1] + np.diff(np.sort(finite)) / 2
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [finite, middle, np.nextafter(middle, 9), np.nextafter(middle, -9),
         np.array([65504, 65519.996, 65520, 1e9, -1e9, np.inf, -np.inf, -0.0], np.float32),
         rng.normal(0, 1, 20000) * 10.0 ** rng.integers(-9, 6, 20000)]
    ).astype(np.float32)  # fmt: skip
    _, data = web.ask("toHalf", values.tobytes())
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            np.frombuffer(data, np.uint16), values.astype(np.float16).view(np.uint16)
        )
