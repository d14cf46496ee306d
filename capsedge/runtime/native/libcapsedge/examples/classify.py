"""Classify or segment images through ctypes, with only the standard library: LIBRARY MODEL IMAGE.png...

An example for any language with a C interface; the structures are those of capsedge.h.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import zlib
from collections import Counter


class Image(ctypes.Structure):
    _fields_ = (
        ("pixels", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("channels", ctypes.c_int32),
        ("stride", ctypes.c_int64),
    )


class Label(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("pose", ctypes.POINTER(ctypes.c_float)),
        ("score", ctypes.c_double),
        ("index", ctypes.c_int32),
    )


class Result(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("labels", ctypes.POINTER(Label)),
        ("label_count", ctypes.c_size_t),
        ("scores", ctypes.POINTER(ctypes.c_double)),
        ("poses", ctypes.POINTER(ctypes.c_float)),
        ("class_count", ctypes.c_int32),
        ("pose_size", ctypes.c_int32),
        ("score_kind", ctypes.c_char_p),
        ("values", ctypes.POINTER(ctypes.c_double)),
        ("value_count", ctypes.c_size_t),
        ("atypical", ctypes.c_char_p),
        ("escalated", ctypes.c_int32),
        ("mask", ctypes.POINTER(ctypes.c_uint8)),
        ("mask_height", ctypes.c_int32),
        ("mask_width", ctypes.c_int32),
    )


UINT8 = 2
library: ctypes.CDLL


def call(name: str, *arguments: object) -> None:
    """Call a function; a status that is not NULL ends the program with its message and code."""
    function = getattr(library, name)
    function.restype = ctypes.c_void_p
    status = ctypes.c_void_p(function(*arguments))
    if status:
        library.capsedge_status_message.restype = ctypes.c_char_p
        print("error:", library.capsedge_status_message(status).decode(), file=sys.stderr)
        sys.exit(library.capsedge_status_code(status))


def read_png(path: str) -> tuple[bytes, int, int, int]:
    """Pixels, height, width and channels of an 8-bit PNG file that is not interlaced."""
    with open(path, "rb") as file:
        data = file.read()
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", data[16:29])
    channels = {0: 1, 4: 2, 2: 3, 6: 4}.get(colour, 0)
    if depth != 8 or interlaced or not channels:
        sys.exit(f"error: {path}: only 8-bit grey and RGB can be read here")
    packed, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += length + 12
    filtered, row = zlib.decompress(packed), width * channels
    pixels = bytearray()
    above = bytearray(row)
    for y in range(height):
        kind, *line = filtered[y * (row + 1) : (y + 1) * (row + 1)]
        for x in range(row):
            a = line[x - channels] if x >= channels else 0
            b = above[x]
            c = above[x - channels] if x >= channels else 0
            nearest = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            line[x] = (line[x] + (0, a, b, (a + b) // 2, nearest)[kind]) & 255
        above = bytearray(line)
        pixels += above
    return bytes(pixels), height, width, channels


def shares(session: ctypes.c_void_p, mask: bytes) -> str:
    """The classes of a mask, each with its share of the pixels that the network saw."""
    counts = Counter(mask)
    seen = len(mask) - counts.pop(255, 0)
    words = []
    for number, count in sorted(counts.items()):
        name = ctypes.c_char_p()
        call("capsedge_class_name", session, ctypes.c_int32(number), ctypes.byref(name))
        words.append(f"{(name.value or b'').decode()} {count / seen:.4f}")
    return ", ".join(words)


def values(session: ctypes.c_void_p, result: Result) -> str:
    """The values of a regression with their names and units."""
    words = []
    for k in range(result.value_count):
        name, unit = ctypes.c_char_p(), ctypes.c_char_p()
        where = ctypes.byref(name), ctypes.byref(unit)
        call("capsedge_value_name", session, ctypes.c_size_t(k), *where)
        text = (
            f"{(name.value or b'').decode()} {result.values[k]:.4g} {(unit.value or b'').decode()}"
        )
        words.append(text.rstrip())
    return ", ".join(words)


def main() -> None:
    global library
    if len(sys.argv) < 4:
        sys.exit("usage: classify.py LIBRARY MODEL IMAGE.png...")
    library = ctypes.CDLL(sys.argv[1])
    session, prediction = ctypes.c_void_p(), ctypes.c_void_p()
    call("capsedge_open", sys.argv[2].encode(), None, ctypes.byref(session))
    call("capsedge_prediction_create", ctypes.byref(prediction))
    for path in sys.argv[3:]:
        pixels, height, width, channels = read_png(path)
        image = Image(
            ctypes.cast(ctypes.c_char_p(pixels), ctypes.c_void_p), UINT8, height, width, channels, 0
        )
        one = ctypes.c_size_t(1)
        call("capsedge_predict", session, ctypes.byref(image), one, None, prediction)
        result = Result(size=ctypes.sizeof(Result))
        call("capsedge_prediction_result", prediction, ctypes.c_size_t(0), ctypes.byref(result))
        if result.atypical:
            print(f"{path}: nothing to see: {result.atypical.decode()}", file=sys.stderr)
        marked = " (nothing to see)" if result.atypical else ""
        if result.mask:
            size = result.mask_height * result.mask_width
            print(f"{path}:{marked} {shares(session, ctypes.string_at(result.mask, size))}")
        if result.value_count:
            print(f"{path}:{marked} {values(session, result)}")
        for label in result.labels[: result.label_count]:
            print(f"{path}: {label.name.decode()}{marked}, {label.score:.4f}")
    call("capsedge_prediction_close", prediction)
    call("capsedge_close", session)


main()
