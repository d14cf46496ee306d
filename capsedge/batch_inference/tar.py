"""Read tar archives of images, such as WebDataset shards, header by header.

Every member with the suffix of an image is an image; nothing else in an archive is read or decoded.

Python's `tarfile` allocates whatever an extended header claims, and many versions of it take seconds for a
header of 64 KiB (docs/decisions/0006-own-readers.md). Here every size is checked first. Nothing is extracted:
a member's name only identifies it, whatever path it contains.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count as counting
from itertools import pairwise
from typing import BinaryIO

from capsedge.batch_inference.items import PART_ROWS, Item, Part, is_image, qualified_image_name
from capsedge.batch_inference.storage import Storage
from capsedge.errors import UsageError
from capsedge.spec import limits

# --- Headers, within limits (POSIX.1-2017 pax, "ustar Interchange Format"; GNU tar) ---

BLOCK = 512
_REGULAR = (b"0", b"\0", b"7")
_OTHER = {
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"5": "a folder",
    b"6": "a pipe", b"S": "a sparse file",
}  # fmt: skip


class BadTar(Exception):
    """The archive is damaged or exceeds a limit; the message says why."""


@dataclass(frozen=True)
class TarMember:
    """A member of an archive.

    Attributes:
        offset: offset of the first header that belongs to it.
        name: its path in the archive.
        size: its bytes.
        other: the kind of member, such as ``a symbolic link``; empty for a plain file.
    """

    offset: int
    name: str
    size: int
    other: str = ""


class Stream:
    """An archive that is read forward, plain or gzipped.

    Args:
        file: the archive, at its start.
        stored: its bytes.
    """

    def __init__(self, file: BinaryIO, stored: int) -> None:
        self._file, self._stored = file, stored
        self.packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        self.position = 0
        self._inflate = zlib.decompressobj(wbits=31) if self.packed else None
        self._buffer = b""
        self._most = max(limits.UNPACKED_BYTES, limits.UNPACKED_RATIO * stored)

    def read(self, count: int) -> bytes:
        """The next bytes; fewer at the end. Raises BadTar if the archive is damaged or too large."""
        if self._inflate is None:
            data = self._file.read(count)
            self.position += len(data)
            return data
        parts: list[bytes] = []
        left = count
        while left > 0 and (part := self._unpacked(left)):
            parts.append(part)
            left -= len(part)
        self.position += count - left
        if self.position > self._most:
            raise BadTar(f"it unpacks to more than {self._most:,} bytes")
        return b"".join(parts)

    def skip(self, count: int) -> None:
        """Go forward, at most to the end: a header may claim more bytes than any file has."""
        if self._inflate is None:
            self.position = self._file.seek(min(self.position + count, self._stored))
            return
        while count > 0 and (data := self.read(min(count, 1 << 20))):
            count -= len(data)

    def _unpacked(self, most: int) -> bytes:
        assert self._inflate is not None
        while True:
            if self._inflate.eof:
                rest = self._inflate.unused_data or self._file.read(1 << 16)
                if not rest.strip(b"\0"):
                    return b""
                self._inflate, self._buffer = zlib.decompressobj(wbits=31), rest
            packed = self._buffer or self._file.read(1 << 16)
            try:
                data = self._inflate.decompress(packed, most)
            except zlib.error as error:
                raise BadTar(f"its gzip stream is damaged: {error}") from error
            self._buffer = self._inflate.unconsumed_tail
            if data:
                return data
            if not packed and not self._inflate.eof:
                raise BadTar("its gzip stream ends early")


def members(stream: Stream, start: int = 0) -> Iterator[TarMember]:
    """The members from an offset on; after each, the stream is at its content.

    The caller may read the content or ignore it.
    """
    stream.skip(start)
    named: str | None = None
    sized: int | None = None
    offset, count = start, 0
    while header := _header(stream):
        kind, size = header[156:157], _number(header[124:136])
        if kind in b"LKxg" and kind:
            text = _extension(stream, size)
            name, declared = _declared(kind, text)
            named, sized = name or named, sized if declared is None else declared
            continue
        size = sized if sized is not None else size
        if kind not in _REGULAR and kind != b"S":
            size = 0
        name = _text(header[:100]) if named is None else named
        if named is None and header[257:262] == b"ustar" and header[345:346] != b"\0":
            name = f"{_text(header[345:500])}/{name}"
        if kind == b"S" and header[482]:
            _skip_map(stream)
        content = stream.position
        yield TarMember(offset, name, size, "" if kind in _REGULAR else _OTHER.get(kind, "no file"))
        count += 1
        if count > limits.TAR_MEMBERS:
            raise BadTar(f"it has over {limits.TAR_MEMBERS:,} members")
        stream.skip(content + -(-size // BLOCK) * BLOCK - stream.position)
        named, sized, offset = None, None, stream.position


def _skip_map(stream: Stream) -> None:
    """Skip the blocks in which GNU tar continues the map of a sparse file."""
    while True:
        block = stream.read(BLOCK)
        if len(block) < BLOCK:
            raise BadTar("it ends within the map of a sparse file")
        if not block[504]:
            return


def _header(stream: Stream) -> bytes:
    """The next header; empty at the end of the archive. Raises BadTar if it is damaged."""
    at = stream.position
    header = stream.read(BLOCK)
    if not header:
        raise BadTar(f"it ends at byte {at:,} without the mark of an archive's end")
    if header == bytes(BLOCK):
        return b""
    if len(header) < BLOCK:
        raise BadTar(f"it ends within the header at byte {at:,}")
    plain = header[:148] + b" " * 8 + header[156:]
    if _number(header[148:156]) != sum(plain):
        raise BadTar(f"the header at byte {at:,} has a wrong checksum")
    return header


def _number(field: bytes) -> int:
    """A number of a header, in octal digits or, for large sizes, in binary (GNU)."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    else:
        digits = field.split(b"\0")[0].strip()
        if digits.strip(b"01234567"):
            raise BadTar(f"a header has the number {digits!r}")
        value = int(digits or b"0", 8)
    if value >= 2**63:
        raise BadTar("a header has a size of 2^63 bytes or more")
    return value


def _extension(stream: Stream, size: int) -> bytes:
    """The content of an extended header. Raises BadTar if it is not whole or too large."""
    if size > limits.TAR_HEADER_BYTES:
        raise BadTar(f"an extended header has {size:,} bytes")
    data = stream.read(size)
    if len(data) < size:
        raise BadTar("it ends within an extended header")
    stream.skip(-size % BLOCK)
    return data


def _declared(kind: bytes, text: bytes) -> tuple[str | None, int | None]:
    """The name and the size that an extended header states for the next member."""
    if kind == b"L":
        return _text(text), None
    if kind != b"x":
        return None, None
    name: str | None = None
    size: int | None = None
    at = 0
    while at < len(text):
        space = text.find(b" ", at, at + 10)
        length = text[at:space] if space > 0 else b""
        stop = at + int(length) if length.isdigit() else 0
        if not space + 1 < stop <= len(text):
            raise BadTar("a pax header is damaged")
        key, _, value = text[space + 1 : stop].rstrip(b"\n").partition(b"=")
        at = stop
        if key == b"path":
            name = _text(value)
        elif key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise BadTar("a pax header has a damaged size")
            size = int(value)
    return name, size


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode(errors="surrogateescape")


# --- Images in archives (https://github.com/webdataset/webdataset) ---

SUFFIXES = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class Tars:
    """Archives of images.

    Attributes:
        storage: the place.
        files: the archives, relative to the storage; one empty name if the storage is itself an archive.
    """

    storage: Storage
    files: tuple[str, ...]
    kind: str = "tar"
    column: str = ""

    def parts(self) -> list[Part]:
        """The parts: a fixed number of images for plain archives on this machine, whole archives otherwise.

        Splitting reads all headers, which would be slow over a network or through a decompressor.
        """
        number = counting()
        return [
            replace(part, number=next(number)) for file in self.files for part in self._cut(file)
        ]

    def _cut(self, file: str) -> list[Part]:
        try:
            with self.storage.opened(file) as content:
                stored = content.seek(0, os.SEEK_END)
                content.seek(0)
                stream = Stream(content, stored)
                if self.storage.remote or stream.packed:
                    return [Part(0, file, stop=stored)]
                starts = [member.offset for member in _until_torn(stream) if is_image(member.name)]
        except (UsageError, OSError) as error:
            why = error.why if isinstance(error, UsageError) else str(error)
            return [Part(0, file, rows=1, error=f"The archive cannot be read. {why}")]
        cuts = [0, *starts[PART_ROWS::PART_ROWS], stored]
        return [Part(0, file, a, b) for a, b in pairwise(cuts)]

    def read(self, part: Part) -> Iterator[Item]:
        """The images of a part; a damaged archive ends with an error in place of the rest."""
        if part.error:
            yield Item(part.file, error=part.error)
            return
        place = qualified_image_name(part.file, f"from byte {part.start}")
        try:
            with self.storage.opened(part.file) as content:
                size = content.seek(0, os.SEEK_END)
                content.seek(0)
                yield from _images(content, size, part)
        except (BadTar, OSError, EOFError) as error:
            yield Item(place, error=f"The archive is damaged, and read up to here: {error}.")
        except UsageError as error:
            yield Item(place, error=f"The archive cannot be read. {error.why}")


def _until_torn(stream: Stream) -> Iterator[TarMember]:
    """The members of an archive, as far as it is intact."""
    try:
        yield from members(stream)
    except BadTar:
        return  # the last part reports it


def _images(content: BinaryIO, size: int, part: Part) -> Iterator[Item]:
    stream = Stream(content, size)
    for member in members(stream, part.start):
        if not stream.packed and part.stop is not None and member.offset >= part.stop:
            return
        if is_image(member.name):
            yield _image(stream, member, part.file)


def _image(stream: Stream, member: TarMember, file: str) -> Item:
    """A member as an item; one that is not a plain file, too large or cut off has an error."""
    name = qualified_image_name(file, member.name)
    if member.other:
        return Item(name, error=f"The member is {member.other}, which is not followed.")
    if member.size > limits.IMAGE_FILE_BYTES:
        return Item(
            name,
            error=f"The member has {member.size:,} bytes, the limit is {limits.IMAGE_FILE_BYTES:,}.",
        )
    data = stream.read(member.size)
    if len(data) < member.size:
        return Item(name, error=f"The archive ends after {len(data):,} bytes of {member.size:,}.")
    return Item(name, data)
