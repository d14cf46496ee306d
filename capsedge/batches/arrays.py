"""Images in arrays: idx, npy and npz files."""

from __future__ import annotations

import math
import os
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.batches.items import PART_ROWS, Item, Part
from capsedge.batches.storage import Storage
from capsedge.datasets import idx, npz
from capsedge.errors import UsageError
from capsedge.runtime.files import limits
from capsedge.runtime.files.opening import opened

_READ = 64  # images read at once
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Arrays:
    """The images of one array, ``[N, H, W]`` or ``[N, H, W, C]`` of pixels or ``[N, C, H, W]`` of floats.

    Plain npy and idx files are read part by part; archives and compressed files are held in memory, within
    `limits.ARRAY_BYTES`.

    Attributes:
        storage: the file.
        kind: ``idx``, ``npy`` or ``npz``.
        column: the array of an archive; empty for ``images``, or the only one.
    """

    storage: Storage
    kind: str
    column: str = ""

    def parts(self) -> list[Part]:
        """The parts, of a fixed number of images.

        Raises:
            UsageError: the file cannot be read, or holds no images.
        """
        shape = self._rows.shape if self._layout is None else self._layout.shape
        dtype = self._rows.dtype if self._layout is None else self._layout.dtype
        pixels = dtype in (np.uint8, np.uint16, np.bool_) and len(shape) in (3, 4)
        if not pixels and not (dtype.kind == "f" and len(shape) == 4):
            raise UsageError(
                f"{self.storage.address} holds {dtype} {list(shape)}.",
                "Images are pixels [N, H, W] or [N, H, W, C], or prepared floats [N, C, H, W].",
                "Save the images in one of these forms.",
            )
        # Without values, a file of any size could hold any number of images.
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
        """The images of a part.

        Raises:
            UsageError: the file is gone or no longer whole.
        """
        stop = part.start if part.stop is None else part.stop
        for start in range(part.start, stop, _READ):
            last = min(start + _READ, stop)
            rows = self._rows[start:last] if self._layout is None else self._some(start, last)
            for k, row in enumerate(rows, start):
                yield Item(str(k), row)

    def __reduce__(self) -> tuple[Any, ...]:
        return Arrays, (self.storage, self.kind, self.column)  # without what is in memory

    @cached_property
    def _copy(self) -> tempfile.TemporaryDirectory[str]:
        """A file of another file system, copied to this machine.

        Raises:
            UsageError: it cannot be read, or is too large.
        """
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
            return idx.read(path)
        if self.kind == "npy":
            return npz.read_single(path)
        with npz.opened_arrays(path) as arrays:
            return arrays.read(self._chosen(arrays))

    def _chosen(self, arrays: npz.Arrays) -> str:
        names = [name for name in arrays.names if name != "labels"]
        wanted = self.column or ("images" if "images" in names or len(names) != 1 else names[0])
        if wanted not in arrays:
            raise UsageError(
                f"{self.storage.address} has no array '{wanted}'.",
                f"It has {', '.join(names) or 'none'}.",
                "Name one.",
                command="Name one with --column.",
            )
        return wanted

    @cached_property
    def _layout(self) -> _Layout | None:
        """Where the rows of an uncompressed file are; None for other files."""
        if self.kind == "npz":
            return None
        with opened(self._path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if self.kind == "npy":
                dtype, fortran, shape = npz.header(self._path, file, "the array")
                if fortran or not shape:
                    return None
            else:
                head = file.read(4)
                if head[:2] == b"\x1f\x8b":
                    return None
                if len(head) < 4 or head[:3] != bytes((0, 0, 8)) or not 1 <= head[3] <= 4:
                    return None  # the reader of the whole file says what is wrong
                packed = file.read(4 * head[3])
                if len(packed) < 4 * head[3]:
                    return None
                dtype, shape = np.dtype(np.uint8), struct.unpack(f">{head[3]}I", packed)
            layout = _Layout(file.tell(), dtype, shape)
        if layout.start + layout.row_bytes * shape[0] != size:
            raise UsageError(
                f"{self.storage.address} is not whole.",
                f"It has {size:,} bytes of {layout.start + layout.row_bytes * shape[0]:,}.",
                "Get it again.",
            )
        return layout

    def _some(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of an uncompressed file.

        Raises:
            UsageError: it is no longer whole.
        """
        layout = self._layout
        assert layout is not None
        wanted = (stop - start) * layout.row_bytes
        with opened(self._path) as file:
            file.seek(layout.start + start * layout.row_bytes)
            data = file.read(wanted)
        if len(data) < wanted:
            raise UsageError(f"{self.storage.address} is not whole.", "It became shorter.")
        rows = np.frombuffer(data, layout.dtype).reshape(stop - start, *layout.shape[1:])
        return rows.astype(layout.dtype.newbyteorder("="), copy=False)


@dataclass(frozen=True)
class _Layout:
    """Where an array lies in a file."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize
