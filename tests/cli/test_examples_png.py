"""Image files in the examples: what Pillow reads, PNG with libpng, and no memory for a lie."""

from __future__ import annotations

import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsedge.runtime.zoo import default_model
from tests.cli.examples import (
    config,
    infer,
    libpng_flags,
    needs_library,
    programs,
    run,
    tool,
    without_libpng,
)

__all__ = ["programs", "without_libpng"]  # fixtures

pytestmark = needs_library


ASKED = ("--top", "3")  # classes are printed even where there is nothing to see
PNG_KINDS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}


def plain_files(folder: Path) -> list[Path]:
    """8-bit PNG files of each colour type, with all filters and block types: noise, runs, no compression."""
    rng = np.random.default_rng(0)
    files = []
    for mode, channels in PNG_KINDS.items():
        for kind in range(3):
            noise = rng.integers(0, 256, (37, 41, channels)).astype(np.uint8)
            smooth = np.add.outer(np.arange(37) * 3, np.arange(41) * 2)[..., None] % 256
            values = noise if kind == 0 else np.repeat(smooth, channels, 2).astype(np.uint8)
            files.append(folder / f"{mode}{kind}.png")
            Image.fromarray(values.squeeze(), mode).save(files[-1], compress_level=(6, 9, 0)[kind])
    return files


def other_files(folder: Path) -> list[Path]:
    """What only a whole decoder reads: few bits, palettes, transparent colours, 16 bits."""
    rng = np.random.default_rng(1)
    grey = Image.fromarray(rng.integers(0, 256, (37, 41)).astype(np.uint8))
    colours = Image.fromarray(rng.integers(0, 256, (37, 41, 3)).astype(np.uint8))
    deep = rng.integers(0, 65536, (37, 41)).astype(np.uint16)
    images = {
        "bits1": (grey.convert("1"), {}),
        "palette2": (colours.quantize(4), {"bits": 2}),
        "palette8": (colours.quantize(200), {}),
        "transparent-palette": (colours.quantize(20), {"transparency": bytes(range(0, 200, 10))}),
        "transparent-grey": (grey, {"transparency": 7}),
        "transparent-rgb": (colours, {"transparency": colours.getpixel((3, 5))}),
        "grey16": (Image.fromarray(deep), {}),
    }
    for name, (image, options) in images.items():
        image.save(folder / f"{name}.png", **options)
    files = [folder / f"{name}.png" for name in images]
    for name, colour, values in (
        ("rgb16", 2, np.stack([deep] * 3, -1)),
        ("grey-alpha16", 4, np.stack([deep, deep[::-1]], -1)),
    ):
        files.append(folder / f"{name}.png")
        files[-1].write_bytes(png(41, 37, 16, colour, values.astype(">u2").tobytes()))
    files.append(folder / "grey4.png")
    files[-1].write_bytes(png(42, 37, 4, 0, rng.integers(0, 256, (37, 21), np.uint8).tobytes()))
    return files


def png(
    width: int, height: int, depth: int, colour: int, pixels: bytes, more: bytes = b""
) -> bytes:
    """A PNG file of rows without a filter; `more` is put before the pixels."""
    row = len(pixels) // height
    rows = b"".join(b"\0" + pixels[y * row : (y + 1) * row] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header) + more + chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + parts + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pnm(kind: bytes, width: int, height: int, white: int, data: bytes) -> bytes:
    """A PGM or PPM file, with a comment in its header."""
    return kind + b"\n# a comment 12\n%d\t%d\n%d\n" % (width, height, white) + data


def test_files_without_a_decoder(without_libpng: Path, programs: Path, tmp_path: Path) -> None:
    """PGM and PPM: the answers are those for the same pixels in a PNG file."""
    rng = np.random.default_rng(2)
    grey, colours = (rng.integers(0, 256, (37, 41, n)).astype(np.uint8) for n in (1, 3))
    deep = rng.integers(0, 65536, (37, 41)).astype(np.uint16)
    files = {
        "grey.pgm": (pnm(b"P5", 41, 37, 255, grey.tobytes()), Image.fromarray(grey[..., 0])),
        "colours.ppm": (pnm(b"P6", 41, 37, 255, colours.tobytes()), Image.fromarray(colours)),
        "deep.pgm": (
            pnm(b"P5", 41, 37, 65535, deep.astype(">u2").tobytes()),
            Image.fromarray(deep),
        ),
    }
    for name, (data, image) in files.items():
        (tmp_path / name).write_bytes(data)
        image.save(tmp_path / f"{name}.png")
    plain = [tmp_path / name for name in files]
    packed = [tmp_path / f"{name}.png" for name in files]
    wanted = run(programs / "classify_c", default_model(), *packed).replace(".png:", ":")
    for folder in (without_libpng, programs):
        assert run(folder / "classify_c", default_model(), *plain) == wanted
        assert "deep.pgm" in run(folder / "classify", *ASKED, default_model(), *plain)


def test_damaged_files_without_a_decoder(without_libpng: Path, tmp_path: Path) -> None:
    pixels = bytes(28 * 28)
    damaged, large = "it is damaged", "it is too large"
    shades = "its white is neither 255 nor, in grey, 65535"
    files = (
        (pnm(b"P5", 28, 28, 255, pixels[:-1]), damaged),
        (pnm(b"P5", 0, 28, 255, pixels), damaged),
        (b"P5 28", damaged),
        (b"P5 # never ends", damaged),
        (b"P5 28x28 255 " + pixels, damaged),
        (b"P5 -28 28 255 " + pixels, damaged),
        (pnm(b"P5", 28, 28, 15, pixels), shades),
        (pnm(b"P6", 28, 28, 65535, pixels * 6), shades),
        (pnm(b"P5", 30000, 30000, 255, pixels), large),
        (pnm(b"P6", 1 << 20, 1, 255, pixels), large),
        (pnm(b"P5", (1 << 32) + 1, 1, 255, pixels), large),
        (png(28, 28, 8, 0, pixels), "without libpng, only PGM and PPM files (P5, P6) can be read"),
        (b"", "without libpng, only PGM and PPM files (P5, P6) can be read"),
    )
    paths = [tmp_path / str(number) for number in range(len(files))]
    for path, (data, _) in zip(paths, files, strict=True):
        path.write_bytes(data)
    done = limited(without_libpng / "classify", default_model(), *paths)
    assert done.returncode == 2
    wanted = [f"error: {path}: {why}" for path, (_, why) in zip(paths, files, strict=True)]
    assert done.stderr.splitlines() == wanted


@pytest.mark.thorough
def test_libpng_reads_what_pillow_reads(programs: Path, tmp_path: Path) -> None:
    files = plain_files(tmp_path) + other_files(tmp_path)
    assert run(programs / "classify", *ASKED, default_model(), *files) == infer(*ASKED, *files)
    lines = run(programs / "classify_c", default_model(), *files).splitlines()
    assert [line.split(":")[0] for line in lines] == list(map(str, files))


@pytest.mark.thorough
def test_interlaced_files_are_read(programs: Path, tmp_path: Path) -> None:
    """Adam7 of one pass: an image of one pixel is stored the same way, with another header."""
    one = png(1, 1, 8, 0, b"\xc8")
    (tmp_path / "plain.png").write_bytes(one)
    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 1)
    (tmp_path / "interlaced.png").write_bytes(one.replace(one[8:33], chunk(b"IHDR", header)))
    files = [tmp_path / "plain.png", tmp_path / "interlaced.png"]
    assert run(programs / "classify", *ASKED, default_model(), *files) == infer(*ASKED, *files)


def bombs(folder: Path) -> list[Path]:
    """Files of some kilobytes that state huge images, or unpack to huge texts."""
    rows = zlib.compress(bytes(1 << 20))
    files = {}
    for width, height in ((30000, 30000), (1 << 20, 1), ((1 << 31) - 1, (1 << 31) - 1)):
        header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
        files[f"{width}.png"] = chunk(b"IHDR", header) + chunk(b"IDAT", rows)
    for name, data in files.items():
        (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n" + data + chunk(b"IEND", b""))
    return [folder / name for name in files]


@pytest.mark.thorough
def test_image_bombs_are_refused(programs: Path, tmp_path: Path) -> None:
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(1 << 28)))
    wordy = tmp_path / "text.png"
    wordy.write_bytes(png(28, 28, 8, 0, bytes(28 * 28), text))
    for path in bombs(tmp_path):
        for program in ("classify", "classify_c"):
            done = limited(programs / program, default_model(), path)
            assert done.returncode == 2, done.stderr
            assert "it is too large" in done.stderr or "it is damaged" in done.stderr
    done = limited(programs / "classify_c", default_model(), wordy)
    assert done.returncode == 0, done.stderr  # the text is not unpacked


def limited(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a program that may ask for 1 GiB of address space more than it needs for the digit model."""
    return subprocess.run(
        ["bash", "-c", 'ulimit -v 1500000; exec "$@"', "-", *map(str, command)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize("libpng", [True, False])
def test_cmake_uses_libpng_where_it_is_there(libpng: bool, tmp_path: Path) -> None:
    cmake, build = tool("cmake", "cmake"), tmp_path / "build"
    libpng_flags()
    run(cmake, "-S", config("examples"), "-B", build, f"-Dcapsedge_DIR={config('cmakedir')}",
        f"-DCMAKE_DISABLE_FIND_PACKAGE_PNG={'OFF' if libpng else 'ON'}")  # fmt: skip
    run(cmake, "--build", build, "--target", "classify_c")
    image = tmp_path / "image.png"
    Image.new("1", (28, 28)).save(image)
    words = list(map(str, (build / "classify_c", default_model(), image)))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if libpng else 2), done.stderr
    assert ("without libpng" in done.stderr) == (not libpng)
