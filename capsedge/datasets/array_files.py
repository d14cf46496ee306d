"""Read npy, npz and idx files within limits.

numpy's own reader is not used: it allocates what a header claims, and evaluates the header as Python.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.files.archives import Archive, BadArchive
from capsedge.runtime.files.reading import file_size, open_regular_file
from capsedge.spec import limits

# --- Limits, checked before memory is allocated ---


def check_bytes(path: Path, shape: Sequence[int], width: int = 1, stored: int | None = None) -> int:
    """Size in bytes of an array to read.

    Args:
        shape: the shape that the file claims.
        width: bytes per element.
        stored: size of the file in bytes, if it is compressed.
    """
    most = limits.ARRAY_BYTES
    if stored is not None:
        most = min(most, max(limits.UNPACKED_BYTES, limits.UNPACKED_RATIO * stored))
    # A size of zero counts as one: numpy checks the other sizes of such an array, too.
    claimed = math.prod(max(1, size) for size in shape) * width
    if claimed > most:
        packed = "" if stored is None else f" of its {stored:,}"
        raise UsageError(
            f"{path} is too large.",
            f"It claims {claimed:,} bytes, and at most {most:,}{packed} are read.",
            "Read fewer images with `limit=`, or store fewer in one file.",
            command="Read fewer images with --limit, or store fewer in one file.",
        )
    return math.prod(shape) * width


# --- npy and npz (numpy.org/doc/stable/reference/generated/numpy.lib.format.html) ---

_MAGIC = b"\x93NUMPY"
_HEADER_BYTES = 1 << 16
_CHUNK = 1 << 20
_FIELD = re.compile(
    r"\s*(?:'descr'\s*:\s*'(?P<descr>[<>|=][biuf][1248])'"
    r"|'fortran_order'\s*:\s*(?P<order>True|False)"
    r"|'shape'\s*:\s*\((?P<shape>[\s0-9,L]{0,400})\))\s*(?:,|(?=\}))"
)
_SIZE = re.compile(r"\s*([0-9]{1,18})L?\s*")


class Arrays:
    """The arrays of an open npz file.

    Attributes:
        names: names of the arrays.

    Args:
        stored: its bytes.
    """

    def __init__(self, path: Path, archive: Archive, stored: int) -> None:
        self._path, self._archive, self._stored = path, archive, stored
        self.names = [n.removesuffix(".npy") for n in archive.names if n.endswith(".npy")]

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def read(self, name: str, count: int | None = None) -> NDArray[Any]:
        """An array of numbers, with at most ``count`` entries along the first axis."""
        try:
            with self._archive.member(f"{name}.npy") as member:
                return read_array(self._path, member, name, self._stored, count)
        except BadArchive as error:
            raise _unreadable(self._path, error) from error


def read_single(path: Path, count: int | None = None) -> NDArray[Any]:
    """The array of an npy file, with at most ``count`` entries along the first axis."""
    with open_regular_file(path) as file:
        return read_array(path, file, "the array", file_size(file), count)


def read_array(
    path: Path, member: IO[bytes], name: str, stored: int, count: int | None = None
) -> NDArray[Any]:
    """One array of numbers in numpy's format.

    Args:
        stored: bytes of the file that it is in.
    """
    dtype, fortran, shape = read_npy_header(path, member, name)
    partly = bool(shape) and count is not None and count < shape[0] and not fortran
    if partly and count is not None:
        shape = (count, *shape[1:])
    expected = check_bytes(path, shape, dtype.itemsize, stored)
    data = np.empty(expected, np.uint8)
    view, at = data.data, 0
    while at < expected and (size := member.readinto(view[at : at + _CHUNK])):  # type: ignore[attr-defined]
        at += size
    if at < expected:
        raise UsageError(f"{path} is incomplete.", f"'{name}' has {at:,} bytes of {expected:,}.")
    if not partly and member.read(1):  # also checks the sum of what was read
        raise UsageError(f"{path} cannot be read.", f"'{name}' has data after its end.")
    array = data.view(dtype).reshape(shape, order="F" if fortran else "C")
    native = array.astype(dtype.newbyteorder("="), copy=False)
    return native if count is None else native[:count] if native.ndim else native


def read_npy_header(
    path: Path, member: IO[bytes], name: str
) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    head = member.read(8)
    wide = len(head) == 8 and head[6] > 1
    packed = member.read(4 if wide else 2)
    if not head.startswith(_MAGIC) or len(packed) < (4 if wide else 2) or head[6] > 3:
        raise _foreign(path, name, "it is not a NumPy array")
    (length,) = struct.unpack("<I" if wide else "<H", packed)
    if length > _HEADER_BYTES:
        raise _foreign(path, name, f"its header has {length:,} bytes")
    text = member.read(length).decode("latin-1").strip()
    fields: dict[str, str] = {}
    at = 1
    while match := _FIELD.match(text, at):
        at = match.end()
        fields |= {key: value for key, value in match.groupdict().items() if value is not None}
    if text[:1] != "{" or text[at:].strip() != "}" or len(fields) != 3:
        raise _foreign(path, name, "its header does not describe plain numbers")
    sizes = [part for part in fields["shape"].split(",") if part.strip()]
    matches = [_SIZE.fullmatch(part) for part in sizes]
    shape = tuple(int(match[1]) for match in matches if match)
    if len(shape) != len(sizes) or len(shape) > 8:
        raise _foreign(path, name, f"its shape is ({fields['shape'].strip()[:80]})")
    try:
        dtype = np.dtype(fields["descr"])
    except TypeError:  # a size that its kind of number does not come in
        raise _foreign(path, name, f"its type is {fields['descr']}") from None
    return dtype, fields["order"] == "True", shape


def _foreign(path: Path, name: str, why: str) -> UsageError:
    return UsageError(
        f"'{name}' of {path} cannot be read.",
        f"{why[0].upper()}{why[1:]}.",
        "Save arrays of whole or floating-point numbers with numpy.savez.",
    )


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an npz file by name, or the one of an npy file under the name ``array``."""
    if path.suffix == ".npy":
        return {"array": read_single(path)}
    if path.suffix != ".npz":
        raise UsageError(
            f"{path} is not a file of arrays.",
            f"Its suffix is '{path.suffix}'.",
            "Pass a .npy or .npz file.",
        )
    with opened_arrays(path) as arrays:
        return {name: arrays.read(name) for name in arrays.names}


def arrays_by_input(arrays: Mapping[str, Any], names: Sequence[str], label: str) -> list[Any]:
    """Arrays in the order of a network's inputs; one array alone, or one called images, needs no name."""
    if all(name in arrays for name in names):
        return [arrays[name] for name in names]
    if len(names) == 1 and (len(arrays) == 1 or "images" in arrays):
        return [arrays.get("images", next(iter(arrays.values())))]
    raise UsageError(
        f"{label} has no arrays under the names of the model's inputs.",
        f"It holds {', '.join(arrays) or 'nothing'}; the network takes {', '.join(names)}.",
        "Save them with numpy.savez(path, " + ", ".join(f"{n}=..." for n in names) + ").",
    )


def _unreadable(path: Path, error: BadArchive) -> UsageError:
    return UsageError(
        f"{path} cannot be read.",
        f"{error}.",
        "Save an array 'images', and 'labels' to measure accuracy, with numpy.savez.",
    )


@contextmanager
def opened_arrays(path: Path) -> Iterator[Arrays]:
    """The arrays of an npz file, while the block runs."""
    with open_regular_file(path) as file:
        try:
            archive = Archive(file)
        except BadArchive as error:
            raise _unreadable(path, error) from error
        yield Arrays(path, archive, file_size(file))


# --- idx, the format of MNIST (http://yann.lecun.com/exdb/mnist), gzipped or plain ---

_UNSIGNED_BYTE = 8
_IDX_CHUNK = 1 << 16
_MOST = 1 << 20  # bytes unpacked at once
_MEMBERS = 1 << 16  # maximum for one gzip file; tools that can seek in it write one every 64 KiB


def read(path: Path, count: int | None = None) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, with at most ``count`` entries along the first axis."""
    with open_regular_file(path) as file:
        stored = file_size(file)
        content = content_of(file, path)
        packed = isinstance(content, Gunzip)
        head = read_into(content, bytearray(4))
        if (
            len(head) < 4
            or bytes(head[:3]) != bytes((0, 0, _UNSIGNED_BYTE))
            or not 1 <= head[3] <= 4
        ):
            raise UsageError(
                f"{path} is not an idx file of bytes.",
                f"It begins with {head.hex(' ') or 'nothing'}; an idx file begins with 00 00 08.",
                "Pass an idx, npz or image file, or a data set folder.",
            )
        axes = head[3]
        dimensions = read_into(content, bytearray(4 * axes))
        if len(dimensions) < 4 * axes:
            raise UsageError(f"{path} is incomplete.", "It ends in its header.", "Get a new copy.")
        shape = struct.unpack(f">{axes}I", dimensions)
        partly = count is not None and count < shape[0]
        if count is not None and partly:
            shape = (count, *shape[1:])
        expected = check_bytes(path, shape, 1, stored if packed else None)
        if not packed and expected > stored:
            raise UsageError(f"{path} is incomplete.", f"{stored:,} bytes of {expected:,}.")
        data = np.empty(expected, np.uint8)
        size = len(read_into(content, data.data))
        if size < expected:
            raise UsageError(f"{path} is incomplete.", f"{size:,} bytes of {expected:,}.")
        if not partly and read_into(content, bytearray(1)):
            raise UsageError(
                f"{path} is not an idx file.", f"It has data after its {expected:,} bytes."
            )
    return data.reshape(shape)


def content_of(file: BufferedReader, path: Path) -> BufferedReader | Gunzip:
    """What an open file holds, unpacked if it is a gzip file."""
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return Gunzip(file, path) if packed else file


def read_into(
    content: BufferedReader | Gunzip, target: bytearray | memoryview
) -> bytearray | memoryview:
    """The target as far as there is content for it."""
    at, view = 0, memoryview(target)
    while at < len(view) and (count := content.readinto(view[at : at + _MOST])):
        at += count
    return target[:at]


class Gunzip:
    """The content of a gzip file, unpacked only as far as requested."""

    def __init__(self, file: BufferedReader, path: Path) -> None:
        self._file, self._path = file, path
        self._member = zlib.decompressobj(wbits=31)
        self._members = 1
        self._remaining = b""

    def readinto(self, target: memoryview) -> int:
        """The next bytes, as many as fit or fewer; none at the end."""
        data = self._some(len(target))
        target[: len(data)] = data
        return len(data)

    def _some(self, most: int) -> bytes:
        while True:
            if self._member.eof:
                rest = (self._member.unused_data or self._file.read(_IDX_CHUNK)).lstrip(b"\0")
                if not rest:
                    return b""
                self._members += 1
                if self._members > _MEMBERS:
                    raise self._damaged(f"it has over {_MEMBERS:,} members")
                self._member, self._remaining = zlib.decompressobj(wbits=31), rest
            packed = self._remaining or self._file.read(_IDX_CHUNK)
            data = self._inflate(packed, most)
            if data:
                return data
            if not packed and not self._member.eof:
                raise self._damaged("it ends early")

    def _inflate(self, packed: bytes, most: int) -> bytes:
        try:
            data = self._member.decompress(packed, most)
        except zlib.error as error:
            raise self._damaged(str(error)) from error
        self._remaining = self._member.unconsumed_tail
        return data

    def _damaged(self, why: str) -> UsageError:
        return UsageError(
            f"{self._path} is not a complete gzip file.", f"{why}.", "Get a new copy."
        )
