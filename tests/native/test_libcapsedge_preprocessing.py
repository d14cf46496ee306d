"""C++ makes the same input of an image as Python, to the last bit."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.images.preprocessing import prepare
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.spec.vocabularies import LAYOUTS, ORDERS, PER_IMAGE, RESIZE_RULES

from . import libcapsedge
from .builds import NATIVE, ROOT

pytestmark = pytest.mark.skipif(
    libcapsedge.library_path() is None,
    reason="libcapsedge is not built: pip install -e . with a C++ compiler",
)


def random_preprocessing(rng: np.random.Generator, rule: str, largest: int) -> Preprocessing:
    height, width = (int(v) for v in rng.integers(1, largest + 1, 2))
    channels = int(rng.choice([1, 1, 3, 3, 2, 5]))
    per_image = str(rng.choice(["", "", *PER_IMAGE]))
    scale = float(rng.choice([1 / 255, 1.0, 0.017]))
    layout = str(rng.choice(LAYOUTS))
    order = str(rng.choice(ORDERS)) if channels == 3 else "RGB"
    if per_image == "standardize":
        return Preprocessing(
            height, width, channels,
            scale=scale, resize=rule, per_image=per_image, layout=layout, order=order,
        )  # fmt: skip
    many = rng.random() < 0.5
    return Preprocessing(
        height,
        width,
        channels,
        scale=scale,
        mean=tuple(rng.normal(0, 0.3, channels if many else 1)),
        std=tuple(rng.uniform(0.1, 2, channels if many else 1)),
        resize=rule,
        per_image=per_image,
        layout=layout,
        order=order,
    )


def random_pixels(
    rng: np.random.Generator, channels: int, height: int, width: int
) -> NDArray[np.generic]:
    """Of any type, with rows that may have gaps or lie upside down."""
    if channels in (1, 3):
        channels = int(rng.choice([1, 2, 3, 4]))
    gap = int(rng.integers(0, 3))
    shape = (height, width + gap, channels)
    kind = str(rng.choice(["uint8", "uint8", "uint16", "bool", "float32"]))
    if kind == "float32":
        pixels = rng.random(shape, np.float32)
    elif kind == "bool":
        pixels = rng.random(shape) < 0.5
    else:
        pixels = rng.integers(0, np.iinfo(kind).max + 1, shape).astype(kind)
    pixels = pixels[:, :width]
    return pixels[::-1] if rng.random() < 0.3 else pixels


def compare(pixels: NDArray[np.generic], preprocessing: Preprocessing, invert: bool) -> None:
    wanted = prepare(pixels, preprocessing, invert)
    found = libcapsedge.prepare(pixels, preprocessing, invert)
    assert found.tobytes() == wanted.tobytes(), (pixels.shape, pixels.dtype, preprocessing, invert)


@pytest.mark.sample(5)
@pytest.mark.parametrize("rule", RESIZE_RULES)
@pytest.mark.parametrize("part", range(5))
def test_a_thousand_random_images(rule: str, part: int) -> None:
    """Fifty images a case, twenty cases; sides from 1 to 120, a few to 700."""
    rng = np.random.default_rng([RESIZE_RULES.index(rule), part])
    for number in range(50):
        preprocessing = random_preprocessing(rng, rule, 40)
        largest = 700 if number % 25 == 24 else 120 if number % 2 else 12
        height, width = (int(v) for v in rng.integers(1, largest + 1, 2))
        pixels = random_pixels(rng, preprocessing.channels, height, width)
        compare(pixels, preprocessing, bool(rng.random() < 0.5))


@pytest.mark.sample(6)
@pytest.mark.parametrize("rule", RESIZE_RULES)
@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (3000, 1), (28, 28), (28, 4000), (3000, 28)])
def test_extreme_sizes(rule: str, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    for target in ((28, 28), (1, 1), (32, 48)):
        preprocessing = Preprocessing(*target, 1, mean=(0.13,), std=(0.31,), resize=rule)
        compare(rng.integers(0, 256, (*size, 1)).astype(np.uint8), preprocessing, False)


@pytest.mark.sample(4)
@pytest.mark.parametrize("rule", RESIZE_RULES)
@pytest.mark.parametrize(
    ("height", "width", "channels", "kind"), [(3000, 4000, 3, np.uint8), (4000, 3000, 1, np.uint16)]
)
def test_photographs(rule: str, height: int, width: int, channels: int, kind: type) -> None:
    rng = np.random.default_rng(channels)
    pixels = rng.integers(0, 256, (height, width, channels), np.uint8).astype(kind)
    compare(pixels, Preprocessing(48, 32, channels, resize=rule), True)


@pytest.mark.parametrize("target", [1000, 32768])
def test_large_targets(target: int) -> None:
    """Weights of the longest axis are exact integers before the one division."""
    pixels = np.random.default_rng(target).integers(0, 256, (3, 777, 1)).astype(np.uint8)
    compare(pixels, Preprocessing(2, target, 1), False)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.zeros((4, 4, 5), np.uint8), "has 5 channels"),
        (np.zeros((4, 4, 1), np.int32), "has the type 6"),
        (np.zeros((40000, 1, 1), np.uint8), "too large"),
        (np.full((4, 4, 1), 1.5, np.float32), "outside 0 to 1"),
        (np.full((4, 4, 1), -0.5, np.float32), "outside 0 to 1"),
        (np.full((4, 4, 1), np.nan, np.float32), "outside 0 to 1"),
    ],
)
def test_what_python_refuses_is_refused(pixels: NDArray[np.generic], message: str) -> None:
    preprocessing = Preprocessing(4, 4, 1)
    with pytest.raises(UsageError):
        prepare(pixels, preprocessing)
    with pytest.raises(libcapsedge.Failed, match=message) as failed:
        libcapsedge.prepare(pixels, preprocessing)
    assert failed.value.code == libcapsedge.USAGE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"height": 0}, "not positive"),
        ({"width": 40000}, "pixels a side"),
        ({"mean": (0.0, 0.0)}, "mean has 2 values for 1 channels"),
        ({"std": (0.0,)}, "std not zero"),
        ({"scale": float("nan")}, "finite numbers"),
        ({"resize": "squeeze"}, "none of stretch, pad, crop, center"),
    ],
)
def test_wrong_preprocessing(changes: dict[str, object], message: str) -> None:
    preprocessing = Preprocessing(4, 4, 1)
    for name, value in changes.items():
        object.__setattr__(preprocessing, name, value)
    with pytest.raises(libcapsedge.Failed, match=message):
        libcapsedge.prepare(np.zeros((4, 4, 1), np.uint8), preprocessing)


def test_strides_that_do_not_hold_a_row() -> None:
    image = libcapsedge.image_of(np.zeros((4, 4, 3), np.uint8))
    image.stride = 11
    session_free = Preprocessing(4, 4, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(libcapsedge, "image_of", lambda _: image)
        with pytest.raises(libcapsedge.Failed, match="stride of 11 bytes"):
            libcapsedge.prepare(np.zeros((4, 4, 3), np.uint8), session_free)


@pytest.mark.thorough
def test_frames_of_a_camera_as_the_guide_shows(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    guide = (ROOT / "docs" / "how-to" / "libcapsedge.md").read_text(encoding="utf-8")
    block = re.search(r"```c\n(static capsedge_image nv12.*?)```", guide, re.DOTALL)
    assert block is not None
    source = block[1].replace("static ", "")
    (tmp_path / "frames.c").write_text(f"#include <capsedge.h>\n{source}")
    include = NATIVE / "libcapsedge" / "include"
    subprocess.run(
        [compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{include}",
         tmp_path / "frames.c", "-o", tmp_path / "frames.so"],
        check=True,
    )  # fmt: skip
    frames = ctypes.CDLL(str(tmp_path / "frames.so"))
    rng, height, width, gap = np.random.default_rng(0), 6, 8, 5
    grey = rng.integers(0, 256, (height, width, 1), np.uint8)
    colours = rng.integers(0, 256, (height, width, 3), np.uint8)
    planes = rng.integers(0, 256, (height * 3 // 2, width + gap), np.uint8)
    planes[:height, :width] = grey[..., 0]
    pairs = rng.integers(0, 256, (height, 2 * width + gap), np.uint8)
    pairs[:, : 2 * width : 2] = grey[..., 0]
    rows = rng.integers(0, 256, (height, 3 * width + gap), np.uint8)
    rows[:, : 3 * width] = colours[::-1].reshape(height, -1)
    room = np.zeros((height, width), np.uint8)
    for name, frame, more, wanted in (
        ("nv12", planes, (), grey),
        ("yuyv", pairs, (ctypes.c_void_p(room.ctypes.data),), grey),
        ("bottom_up", rows, (), colours),
    ):
        function = getattr(frames, name)
        function.restype = libcapsedge.Image
        image = function(
            ctypes.c_void_p(frame.ctypes.data), height, width, ctypes.c_int64(frame.shape[1]), *more
        )
        into = Preprocessing(5, 7, wanted.shape[2])
        np.testing.assert_array_equal(libcapsedge.prepare(image, into), prepare(wanted, into))
