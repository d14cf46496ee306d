"""The idx format of MNIST (http://yann.lecun.com/exdb/mnist), gzipped or plain."""

from __future__ import annotations

import struct
import zlib
from io import BufferedReader
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets.sizes import check_bytes
from capsedge.errors import UsageError
from capsedge.runtime.files.opening import opened, size

_UNSIGNED_BYTE = 8
_CHUNK = 1 << 16
_MOST = 1 << 20  # bytes unpacked at once
_MEMBERS = 1 << 16  # of one gzip file; tools that can seek in it write one every 64 KiB


def read(path: Path, count: int | None = None) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes.

    Args:
        count: the first so many along the first axis; all with None.

    Raises:
        UsageError: the file is missing, damaged, too large, or holds another type.
    """
    with opened(path) as file:
        stored = size(file)
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        content: BufferedReader | _Gunzip = _Gunzip(file, path) if packed else file
        head = _filled(content, bytearray(4))
        if (
            len(head) < 4
            or bytes(head[:3]) != bytes((0, 0, _UNSIGNED_BYTE))
            or not 1 <= head[3] <= 4
        ):
            raise UsageError(
                f"{path} is not an idx file of bytes.",
                f"It begins with {head.hex(' ') or 'nothing'}, an idx file with 00 00 08.",
                "Name an idx, npz or image file, or a data set folder.",
            )
        axes = head[3]
        dimensions = _filled(content, bytearray(4 * axes))
        if len(dimensions) < 4 * axes:
            raise UsageError(f"{path} is not whole.", "It ends in its header.", "Get it again.")
        shape = struct.unpack(f">{axes}I", dimensions)
        partly = count is not None and count < shape[0]
        if count is not None and partly:
            shape = (count, *shape[1:])
        expected = check_bytes(path, shape, 1, stored if packed else None)
        if not packed and expected > stored:
            raise UsageError(f"{path} is not whole.", f"{stored:,} bytes of {expected:,}.")
        data = np.empty(expected, np.uint8)
        found = len(_filled(content, data.data))
        if found < expected:
            raise UsageError(f"{path} is not whole.", f"{found:,} bytes of {expected:,}.")
        if not partly and _filled(content, bytearray(1)):
            raise UsageError(
                f"{path} is not an idx file.", f"It continues after its {expected:,} bytes."
            )
    return data.reshape(shape)


def _filled(
    content: BufferedReader | _Gunzip, target: bytearray | memoryview
) -> bytearray | memoryview:
    """The target as far as there is content for it."""
    at, view = 0, memoryview(target)
    while at < len(view) and (count := content.readinto(view[at : at + _MOST])):
        at += count
    return target[:at]


class _Gunzip:
    """What a gzip file unpacks to, no more of it than is asked for."""

    def __init__(self, file: BufferedReader, path: Path) -> None:
        self._file, self._path = file, path
        self._member = zlib.decompressobj(wbits=31)
        self._members = 1
        self._left = b""

    def readinto(self, target: memoryview) -> int:
        """The next bytes, as many as fit or fewer; none at the end."""
        found = self._some(len(target))
        target[: len(found)] = found
        return len(found)

    def _some(self, most: int) -> bytes:
        while True:
            if self._member.eof:
                rest = (self._member.unused_data or self._file.read(_CHUNK)).lstrip(b"\0")
                if not rest:
                    return b""
                self._members += 1
                if self._members > _MEMBERS:
                    raise self._damaged(f"it has over {_MEMBERS:,} members")
                self._member, self._left = zlib.decompressobj(wbits=31), rest
            packed = self._left or self._file.read(_CHUNK)
            found = self._inflate(packed, most)
            if found:
                return found
            if not packed and not self._member.eof:
                raise self._damaged("it ends early")

    def _inflate(self, packed: bytes, most: int) -> bytes:
        try:
            found = self._member.decompress(packed, most)
        except zlib.error as error:
            raise self._damaged(str(error)) from error
        self._left = self._member.unconsumed_tail
        return found

    def _damaged(self, why: str) -> UsageError:
        return UsageError(f"{self._path} is not a complete gzip file.", f"{why}.", "Get it again.")
