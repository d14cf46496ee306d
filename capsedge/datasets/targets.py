"""Images with values to estimate, such as the angles of a head.

Two formats: a folder with the table ``targets.csv``, whose columns are ``file`` and the names of the values;
or an npz file (also ``test.npz`` in a folder) with ``images`` and ``targets`` ``[N, K]``.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import folder, npz
from capsedge.datasets.imageset import ImageSet
from capsedge.datasets.reading import read_images
from capsedge.errors import UsageError
from capsedge.runtime.files import limits
from capsedge.runtime.files.opening import opened, size
from capsedge.runtime.metadata import Preprocessing

TABLE, ARCHIVE = "targets.csv", "test.npz"
_FILE = "file"


def read_targets(
    source: Path | str, prep: Preprocessing, names: Sequence[str], limit: int | None = None
) -> ImageSet:
    """Images and the values that a network should estimate of them.

    Args:
        source: a folder with ``targets.csv`` or ``test.npz``, or an npz file.
        prep: the network's preprocessing.
        names: of its values, which are columns of the table. An npz file has them in their order.
        limit: number of images to read, from the first on.

    Returns:
        A set with ``targets``.

    Raises:
        UsageError: the source cannot be read, has no values, or others.
    """
    source = Path(source)
    if os.path.isdir(source) and os.path.lexists(source / TABLE):
        return _of_table(source, prep, names, limit)
    archive = source / ARCHIVE if os.path.isdir(source) else source
    if archive.suffix != ".npz" or not os.path.lexists(archive):
        raise UsageError(
            f"{source} has no values to compare with.",
            f"The network estimates {', '.join(names)}, not classes.",
            f"Give a folder of images with a table {TABLE} (columns {_FILE},{','.join(names)}), or an npz "
            "file with 'images' and 'targets' [N, K] (docs/reference/data.md).",
        )
    images = read_images(archive, prep, "test", limit, classes=False)
    return replace(images, targets=_of_archive(archive, len(images), len(names), limit))


def _of_archive(path: Path, images: int, values: int, limit: int | None) -> NDArray[np.float64]:
    with npz.opened_arrays(path) as arrays:
        found = arrays.read("targets", limit)
    if found.dtype.kind not in "fiu" or found.shape != (images, values):
        raise UsageError(
            f"{path}: 'targets' is {found.dtype} {list(found.shape)}.",
            f"It must be numbers [{images}, {values}]: a value of each kind for each image.",
        )
    if not np.isfinite(found).all():
        raise UsageError(
            f"{path}: 'targets' has values that are NaN or infinite.", "", "Leave those images out."
        )
    return found.astype(np.float64)


def _of_table(
    source: Path, prep: Preprocessing, names: Sequence[str], limit: int | None
) -> ImageSet:
    rows = list(_rows(source / TABLE, names, limit))
    if not rows:
        raise UsageError(f"{source / TABLE} has no rows.", "", "Give a row for each image.")
    files = [source / file for file, _ in rows]
    return ImageSet(
        source.name,
        folder.read_pixels(files, prep),
        preprocessing=prep,
        names=tuple(file for file, _ in rows),
        whole=limit is None or len(rows) < limit,
        targets=np.array([values for _, values in rows], np.float64),
    )


def _rows(path: Path, names: Sequence[str], limit: int | None) -> Iterator[tuple[str, list[float]]]:
    """File and values of each row."""
    with opened(path) as file:
        if size(file) > limits.TABLE_BYTES:
            raise UsageError(
                f"{path} is larger than {limits.TABLE_BYTES // limits.MIB} MiB.", "It is not read."
            )
        try:
            text = file.read(limits.TABLE_BYTES).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not UTF-8.", f"{error}.", "Save it as UTF-8.") from error
    table = csv.DictReader(text.splitlines())
    try:
        lacking = [name for name in (_FILE, *names) if name not in (table.fieldnames or ())]
        if lacking:
            raise UsageError(
                f"{path} has no column '{lacking[0]}'.",
                f"Its columns are {', '.join(table.fieldnames or ()) or 'none'}.",
                f"Its first line should be {_FILE},{','.join(names)}.",
            )
        for k, row in enumerate(table):
            if k == limit:
                return
            yield _inside(path, row[_FILE]), [_value(path, k + 2, row, name) for name in names]
    except csv.Error as error:
        raise UsageError(f"{path} is not a table.", f"{error}.", "Save it as CSV again.") from error


def _inside(path: Path, file: str | None) -> str:
    """The name of a file in the folder of the table or below."""
    parts = PurePosixPath(file or "")
    if not file or parts.is_absolute() or ".." in parts.parts or "\\" in file:
        raise UsageError(
            f"{path} names the file '{file or ''}'.", "Files lie beside the table or below.", ""
        )
    return file


def _value(path: Path, line: int, row: dict[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{path}, line {line}: {name} is '{row[name]}'.", "It must be a number.")
    return value
