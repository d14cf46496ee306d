"""Read the cropped digits of SVHN, which are MATLAB files of version 5.

http://ufldl.stanford.edu/housenumbers (Format 2): ``X`` is bytes ``[32, 32, 3, N]``, ``y`` the digits
``[N, 1]``, 10 for a zero. A file is a header of 128 bytes, then elements, packed or not: a type, a number of
bytes, and the values, padded to eight bytes (MATLAB, MAT-File Format, 1-5 ff.).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets.array_files import check_bytes
from capsedge.errors import UsageError
from capsedge.runtime.files.reading import file_size, open_regular_file
from capsedge.spec import limits

_HEADER, _VERSION = 128, b"\x00\x01IM"  # its last four bytes, little-endian
_MATRIX, _PACKED = 14, 15
_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8"}
_PIXELS = (32, 32, 3)
_MOST = 1 << 20  # bytes read at once
_SMALL = 4096  # bytes of sizes or of a name
_ELEMENTS = 16  # maximum per file: the two arrays, and anything a program may have added


class _Damaged(Exception):
    """The file is not what this module reads."""


def file_of_split(names: Iterable[str], split: str) -> str:
    """The file of a split; empty if it is not there."""
    name = f"{split}_32x32.mat"
    return name if name in names else ""


def read(path: Path, count: int | None = None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images ``[N, 32, 32, 3]`` and their digits ``[N]`` from 0 to 9; the first ``count``."""
    try:
        with open_regular_file(path) as file:
            arrays = _arrays(file, path)
    except (_Damaged, zlib.error) as error:
        raise UsageError(
            f"{path} is not a file of SVHN.",
            f"{str(error)[:1].upper()}{str(error)[1:]}.",
            "Get the files train_32x32.mat and test_32x32.mat again.",
        ) from error
    images, digits = arrays["X"], arrays["y"].reshape(-1)
    if images.dtype != np.uint8 or images.shape[:-1] != _PIXELS or images.shape[-1] != len(digits):
        raise UsageError(
            f"{path} is not a file of SVHN.",
            f"X is {images.dtype} {list(images.shape)}, y {list(arrays['y'].shape)}.",
            "Get the files train_32x32.mat and test_32x32.mat again.",
        )
    if len(digits) and not bool(np.isin(digits, np.arange(1, 11)).all()):
        raise UsageError(f"{path} has labels that are not digits.", "They are 1 to 10.")
    pixels: NDArray[np.uint8] = images.transpose(3, 0, 1, 2)[:count].astype(np.uint8, copy=False)
    return pixels, (digits % 10).astype(np.int64)[:count]


def _arrays(file: BufferedReader, path: Path) -> dict[str, NDArray[np.generic]]:
    """The arrays ``X`` and ``y``."""
    head = file.read(_HEADER)
    if len(head) < _HEADER or head[124:] != _VERSION:
        raise _Damaged("it does not begin as a little-endian MATLAB file of version 5")
    arrays: dict[str, NDArray[np.generic]] = {}
    stored = file_size(file)
    for _ in range(_ELEMENTS):
        tag = file.read(8)
        if not tag or {"X", "y"} <= arrays.keys():
            break
        if len(tag) < 8:
            raise _Damaged("it ends in an element")
        kind, size = struct.unpack("<2I", tag)
        end = file.tell() + size
        if end > stored:
            raise _Damaged("it is incomplete")
        if kind == _PACKED:
            content = _Content(file, size, zlib.decompressobj())
            kind, size = struct.unpack("<2I", content.take(8))
        else:
            content = _Content(file, size)
        if kind == _MATRIX:
            name, array = _array(content, path, stored)
            if array is not None:
                arrays[name] = array
        file.seek(end)
    if missing := {"X", "y"} - arrays.keys():
        raise _Damaged(f"it has no array {min(missing)}")
    return arrays


@dataclass
class _Content:
    """The bytes of an element, unpacked as they are needed.

    Attributes:
        left: bytes of the file that belong to it.
        packed: what unpacks them; None if they are not packed.
    """

    file: BufferedReader
    left: int
    packed: zlib._Decompress | None = None

    def take(self, count: int) -> bytearray:
        """The next bytes. Raises _Damaged if there are fewer."""
        target = bytearray()  # grows with what there is, whatever the file claims
        while len(target) < count:
            some = self._some(min(_MOST, count - len(target)))
            if not some:
                raise _Damaged("an array is incomplete")
            target += some
        return target

    def _some(self, most: int) -> bytes:
        if self.packed is None:
            some = self.file.read(min(most, self.left))
            self.left -= len(some)
            return some
        while True:
            packed = self.packed.unconsumed_tail
            if not packed:
                packed = self.file.read(min(_MOST, self.left))
                self.left -= len(packed)
            some = self.packed.decompress(packed, most)
            if some or not packed:
                return some

    def element(self, most: int) -> tuple[int, bytearray]:
        """The type and the bytes of the next element, which has at most so many."""
        first, second = struct.unpack("<2I", self.take(8))
        if first >> 16:  # up to four bytes stand in the place of the size
            return first & 0xFFFF, bytearray(struct.pack("<I", second)[: min(4, first >> 16)])
        if second > most:
            raise _Damaged(f"an element has {second:,} bytes")
        values = self.take(second)
        if second % 8:
            self.take(8 - second % 8)
        return first, values


def _array(content: _Content, path: Path, stored: int) -> tuple[str, NDArray[np.generic] | None]:
    """The name and the values of an array; no values unless it is ``X`` or ``y``."""
    # Flags, and the class of the values, which may be stored as a smaller type.
    content.element(_SMALL)
    kind, sizes = content.element(_SMALL)
    if kind != 5 or len(sizes) % 4:
        raise _Damaged("an array has no sizes")
    shape = struct.unpack(f"<{len(sizes) // 4}i", sizes)
    name = content.element(_SMALL)[1].decode("latin-1")
    if name not in ("X", "y"):
        return name, None
    if min(shape, default=0) < 0 or len(shape) > limits.DIMENSIONS:
        raise _Damaged(f"its array {name} has the shape {list(shape)[:8]}")
    most = check_bytes(path, shape, 8 if name == "y" else 1, stored if content.packed else None)
    kind, values = content.element(most)
    if kind not in _TYPES:
        raise _Damaged(f"its array {name} is of type {kind}")
    if len(values) % np.dtype(_TYPES[kind]).itemsize:
        raise _Damaged(f"its array {name} ends in a value")
    flat = np.frombuffer(values, _TYPES[kind])
    if flat.size != np.prod(shape, dtype=np.int64):
        raise _Damaged(f"its array {name} has {flat.size} values for {list(shape)}")
    return name, flat.reshape(shape, order="F")
