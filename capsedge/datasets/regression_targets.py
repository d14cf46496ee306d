"""Read images with values to estimate, such as the angles of a head, and typical images.

Two formats: a folder with the table ``targets.csv``, whose columns are ``file`` and the names of the values;
or an npz file (also ``test.npz`` in a folder) with ``images`` and ``targets`` ``[N, K]``.
"""

from __future__ import annotations

import csv
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import array_files
from capsedge.datasets.class_folders import read_pixels
from capsedge.datasets.image_set import ImageSet
from capsedge.datasets.read import image_set_from_arrays, read_images
from capsedge.errors import UsageError
from capsedge.runtime.files.reading import file_size, open_regular_file
from capsedge.runtime.files.writing import DATA, as_path
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.typical_input import TypicalInput, spans_of
from capsedge.runtime.user_metadata import Description
from capsedge.spec import limits

TABLE, ARCHIVE = "targets.csv", "test.npz"
_FILE = "file"


def read_targets(
    source: Path | str, prep: Preprocessing, names: Sequence[str], limit: int | None = None
) -> ImageSet:
    """Images and the values that a network should estimate for them.

    Args:
        source: a folder with ``targets.csv`` or ``test.npz``, or an npz file.
        prep: the network's preprocessing.
        names: names of its values, which are columns of the table. An npz file has them in their order.
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
            f"Pass a folder of images with a table {TABLE} (columns {_FILE},{','.join(names)}), or "
            "an npz file with 'images' and 'targets' [N, K] (docs/reference/data.md).",
        )
    images = read_images(archive, prep, "test", limit, classes=False)
    return replace(images, targets=_of_archive(archive, len(images), len(names), limit))


def _of_archive(path: Path, images: int, values: int, limit: int | None) -> NDArray[np.float64]:
    with array_files.opened_arrays(path) as arrays:
        targets = arrays.read("targets", limit)
    if targets.dtype.kind not in "fiu" or targets.shape != (images, values):
        raise UsageError(
            f"{path}: 'targets' is {targets.dtype} {list(targets.shape)}.",
            f"It must hold numbers [{images}, {values}], one row of values per image.",
        )
    if not np.isfinite(targets).all():
        raise UsageError(
            f"{path}: 'targets' has values that are NaN or infinite.", "", "Leave those images out."
        )
    return targets.astype(np.float64)


def _of_table(
    source: Path, prep: Preprocessing, names: Sequence[str], limit: int | None
) -> ImageSet:
    rows = list(_rows(source / TABLE, names, limit))
    if not rows:
        raise UsageError(f"{source / TABLE} has no rows.", "", "Add a row for each image.")
    files = [source / file for file, _ in rows]
    return ImageSet(
        source.name,
        read_pixels(files, prep),
        preprocessing=prep,
        names=tuple(file for file, _ in rows),
        whole=limit is None or len(rows) < limit,
        targets=np.array([values for _, values in rows], np.float64),
    )


def _rows(path: Path, names: Sequence[str], limit: int | None) -> Iterator[tuple[str, list[float]]]:
    """File and values of each row."""
    with open_regular_file(path) as file:
        if file_size(file) > limits.TABLE_BYTES:
            raise UsageError(
                f"{path} is larger than {limits.TABLE_BYTES // limits.MIB} MiB.",
                "Larger files are not read.",
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
                f"Make its first line {_FILE},{','.join(names)}.",
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
            f"{path} names the file '{file or ''}'.",
            "Files must be in the table's folder or below it.",
            "",
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


# --- The typical input, from images as in training ---

Typical: TypeAlias = "str | os.PathLike[str] | NDArray[Any] | ImageSet | TypicalInput"


def typical_input_from(data: Typical, preprocessing: Preprocessing) -> TypicalInput:
    """The criterion for atypical images: those unlike every image of ``data`` (docs/reference/metadata.md).

    Args:
        data: 100 images or more as in training: a data set folder (its split ``train``), a folder of images,
            an npz, npy or idx file; uint8 pixels ``[N, H, W]`` or ``[N, H, W, C]``; prepared floats
            ``[N, C, H, W]``; or a criterion, which is returned.
        preprocessing: preprocessing of the model.

    Returns:
        The criterion, for ``typical`` of `capsedge.export` and `capsedge.optimize`.

    Raises:
        UsageError: the images cannot be read, or are too few or too small.

    Example:
        >>> pixels = np.random.default_rng(0).integers(0, 256, (200, 28, 28), np.uint8)
        >>> typical_input_from(pixels, capsedge.Preprocessing(28, 28, 1)).images
        200
    """
    if isinstance(data, TypicalInput):
        return data
    if isinstance(data, np.ndarray):
        data = image_set_from_arrays({"images": data}, preprocessing, {"images": "float32"})
    elif not isinstance(data, ImageSet):
        data = read_images(as_path(data, DATA), preprocessing, "train")
    pixels = data.images.dtype.kind != "f"
    data = replace(data, preprocessing=preprocessing if pixels else None)
    _check_shapes(data, preprocessing)
    try:
        return spans_of(data.inputs(), preprocessing.layout, data.digest())
    except ValueError as error:
        raise UsageError(
            f"{data.source} does not determine what typical images look like.",
            f"{error}.",
            "Pass images like those of training, preferably thousands.",
        ) from error


def _check_shapes(data: ImageSet, preprocessing: Preprocessing) -> None:
    """Raise a UsageError for prepared images of another size than the model's."""
    shape = data.images.shape[1:]
    if data.preprocessing is None and shape != preprocessing.shape:
        raise UsageError(
            f"{data.source} has images {list(shape)}.",
            f"Prepared for the model, they are {list(preprocessing.shape)}.",
            "Pass uint8 pixels, which are prepared automatically, or floats of this size.",
        )


def typical_images(data: Typical | None) -> Callable[[Preprocessing], TypicalInput] | None:
    """`typical_input_from` for a preprocessing that is not known yet; None without data."""
    if data is None:
        return None
    if not isinstance(data, (TypicalInput, np.ndarray, ImageSet)):
        path = as_path(data, DATA)
        if not os.path.lexists(path):
            raise UsageError(f"There is no {path}.", "", "Pass a folder or a file with images.")
        data = Path(path)
    source = data
    return functools.cache(lambda preprocessing: typical_input_from(source, preprocessing))


def with_typical_images(description: Description | None) -> Description:
    """A description whose ``typical`` images become the criterion once the preprocessing is known."""
    base = description or Description()
    if base.typical is None or callable(base.typical):
        return base
    return replace(base, typical=typical_images(base.typical))
