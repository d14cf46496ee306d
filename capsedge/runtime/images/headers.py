"""Identify an encoded image and its size by its first bytes, before Pillow sees it.

Pillow's readers of GIF, TIFF and WebP allocate what a header claims while they open a file, and its
decoder of run-length encoded BMP files is slow, so these headers are walked here. Only the formats
below are read, whatever else Pillow supports: EPS runs a program, others are seldom tested.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from capsedge.errors import UsageError
from capsedge.spec import limits

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Encoding:
    """A format of image files.

    Attributes:
        name: such as ``PNG``.
        starts: the first bytes of its files.
        sizes: returns the sizes that a header claims, if Pillow allocates memory for them before they can be
            checked; raises a UsageError for variants that are not supported.
    """

    name: str
    starts: tuple[bytes, ...]
    sizes: Callable[[bytes, str], list[Size]] = lambda data, name: []

    def opened(self, data: bytes) -> ImageFile:
        """The image, whose pixels are not decoded yet.

        Only this format's reader is imported: `PIL.Image.open` imports five.
        """
        plugin = import_module(f"PIL.{_PLUGINS[self.name]}ImagePlugin")
        reader: Callable[[io.BytesIO], ImageFile] = getattr(
            plugin, f"{_PLUGINS[self.name]}ImageFile"
        )
        return reader(io.BytesIO(data))


def encoding_of(data: bytes) -> Encoding | None:
    """The format of a file's content; None if it is none of `ENCODINGS`."""
    encoding = next((e for e in ENCODINGS if data.startswith(e.starts)), None)
    if encoding is not None and encoding.name == "WebP" and data[8:12] != b"WEBP":
        return None
    return encoding


def _damaged(name: str, why: str) -> UsageError:
    return UsageError(f"{name} is damaged.", why, "Get a new copy of the image.")


def _bmp(data: bytes, name: str) -> list[Size]:
    runs = data[14:18] not in (b"\x0c\0\0\0", b"") and data[30:34] in (b"\1\0\0\0", b"\2\0\0\0")
    if runs and len(data) > limits.BMP_RUNS_BYTES:
        raise UsageError(
            f"{name} is too large.",
            f"It is a BMP file with run-length encoding of {len(data):,} bytes, the limit is "
            f"{limits.BMP_RUNS_BYTES:,}.",
            "Convert it to PNG.",
        )
    return []


def _gif(data: bytes, name: str) -> list[Size]:
    """Sizes of the canvas and of the first frame, which may enlarge it."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    blocks = 0
    while data[at : at + 1] == b"!":
        at += 2
        while (length := data[at] if at < len(data) else 0) and blocks <= limits.GIF_BLOCKS:
            at, blocks = at + 1 + length, blocks + 1
        at, blocks = at + 1, blocks + 1
        if blocks > limits.GIF_BLOCKS:
            raise UsageError(
                f"{name} is too large.",
                f"Over {limits.GIF_BLOCKS:,} blocks precede its first image.",
                "Convert it to PNG.",
            )
    if data[at : at + 1] != b",":
        raise _damaged(name, "It is a GIF file without an image.")
    left, top, frame_width, frame_height = struct.unpack_from("<4H", data, at + 1)
    whole = max(height, top + frame_height), max(width, left + frame_width)
    return [(height, width), whole]


def _webp(data: bytes, name: str) -> list[Size]:
    """Size of the canvas, from the first chunk: extended, lossless or lossy (RFC 9649)."""
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[k : k + 3], "little") + 1 for k in (24, 27))
    elif kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (v & 0x3FFF for v in struct.unpack_from("<HH", data, 26))
    else:
        raise _damaged(name, "It is a WebP file without an image.")
    return [(height, width)]


# TIFF 6.0: bytes of a value by its type; values of the first group are read as one string of bytes.
_BYTES = {1: 1, 2: 1, 6: 1, 7: 1}
_NUMBERS = {3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_INTEGERS = {3: "H", 4: "I", 16: "Q"}
_WIDTH, _HEIGHT, _COMPRESSION, _SAMPLES = 256, 257, 259, 277
_TILE_WIDTH, _TILE_HEIGHT, _SAMPLE_FORMAT = 322, 323, 339
_COMPRESSIONS = {
    1: "none", 2: "CCITT", 3: "CCITT", 4: "CCITT", 5: "LZW", 7: "JPEG", 8: "Deflate", 32773: "PackBits",
    32946: "Deflate",
}  # fmt: skip
_FLOATING, _MOST_SAMPLES = 3, 5


def _tiff(data: bytes, name: str) -> list[Size]:
    """Sizes of the first page and of its tiles."""
    tags = _tags(data, name)
    height, width = tags.get(_HEIGHT, 0), tags.get(_WIDTH, 0)
    compression, samples = tags.get(_COMPRESSION, 1), tags.get(_SAMPLES, 1)
    if compression not in _COMPRESSIONS:
        raise UsageError(
            f"{name} uses the TIFF compression {compression}.",
            f"Supported compressions: {', '.join(dict.fromkeys(_COMPRESSIONS.values()))}.",
            "Convert it to PNG.",
        )
    if tags.get(_SAMPLE_FORMAT, 1) == _FLOATING:
        raise UsageError(
            f"{name} holds floating-point values.",
            "It does not state which values are black and white.",
            "Convert it to 8 or 16 bits per channel, or pass the values as an array from Python.",
        )
    if not 1 <= samples <= _MOST_SAMPLES:
        raise UsageError(
            f"{name} has {samples} channels.",
            f"Images have 1 to {_MOST_SAMPLES}.",
            "Pass it as an array from Python.",
        )
    tile = tags.get(_TILE_HEIGHT, 0), tags.get(_TILE_WIDTH, 0)
    if tile[0] * tile[1] > max(limits.TIFF_TILE_PIXELS, height * width):
        raise UsageError(
            f"{name} is too large.",
            f"It has {width}x{height} pixels in tiles of {tile[1]}x{tile[0]}.",
            "Convert it to PNG.",
        )
    return [(height, width)]


def _tags(data: bytes, name: str) -> Mapping[int, int]:
    """The first value of each tag of the first page that is a whole number."""
    order = "<" if data[:2] == b"II" else ">"
    big = 43 in data[2:4]
    count_code, entry_code, room = ("Q", "HHQ8s", 8) if big else ("H", "HHI4s", 4)
    (at,) = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)
    (count,) = _unpack(order + count_code, data, at)
    if count > limits.TIFF_TAGS:
        raise _damaged(name, f"It is a TIFF file with {count:,} tags.")
    at += struct.calcsize(order + count_code)
    tags: dict[int, int] = {}
    total = 0
    for _ in range(count):
        tag, kind, values, field = _unpack(order + entry_code, data, at)
        at += struct.calcsize(order + entry_code)
        size = values * (_BYTES.get(kind) or _NUMBERS.get(kind, 0))
        if size > room:
            total += size
            (place,) = struct.unpack(order + ("Q" if big else "I"), field)
            field = data[place : place + room]
        if total > len(data) or (kind not in _BYTES and values > limits.TIFF_VALUES):
            raise _damaged(name, "It is a TIFF file whose tags are larger than the file.")
        code = _INTEGERS.get(kind)
        if code and values and len(field) >= struct.calcsize(code):
            tags.setdefault(tag, struct.unpack_from(order + code, field)[0])
    return tags


def _unpack(code: str, data: bytes, at: int) -> tuple[Any, ...]:
    if at > len(data):
        raise struct.error("a tag lies behind the end of the file")
    return struct.unpack_from(code, data, at)


ENCODINGS = (
    Encoding("PNG", (b"\x89PNG\r\n\x1a\n",)),
    Encoding("JPEG", (b"\xff\xd8\xff",)),
    Encoding("GIF", (b"GIF87a", b"GIF89a"), _gif),
    Encoding("BMP", (b"BM",), _bmp),
    Encoding("TIFF", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), _tiff),
    Encoding("WebP", (b"RIFF",), _webp),
)
_PLUGINS = {
    "PNG": "Png", "JPEG": "Jpeg", "GIF": "Gif", "BMP": "Bmp", "TIFF": "Tiff", "WebP": "WebP"
}  # fmt: skip
FORMATS = "PNG, JPEG, GIF, BMP, TIFF and WebP"
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp")


def is_image_name(name: str) -> bool:
    """Whether a file in a folder counts as an image, by its name; hidden files do not.

    On foreign disks, macOS leaves a ``._photo.jpg`` beside ``photo.jpg``; it is not a picture.
    """
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")
