"""Pictures as files, for the package in Node.js and in a browser."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.metadata.metadata import Preprocessing

RULES = (
    Preprocessing(28, 28, 1),
    Preprocessing(32, 24, 3, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), resize="pad"),
    Preprocessing(17, 40, 1, mean=(0.1307,), std=(0.3081,), resize="crop"),
    Preprocessing(20, 20, 3, resize="center", layout="NHWC"),
    Preprocessing(28, 28, 1, per_image="standardize"),
)
KINDS = ("L", "RGB", "P")


def written(folder: Path, count: int, suffix: str = "png") -> Iterator[Path]:
    """PNG or JPEG files of odd sizes: grey, RGB, and with a palette."""
    from PIL import Image

    rng = np.random.default_rng(count)
    for number in range(count):
        kinds = KINDS if suffix == "png" else KINDS[:2]
        kind = kinds[number % len(kinds)]
        height, width = (int(side) for side in rng.integers(1, 161, 2))
        image = Image.fromarray(
            smooth(rng, height, width) if number % 2 else noise(rng, height, width)
        )
        path = folder / f"{number:03}-{kind}-{width}x{height}.{suffix}"
        options = {"quality": int(rng.integers(60, 100))} if suffix == "jpg" else {}
        image.convert(kind).save(path, **options)
        yield path


def noise(rng: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    """Independent pixels ``[H, W, 3]``."""
    return rng.integers(0, 256, (height, width, 3)).astype(np.uint8)


def smooth(rng: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    """Waves of each colour ``[H, W, 3]``, as photographs are more like."""
    y, x = np.mgrid[:height, :width] / 40.0
    phases = rng.uniform(0, 6, (3, 3))
    planes = [127 + 120 * np.sin(a * y + b * x + c) for a, b, c in phases]
    return np.stack(planes, axis=-1).astype(np.uint8)


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


ODD = (
    "alpha", "grey16", "bits", "transparent", "profile", "gamma", "primaries", "turned", "turned-png", "cmyk",
    "progressive",
)  # fmt: skip
_HEADER = 33  # bytes of a PNG file's signature and header
_WIDE = (31270, 32900, 70800, 29200, 17000, 79700, 13100, 4600)  # primaries of ITU-R BT.2020


def odd_pictures(folder: Path) -> Iterator[Path]:
    """Pictures with all that 8-bit grey, RGB and palettes do not have, in the order of `ODD`."""
    from PIL import Image, ImageCms

    rng = np.random.default_rng(0)
    rgb = Image.fromarray(noise(rng, 40, 50))
    blocks = rgb.resize((400, 320), Image.Resampling.NEAREST)
    turned = Image.Exif()
    turned[0x112] = 6
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    alpha, deep = rng.integers(0, 256, (40, 50, 4)), rng.integers(0, 65536, (40, 50))
    made = {
        "alpha": (Image.fromarray(alpha.astype(np.uint8)), {}),
        "grey16": (Image.fromarray(deep.astype(np.uint16)), {}),
        "bits": (rgb.convert("1"), {}),
        "transparent": (rgb.convert("P"), {"transparency": 3}),
        "profile": (rgb, {"icc_profile": profile}),
        "gamma": (rgb, {}),
        "primaries": (rgb, {}),
        "turned": (blocks, {"exif": turned}),
        "turned-png": (rgb, {"exif": turned}),
        "cmyk": (blocks.convert("CMYK"), {}),
        "progressive": (blocks, {"progressive": True}),
    }
    chunks = {
        "gamma": chunk(b"gAMA", struct.pack(">I", 100_000)),
        "primaries": chunk(b"cHRM", struct.pack(">8I", *_WIDE)),
    }
    for name in ODD:
        image, options = made[name]
        path = folder / f"{name}.{'jpg' if image.size == blocks.size else 'png'}"
        image.save(path, **options)
        data = path.read_bytes()
        path.write_bytes(data[:_HEADER] + chunks.get(name, b"") + data[_HEADER:])
        yield path
