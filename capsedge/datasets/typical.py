"""The criterion for nothing to see, from images as in training."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets.imageset import ImageSet
from capsedge.datasets.reading import as_images, read_images
from capsedge.errors import UsageError
from capsedge.runtime.files.given import DATA, as_path
from capsedge.runtime.metadata import Preprocessing
from capsedge.runtime.nothing import TypicalInput, spans_of

Typical: TypeAlias = "str | os.PathLike[str] | NDArray[Any] | ImageSet | TypicalInput"


def typical_input_from(data: Typical, preprocessing: Preprocessing) -> TypicalInput:
    """When an image has nothing to see: what no image of ``data`` is like (docs/reference/metadata.md).

    Args:
        data: 100 images or more as in training: a data set folder (its split ``train``), a folder of images,
            an npz, npy or idx file; uint8 pixels ``[N, H, W]`` or ``[N, H, W, C]``; prepared floats
            ``[N, C, H, W]``; or a criterion, which is returned.
        preprocessing: of the model.

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
        data = as_images({"images": data}, preprocessing, {"images": "float32"})
    elif not isinstance(data, ImageSet):
        data = read_images(as_path(data, DATA), preprocessing, "train")
    pixels = data.images.dtype.kind != "f"
    data = replace(data, preprocessing=preprocessing if pixels else None)
    _check_shapes(data, preprocessing)
    try:
        return spans_of(data.inputs(), preprocessing.layout, data.digest())
    except ValueError as error:
        raise UsageError(
            f"{data.source} does not show what images look like.",
            f"{error}.",
            "Give images as in training, the more the better: thousands.",
        ) from error


def _check_shapes(data: ImageSet, preprocessing: Preprocessing) -> None:
    """Raise a UsageError for prepared images of another size than the model's."""
    shape = data.images.shape[1:]
    if data.preprocessing is None and shape != preprocessing.shape:
        raise UsageError(
            f"{data.source} has images {list(shape)}.",
            f"Prepared for the model, they are {list(preprocessing.shape)}.",
            "Give uint8 pixels, which are prepared, or floats of this size.",
        )


def typical_images(data: Typical | None) -> Callable[[Preprocessing], TypicalInput] | None:
    """`typical_input_from` for a preprocessing that is not known yet; None without data.

    Raises:
        UsageError: there is no such file, said before any work.
    """
    if data is None:
        return None
    if not isinstance(data, (TypicalInput, np.ndarray, ImageSet)):
        path = as_path(data, DATA)
        if not os.path.lexists(path):
            raise UsageError(f"There is no {path}.", "", "Name a folder or file with images.")
        data = Path(path)
    given = data
    return functools.cache(lambda preprocessing: typical_input_from(given, preprocessing))
