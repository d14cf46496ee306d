"""Telling what a source is: by what a folder holds, and by how a file begins."""

from __future__ import annotations

import zlib

from capsedge.batches import tables, tars
from capsedge.batches.arrays import Arrays
from capsedge.batches.folder import Folder, is_image
from capsedge.batches.items import Source
from capsedge.batches.storage import Storage
from capsedge.batches.tables import Tables, find_column
from capsedge.batches.tars import Tars
from capsedge.errors import UsageError
from capsedge.runtime.files import formats, opening
from capsedge.runtime.vision.image_headers import SUFFIXES

_KNOWN = (
    f"Sources are folders of images ({', '.join(SUFFIXES)}), parquet files, tar archives, and idx, npz and "
    "npy files."
)
_TAR_MAGIC = slice(257, 262)


def find_source(address: str, column: str = "") -> Source:
    """The source at an address.

    Args:
        address: a path, or an address of fsspec such as ``s3://bucket/folder``.
        column: the column of a parquet file, or the array of an npz file, that holds the images.

    Raises:
        UsageError: there is nothing, or nothing that is read.
        EnvironmentProblem: a package that reads it is missing.
    """
    storage = Storage(address)
    kind = storage.kind()
    if kind is None:
        raise UsageError(f"There is no {address}.", "", "Name a folder or a file with images.")
    source = _in_folder(storage, column) if kind == opening.FOLDER else _file(storage, column)
    if column and source.kind not in ("parquet", "npz"):
        raise UsageError(
            f"{address} has no columns.",
            "Only parquet and npz files have.",
            "Leave the column out.",
        )
    return source


def _in_folder(storage: Storage, column: str) -> Source:
    names = storage.names()
    found = {
        "images": [name for name in names if is_image(name)],
        "parquet files": [name for name in names if name.lower().endswith(tables.SUFFIXES)],
        "tar archives": [name for name in names if name.lower().endswith(tars.SUFFIXES)],
    }
    kinds = [kind for kind, files in found.items() if files]
    if len(kinds) != 1:
        counts = ", ".join(f"{len(found[kind]):,} {kind}" for kind in kinds)
        raise UsageError(
            f"The folder {storage.address} holds {counts or 'nothing that is read'}.",
            "One run reads one kind." if kinds else _KNOWN,
            "Name a folder with one of them." if kinds else "Name a folder or a file with images.",
        )
    files = tuple(found[kinds[0]])
    if kinds == ["images"]:
        return Folder(storage, files)
    if kinds == ["tar archives"]:
        return Tars(storage, files)
    return Tables(storage, files, find_column(storage, files, column))


def _file(storage: Storage, column: str) -> Source:
    start = storage.start(1024)
    if start[:2] == b"\x1f\x8b":
        inner = _unpacked(start)
        return Tars(storage, ("",)) if inner[_TAR_MAGIC] == b"ustar" else Arrays(storage, "idx")
    if start[:4] == b"PAR1":
        return Tables(storage, ("",), find_column(storage, ("",), column))
    if start[_TAR_MAGIC] == b"ustar" or storage.address.lower().endswith(".tar"):
        return Tars(storage, ("",))
    if start[:4] == b"PK\x03\x04":
        return Arrays(storage, "npz", column)
    if start[:6] == b"\x93NUMPY":
        return Arrays(storage, "npy")
    if start[:3] == bytes((0, 0, 8)):
        return Arrays(storage, "idx")
    told = formats.tell_bytes(start)
    raise UsageError(
        f"{storage.address} is {'no source' if told is None else told.name}.",
        _KNOWN,
        "Run `capsedge infer` on single images, or name a source.",
    )


def _unpacked(start: bytes) -> bytes:
    """What the beginning of a gzip file unpacks to."""
    try:
        return zlib.decompressobj(wbits=31).decompress(start, 4096)
    except zlib.error:
        return b""
