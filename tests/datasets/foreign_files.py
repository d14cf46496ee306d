"""Files in the formats of smallNORB and SVHN."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from numpy.typing import NDArray


def norb_file(values: NDArray[Any], axes: int | None = None) -> bytes:
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[values.dtype.name]
    sizes = [*values.shape, *[1] * (3 - values.ndim)]
    head = struct.pack("<2I", magic, axes or values.ndim)
    return head + struct.pack(f"<{len(sizes)}I", *sizes) + values.tobytes()


TYPES = {"uint8": 2, "float64": 9, "int32": 5}


def element(kind: int, values: bytes) -> bytes:
    if len(values) <= 4:
        return struct.pack("<HH", kind, len(values)) + values.ljust(4, b"\0")
    return struct.pack("<2I", kind, len(values)) + values + bytes(-len(values) % 8)


def matrix(name: str, values: NDArray[Any], shape: tuple[int, ...] | None = None) -> bytes:
    sizes = shape or values.shape
    body = element(6, bytes(8)) + element(5, struct.pack(f"<{len(sizes)}i", *sizes))
    body += element(1, name.encode())
    body += element(TYPES[values.dtype.name], values.tobytes(order="F"))
    return struct.pack("<2I", 14, len(body)) + body


def mat_file(*parts: bytes, packed: bool = True) -> bytes:
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    if not packed:
        return head + b"".join(parts)
    squeezed = [zlib.compress(part) for part in parts]
    return head + b"".join(struct.pack("<2I", 15, len(part)) + part for part in squeezed)
