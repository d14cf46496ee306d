"""Identify a source of images, and read arrays of images."""

from __future__ import annotations

import math
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.batch_inference import parquet, tar
from capsedge.batch_inference.items import PART_ROWS, ImageFolder, ImageSource, Item, Part, is_image
from capsedge.batch_inference.parquet import Tables, find_column
from capsedge.batch_inference.storage import Storage
from capsedge.batch_inference.tar import Tars
from capsedge.datasets import array_files
from capsedge.errors import UsageError
from capsedge.runtime.files import formats, reading
from capsedge.runtime.files.reading import open_regular_file
from capsedge.runtime.images.headers import SUFFIXES
from capsedge.spec import limits

# --- ArrayRows: idx, npy and npz files ---

_READ = 64  # images read at once
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ArrayRows:
    """The images of one array, ``[N, H, W]`` or ``[N, H, W, C]`` of pixels or ``[N, C, H, W]`` of floats.

    Plain npy and idx files are read part by part; archives and compressed files are held in memory, within
    `limits.ARRAY_BYTES`.

    Attributes:
        storage: the file.
        kind: ``idx``, ``npy`` or ``npz``.
        column: the array in an archive; empty for ``images`` or the only array.
    """

    storage: Storage
    kind: str
    column: str = ""

    def parts(self) -> list[Part]:
        """The parts, each with a fixed number of images."""
        shape = self._rows.shape if self._layout is None else self._layout.shape
        dtype = self._rows.dtype if self._layout is None else self._layout.dtype
        pixels = dtype in (np.uint8, np.uint16, np.bool_) and len(shape) in (3, 4)
        if not pixels and not (dtype.kind == "f" and len(shape) == 4):
            raise UsageError(
                f"{self.storage.address} holds {dtype} {list(shape)}.",
                "Images are pixels [N, H, W] or [N, H, W, C], or prepared floats [N, C, H, W].",
                "Save the images in one of these forms.",
            )
        # If an image had no values, a file of any size could hold any number of images.
        if not 1 <= math.prod(shape[1:]) <= limits.INPUT_VALUES:
            raise UsageError(
                f"{self.storage.address} has images {list(shape[1:])}.",
                f"Images have from 1 to {limits.INPUT_VALUES:,} values.",
                "Save images of another size.",
            )
        return [
            Part(k, start=start, stop=min(start + PART_ROWS, shape[0]), row=start,
                 rows=min(PART_ROWS, shape[0] - start))
            for k, start in enumerate(range(0, shape[0], PART_ROWS))
        ]  # fmt: skip

    def read(self, part: Part) -> Iterator[Item]:
        """The images of a part. Raises UsageError if the file is gone or no longer whole."""
        stop = part.start if part.stop is None else part.stop
        for start in range(part.start, stop, _READ):
            last = min(start + _READ, stop)
            rows = self._rows[start:last] if self._layout is None else self._some(start, last)
            for k, row in enumerate(rows, start):
                yield Item(str(k), row)

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayRows, (self.storage, self.kind, self.column)  # without the arrays in memory

    @cached_property
    def _copy(self) -> tempfile.TemporaryDirectory[str]:
        """Copy a file from another file system to this machine."""
        folder = tempfile.TemporaryDirectory(prefix="capsedge-", ignore_cleanup_errors=True)
        name = f"array.{self.kind}"
        with self.storage.opened() as source, open(Path(folder.name, name), "wb") as copy:
            while data := source.read(_CHUNK):
                copy.write(data)
                if copy.tell() > limits.ARRAY_BYTES:
                    raise UsageError(
                        f"{self.storage.address} is too large.",
                        f"It has over {limits.ARRAY_BYTES:,} bytes.",
                        "Divide it, or store the images in tar or parquet files.",
                    )
        return folder

    @property
    def _path(self) -> Path:
        """The file on this machine."""
        if self.storage.remote:
            return Path(self._copy.name, f"array.{self.kind}")
        return self.storage.local()

    @cached_property
    def _rows(self) -> NDArray[Any]:
        """The whole array."""
        path = self._path
        if self.kind == "idx":
            return array_files.read(path)
        if self.kind == "npy":
            return array_files.read_single(path)
        with array_files.opened_arrays(path) as arrays:
            return arrays.read(self._chosen(arrays))

    def _chosen(self, arrays: array_files.Arrays) -> str:
        names = [name for name in arrays.names if name != "labels"]
        wanted = self.column or ("images" if "images" in names or len(names) != 1 else names[0])
        if wanted not in arrays:
            raise UsageError(
                f"{self.storage.address} has no array '{wanted}'.",
                f"It has {', '.join(names) or 'none'}.",
                "Choose one.",
                command="Choose one with --column.",
            )
        return wanted

    @cached_property
    def _layout(self) -> _ColumnLayout | None:
        """The position of the rows in an uncompressed file; None for other files."""
        if self.kind == "npz":
            return None
        with open_regular_file(self._path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if self.kind == "npy":
                dtype, fortran, shape = array_files.read_npy_header(self._path, file, "the array")
                if fortran or not shape:
                    return None
            else:
                head = file.read(4)
                if head[:2] == b"\x1f\x8b":
                    return None
                if len(head) < 4 or head[:3] != bytes((0, 0, 8)) or not 1 <= head[3] <= 4:
                    return None  # reading the whole file then reports the fault
                packed = file.read(4 * head[3])
                if len(packed) < 4 * head[3]:
                    return None
                dtype, shape = np.dtype(np.uint8), struct.unpack(f">{head[3]}I", packed)
            layout = _ColumnLayout(file.tell(), dtype, shape)
        if layout.start + layout.row_bytes * shape[0] != size:
            raise UsageError(
                f"{self.storage.address} is incomplete.",
                f"It has {size:,} bytes of {layout.start + layout.row_bytes * shape[0]:,}.",
                "Get a new copy.",
            )
        return layout

    def _some(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of an uncompressed file. Raises UsageError if it is no longer whole."""
        layout = self._layout
        assert layout is not None
        wanted = (stop - start) * layout.row_bytes
        with open_regular_file(self._path) as file:
            file.seek(layout.start + start * layout.row_bytes)
            data = file.read(wanted)
        if len(data) < wanted:
            raise UsageError(
                f"{self.storage.address} is incomplete.", "It became shorter during the run."
            )
        rows = np.frombuffer(data, layout.dtype).reshape(stop - start, *layout.shape[1:])
        return rows.astype(layout.dtype.newbyteorder("="), copy=False)


@dataclass(frozen=True)
class _ColumnLayout:
    """The position of an array in a file."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


# --- Identifying a source by the contents of a folder or the first bytes of a file ---

_KNOWN = (
    f"Sources are folders of images ({', '.join(SUFFIXES)}), parquet files, tar archives, and idx, npz and "
    "npy files."
)
_TAR_MAGIC = slice(257, 262)


def open_source(address: str, column: str = "") -> ImageSource:
    """The source at an address.

    Args:
        address: a path, or an fsspec address such as ``s3://bucket/folder``.
        column: the column of a parquet file, or the array of an npz file, that holds the images.
    """
    storage = Storage(address)
    kind = storage.kind()
    if kind is None:
        raise UsageError(f"There is no {address}.", "", "Pass a folder or a file with images.")
    source = _in_folder(storage, column) if kind == reading.FOLDER else _file(storage, column)
    if column and source.kind not in ("parquet", "npz"):
        raise UsageError(
            f"{address} has no columns.",
            "Only parquet and npz files have columns.",
            "Leave out the column.",
        )
    return source


def _in_folder(storage: Storage, column: str) -> ImageSource:
    names = storage.names()
    by_kind = {
        "images": [name for name in names if is_image(name)],
        "parquet files": [name for name in names if name.lower().endswith(parquet.SUFFIXES)],
        "tar archives": [name for name in names if name.lower().endswith(tar.SUFFIXES)],
    }
    kinds = [kind for kind, files in by_kind.items() if files]
    if len(kinds) != 1:
        counts = ", ".join(f"{len(by_kind[kind]):,} {kind}" for kind in kinds)
        raise UsageError(
            f"The folder {storage.address} holds {counts or 'no supported files'}.",
            "A run reads only one kind." if kinds else _KNOWN,
            "Choose a folder with only one kind."
            if kinds
            else "Pass a folder or a file with images.",
        )
    files = tuple(by_kind[kinds[0]])
    if kinds == ["images"]:
        return ImageFolder(storage, files)
    if kinds == ["tar archives"]:
        return Tars(storage, files)
    return Tables(storage, files, find_column(storage, files, column))


def _file(storage: Storage, column: str) -> ImageSource:
    start = storage.start(1024)
    if start[:2] == b"\x1f\x8b":
        inner = _unpacked(start)
        return Tars(storage, ("",)) if inner[_TAR_MAGIC] == b"ustar" else ArrayRows(storage, "idx")
    if start[:4] == b"PAR1":
        return Tables(storage, ("",), find_column(storage, ("",), column))
    if start[_TAR_MAGIC] == b"ustar" or storage.address.lower().endswith(".tar"):
        return Tars(storage, ("",))
    if start[:4] == b"PK\x03\x04":
        return ArrayRows(storage, "npz", column)
    if start[:6] == b"\x93NUMPY":
        return ArrayRows(storage, "npy")
    if start[:3] == bytes((0, 0, 8)):
        return ArrayRows(storage, "idx")
    identified = formats.identify_bytes(start)
    raise UsageError(
        f"{storage.address} is {'no source' if identified is None else identified.name}.",
        _KNOWN,
        "Use `capsedge infer` for single images, or pass a source.",
    )


def _unpacked(start: bytes) -> bytes:
    """The first unpacked bytes of a gzip file."""
    try:
        return zlib.decompressobj(wbits=31).decompress(start, 4096)
    except zlib.error:
        return b""
