"""Read untrusted zip archives: npz files and PyTorch's checkpoints."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import IO

from capsedge.errors import CapsedgeError
from capsedge.runtime.files.reading import file_size
from capsedge.spec import limits

_LOCAL_HEADER = struct.Struct("<4s22xHH")


class BadArchive(ValueError):
    """An archive is damaged, exceeds the limits, or is not a zip archive."""


class Archive:
    """An open zip archive; its content is read only when requested, and only as much as requested.

    Raises:
        BadArchive: it is not a zip archive, or lists too many members.
    """

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        with _damaged():
            self._zip = zipfile.ZipFile(_Capped(file))

    @property
    def names(self) -> list[str]:
        """The names of all members."""
        return list(self._zip.NameToInfo)

    @contextmanager
    def member(self, name: str) -> Iterator[IO[bytes]]:
        """A member, unpacked as it is read."""
        entry = self._entry(name)
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BadArchive(f"'{name}' is compressed with an unknown method")
        with _damaged(), self._zip.open(entry) as content:
            yield content

    def stored(self, name: str, most: int) -> bytearray:
        """The whole content of an uncompressed member; not checked by its checksum, which PyTorch may omit.

        Args:
            most: largest number of bytes that it may have.
        """
        entry = self._entry(name)
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise BadArchive(f"'{name}' is compressed")
        if entry.file_size > most:
            raise BadArchive(f"'{name}' has {entry.file_size:,} bytes, the limit is {most:,}")
        with _damaged():
            self._file.seek(entry.header_offset)
            magic, names, extra = _LOCAL_HEADER.unpack(self._file.read(_LOCAL_HEADER.size))
            start = entry.header_offset + _LOCAL_HEADER.size + names + extra
            if magic != b"PK\3\4" or entry.file_size > file_size(self._file) - start:
                raise BadArchive(f"'{name}' lies outside the file")
            self._file.seek(start)
            content = bytearray(entry.file_size)
            if self._file.readinto(content) != len(content):
                raise BadArchive(f"'{name}' is truncated")
            return content

    def length(self, name: str) -> int:
        """Size of a member in bytes, according to the index. Raises BadArchive if it is missing."""
        return self._entry(name).file_size

    def _entry(self, name: str) -> zipfile.ZipInfo:
        if name not in self._zip.NameToInfo:
            raise BadArchive(f"it has no '{name}'")
        return self._zip.NameToInfo[name]


class _Capped:
    """A file that refuses to read much at once: zipfile reads only the index at once."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, count: int = -1) -> bytes:
        """Read at most as many bytes as an index may have."""
        if count > limits.ARCHIVE_INDEX_BYTES:
            raise BadArchive(f"its index has {count:,} bytes")
        return self._file.read(count if count >= 0 else limits.ARCHIVE_INDEX_BYTES)


@contextmanager
def _damaged() -> Iterator[None]:
    try:
        yield
    except (BadArchive, CapsedgeError):
        raise
    except Exception as error:  # zipfile raises many kinds for damaged archives, none of them ours
        raise BadArchive(f"{type(error).__name__}: {error}") from error


# --- Identifying an archive by its member names: weights, a model or arrays ---


def zip_format_key(file: BufferedReader) -> str:
    """The key of its `Format`; ``zip`` if it is no known format, or damaged."""
    try:
        return _by_members(Archive(file))
    except BadArchive:
        return "zip"


def _by_members(archive: Archive) -> str:
    names = archive.names
    leaves = {name.rpartition("/")[2] for name in names}
    if "constants.pkl" in leaves and any("/code/" in f"/{name}" for name in names):
        return "torchscript"
    if {"serialized_exported_program.json", "archive_format"} & leaves:
        return "torch-export"
    pickled = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
    if pickled:
        return "checkpoint" if _states_configuration(archive, pickled[0]) else "pytorch"
    if "model.weights.h5" in leaves or {"config.json", "metadata.json"} <= leaves:
        return "keras"
    if names and all(name.endswith(".npy") for name in names):
        return "npz"
    return "zip"


def _states_configuration(archive: Archive, name: str) -> bool:
    """Whether a PyTorch file looks like ``{"config": ..., "state_dict": ...}``; its pickle is not run."""
    try:
        with archive.member(name) as member:
            content = member.read(limits.PICKLE_BYTES)
    except BadArchive:
        return False
    return b"\x06\0\0\0config" in content and b"\x0a\0\0\0state_dict" in content
