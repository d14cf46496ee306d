"""GIF, BMP, TIFF and WebP: what they hold, the limits that PNG and JPEG have, and hostile files."""

from __future__ import annotations

import base64
import contextlib
import io
import random
import resource
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from capsedge.errors import UsageError
from capsedge.runtime.images import headers
from capsedge.runtime.images.decoding import decode
from capsedge.spec import limits

RNG = np.random.default_rng(36)
COLOUR = RNG.integers(0, 256, (13, 9, 3), np.uint8)
ALPHA = RNG.integers(0, 256, (13, 9, 4), np.uint8)
GREY = COLOUR[:, :, :1]
GREY16 = RNG.integers(0, 2**16, (13, 9, 1), np.uint16)
INK = np.where(GREY > 128, 255, 0).astype(np.uint8)


def encoded(pixels: np.ndarray, kind: str, mode: str | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    array = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    Image.fromarray(array, mode).save(file, kind, **options)
    return file.getvalue()


def two(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    """An image of two frames or pages."""
    array = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    other = Image.fromarray(255 - array)
    return encoded(pixels, kind, save_all=True, append_images=[other], **options)


def as_colour(pixels: np.ndarray) -> np.ndarray:
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels


def tiff(*tags: tuple[int, int, int, int], big: bool = False, tail: bytes = b"") -> bytes:
    """A TIFF file of one page with tags: number, type, count, value or offset."""
    if big:
        entries = b"".join(struct.pack("<HHQQ", *tag) for tag in tags)
        head = struct.pack("<2sHHHQQ", b"II", 43, 8, 0, 16, len(tags))
        return head + entries + struct.pack("<Q", 0) + tail
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + tail


def gif(width: int, height: int, frame: tuple[int, int], before: bytes = b"") -> bytes:
    control = b"!\xf9\x04\x08\0\0\0\0"  # disposal 2: Pillow takes memory for the frame
    place = struct.pack("<4HB", 0, 0, *frame, 0)
    return (
        b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0" + before + control + b"," + place
    )


def webp(kind: bytes, content: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def test_what_each_format_holds() -> None:
    tiffs = ("tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "packbits", None)
    cases = {
        "GIF": (encoded(GREY, "GIF"), GREY),
        "GIF, the first frame": (two(GREY, "GIF"), GREY),
        "BMP": (encoded(COLOUR, "BMP"), COLOUR),
        "BMP, grey": (encoded(GREY, "BMP"), GREY),
        "BMP, 1 bit": (encoded(INK > 0, "BMP"), INK),
        **{f"TIFF {c}": (encoded(COLOUR, "TIFF", compression=c), COLOUR) for c in tiffs},
        "TIFF, alpha": (encoded(ALPHA, "TIFF"), ALPHA),
        "TIFF, 16 bits": (encoded(GREY16, "TIFF"), GREY16),
        "TIFF, 16 bits, LZW": (encoded(GREY16, "TIFF", compression="tiff_lzw"), GREY16),
        "TIFF, 32 bits within 16": (encoded(GREY16.astype(np.int32), "TIFF"), GREY16),
        "TIFF, fax": (encoded(INK > 0, "TIFF", compression="group4"), INK),
        "TIFF, the first page": (two(GREY, "TIFF"), GREY),
        "BigTIFF": (encoded(COLOUR, "TIFF", big_tiff=True), COLOUR),
        "WebP, lossless": (encoded(COLOUR, "WEBP", lossless=True), COLOUR),
        "WebP, alpha": (encoded(ALPHA, "WEBP", lossless=True, exact=True), ALPHA),
        "WebP, the first frame": (two(COLOUR, "WEBP", lossless=True), COLOUR),
    }
    failures = {}
    for name, (data, wanted) in cases.items():
        found = decode(data, name)
        same = found.dtype == wanted.dtype
        if found.shape[2] != wanted.shape[2]:  # a palette is colour, an animation has alpha
            wanted, found = as_colour(wanted), found[:, :, :3]
        if not (same and np.array_equal(found, wanted)):
            failures[name] = (found.dtype, found.shape)
    assert failures == {}


def test_lossy_and_converted_images_are_close() -> None:
    smooth = np.linspace(0, 255, 32 * 32).reshape(32, 32, 1).astype(np.uint8).repeat(3, axis=2)
    cases = {
        "WebP": encoded(smooth, "WEBP", quality=95),
        "TIFF, JPEG": encoded(smooth, "TIFF", compression="jpeg"),
        "TIFF, YCbCr": _converted(smooth, "YCbCr"),
        "TIFF, CMYK": _converted(smooth, "CMYK"),
    }
    far = {n: np.abs(decode(d, n).astype(int) - smooth).max() for n, d in cases.items()}
    assert {n: v for n, v in far.items() if v > 8} == {}


def _converted(pixels: np.ndarray, mode: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "TIFF")
    return file.getvalue()


def test_white_is_zero() -> None:
    """Photometric interpretation 0: Pillow inverts 8 bits, but not 16."""
    for pixels, most in (GREY, 255), (GREY16, 65535):
        data = bytearray(encoded(pixels, "TIFF"))
        at = struct.unpack_from("<I", data, 4)[0] + 2
        while struct.unpack_from("<H", data, at)[0] != 262:
            at += 12
        struct.pack_into("<H", data, at + 8, 0)
        assert np.array_equal(decode(bytes(data), "x"), most - pixels)


@pytest.mark.parametrize("kind", ["TIFF", "WEBP"])
def test_orientations_are_those_of_png(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        png = decode(encoded(COLOUR, "PNG", exif=exif), "x")
        found = decode(encoded(COLOUR, kind, exif=exif, **options), "x")
        assert np.array_equal(found, png), orientation


def test_what_is_not_read_says_so() -> None:
    size = ((256, 3, 1, 8), (257, 3, 1, 8))
    cases = {
        "floating-point": encoded(GREY.astype(np.float32), "TIFF"),
        "grey levels outside": encoded(GREY16.astype(np.int32) * 2**15, "TIFF"),
        "compression 34925": encoded(COLOUR, "TIFF", compression="lzma"),
        "200 channels": tiff(*size, (277, 3, 1, 200)),
        "it is a text file": b"%!PS-Adobe-3.0 EPSF-3.0\n",
        "first bytes": b"8BPS\0\1" + bytes(100),
        "PNG, JPEG, GIF, BMP, TIFF or WebP": b"\0\0\1\0" + bytes(100),
    }
    said = {}
    for word, data in cases.items():
        with pytest.raises(UsageError) as caught:
            decode(data, "x")
        said[word] = str(caught.value)
    assert {w: s for w, s in said.items() if w not in s} == {}


@pytest.mark.parametrize("limit", ["IMAGE_PIXELS", "IMAGE_SIDE", "IMAGE_FILE_BYTES"])
def test_the_limits_are_those_of_png(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, limit, 12)
    for encoding in headers.ENCODINGS:
        with pytest.raises(UsageError, match="too large"):
            decode(encoded(COLOUR, encoding.name), encoding.name)


HOSTILE = {
    "BMP, size": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 99, 0, 0, 54, 40, 60000, 60000, 1, 24, *[0] * 6),
    "BMP, run lengths": b"BM"
    + struct.pack("<IHHIIiiHHIIiiII", 99, 0, 0, 54, 40, 8000, 8000, 1, 8, 1, 0, 0, 0, 0, 0)
    + b"\1\1" * 2**22,
    "GIF, canvas": gif(65535, 65535, (1, 1)),
    "GIF, frame": gif(1, 1, (65535, 65535)),
    "GIF, blocks": gif(9, 9, (9, 9), b"!\xfe" + b"\1x" * 100_000 + b"\0"),
    "TIFF, size": tiff((256, 4, 1, 2**31), (257, 4, 1, 2**31)),
    "TIFF, tile": tiff((256, 4, 1, 8), (257, 4, 1, 8), (322, 4, 1, 2**20), (323, 4, 1, 2**20)),
    "TIFF, values": tiff((256, 4, 1, 8), (257, 4, 1, 8), (258, 3, 2**24, 200), tail=bytes(2**25)),
    "TIFF, overlapping tags": tiff(*((k, 1, 2**20, 8) for k in range(999)), tail=bytes(2**20)),
    "BigTIFF, tags": struct.pack("<2sHHHQQ", b"II", 43, 8, 0, 16, 2**60) + bytes(2**20),
    "BigTIFF, offset": struct.pack("<2sHHHQ", b"II", 43, 8, 0, 2**64 - 1),
    "WebP, VP8X": webp(b"VP8X", b"\0\0\0\0" + b"\xff\xff\xff" * 2),
    "WebP, VP8L": webp(b"VP8L", b"\x2f\xff\xff\xff\x0f" + bytes(20)),
    "WebP, VP8": webp(b"VP8 ", b"\x30\1\0\x9d\1\x2a\xff\x3f\xff\x3f" + bytes(20)),
    "WebP, chunk": webp(b"EXIF", bytes(100)),
}  # fmt: skip

_BOUNDED = """
import resource, sys
from capsedge.errors import UsageError
from capsedge.runtime.images.decoding import decode
import PIL.BmpImagePlugin, PIL.GifImagePlugin, PIL.TiffImagePlugin, PIL.WebPImagePlugin
data = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF)
try:
    decode(data, "x")
except UsageError as error:
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_maxrss - before.ru_maxrss, round(after.ru_utime - before.ru_utime), error, sep="|")
"""


def test_hostile_files_are_refused_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them reaches a reader of Pillow that would take memory for what the header claims."""
    opened: list[str] = []
    whole = headers.Encoding.opened

    def recorded(self: headers.Encoding, data: bytes) -> Any:
        opened.append(self.name)
        return whole(self, data)

    monkeypatch.setattr(headers.Encoding, "opened", recorded)
    reached = {}
    for name, data in HOSTILE.items():
        opened.clear()
        with pytest.raises(UsageError):
            decode(data, name)
        if opened and name != "BMP, size":  # BMP's reader only reads the header
            reached[name] = list(opened)
    assert reached == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_take_no_memory(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _BOUNDED], input=HOSTILE[name], capture_output=True, check=True
    )
    kilobytes, seconds, *_ = run.stdout.decode().split("|")
    assert int(kilobytes) < 100_000
    assert int(seconds) < 5


def test_damaged_files_are_refused_or_read(capfd: pytest.CaptureFixture[str]) -> None:
    """Cut anywhere, or with some bytes changed."""
    rng = random.Random(36)
    for encoding in headers.ENCODINGS:
        whole = encoded(COLOUR, encoding.name)
        assert decode(whole, "x").shape[:2] == (13, 9)
        for length in rng.sample(range(len(whole) // 2), 20):
            with pytest.raises(UsageError):
                decode(whole[:length], "x")
        for _ in range(150):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(min(len(data), rng.choice([40, 200, 10**6])))] = rng.randrange(
                    256
                )
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with contextlib.suppress(UsageError):
                decode(bytes(data), "x")
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20
    capfd.readouterr()  # libtiff's own messages


def test_no_words_of_pillow_about_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    data = encoded(COLOUR, "TIFF")  # its reader asks Pillow's limit, whatever ours is
    with pytest.raises(UsageError, match="too large") as caught:
        decode(data, "x")
    assert "DOS" not in str(caught.value)


def test_readers_of_folders_take_all_of_them(tmp_path: Path) -> None:
    from capsedge.batch_inference.items import is_image
    from capsedge.datasets.class_folders import images_of, read_classes
    from capsedge.runtime.files.formats import identify_bytes
    from capsedge.runtime.images.inputs import folder_images
    from capsedge.runtime.metadata.metadata import Preprocessing

    (tmp_path / "class").mkdir()
    for suffix, kind in zip(
        headers.SUFFIXES, ("PNG", "JPEG", "JPEG", "GIF", "BMP", "TIFF", "TIFF", "WEBP"),
        strict=True,
    ):  # fmt: skip
        data = encoded(COLOUR, kind)
        (tmp_path / f"image-{suffix[1:]}{suffix}").write_bytes(data)
        (tmp_path / "class" / f"image{suffix.upper()}").write_bytes(data)
        told = identify_bytes(data[:100])
        assert told is not None
        assert told.key == "image", kind
        assert is_image(f"x{suffix}")
    count = len(headers.SUFFIXES)
    assert len(folder_images(tmp_path)) == len(images_of(tmp_path)) == count
    images, classes, _ = read_classes(tmp_path, Preprocessing(13, 9, 3), None)
    assert images.shape == (count, 13, 9, 3)
    assert classes.shape == (count,)


def test_requests_take_all_of_them() -> None:
    """In gRPC as they are or in base64, in JSON in base64."""
    from capsedge.serving.request_tensors import encoded_images

    for encoding in headers.ENCODINGS:
        data = encoded(COLOUR, encoding.name)
        text = base64.b64encode(data)
        assert encoded_images("images", [3], [data, text, text.decode()]) == [data] * 3, (
            encoding.name
        )
