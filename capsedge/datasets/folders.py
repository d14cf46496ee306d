"""Folders of images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets.array_files import check_bytes
from capsedge.runtime.files.reading import list_folder
from capsedge.runtime.images.decoding import read_image
from capsedge.runtime.images.headers import SUFFIXES
from capsedge.runtime.images.preprocessing import prepare
from capsedge.runtime.metadata import Preprocessing


def images_of(folder: Path) -> list[Path]:
    """The images of a folder, by name.

    Raises:
        UsageError: it cannot be read.
    """
    return [folder / name for name in list_folder(folder) if name.lower().endswith(SUFFIXES)]


def holds_folders(folder: Path) -> bool:
    """Whether there is such a folder, with folders in it."""
    return os.path.isdir(folder) and any(
        os.path.isdir(folder / name) for name in list_folder(folder)
    )


def read_prepared(files: Sequence[Path], prep: Preprocessing) -> NDArray[np.float32]:
    """Images prepared for a model's input ``[N, C, H, W]``.

    Raises:
        UsageError: an image cannot be read, or their total size is too large.
    """
    shape = (len(files), prep.channels, prep.height, prep.width)
    _check(files, shape, 4)
    images = np.empty(shape, np.float32)
    for k, file in enumerate(files):
        images[k] = prepare(file, prep)
    return images


def read_classes(
    folder: Path, prep: Preprocessing, count: int | None
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read one sub-folder per class, in alphabetical order.

    Args:
        prep: the model's preprocessing, to whose size the images are resized.
        count: number of images to read, from the first on; None for all.

    Returns:
        Pixels ``[N, H, W, C]`` and classes ``[N]``; empty if there are no such sub-folders.

    Raises:
        UsageError: an image cannot be read, or their total size is too large.
    """
    classes = [folder / name for name in list_folder(folder) if os.path.isdir(folder / name)]
    found = [
        (sub / name, label)
        for label, sub in enumerate(classes)
        for name in list_folder(sub)
        if name.lower().endswith(SUFFIXES)
    ][:count]
    images = read_pixels([file for file, _ in found], prep)
    return images, np.array([label for _, label in found], np.int64)


def read_pixels(files: Sequence[Path], prep: Preprocessing) -> NDArray[np.uint8]:
    """Pixels ``[N, H, W, C]`` of images, resized to a model's size and not prepared further.

    Raises:
        UsageError: an image cannot be read, or their total size is too large.
    """
    plain = Preprocessing(prep.height, prep.width, prep.channels, scale=1.0, resize=prep.resize)
    shape = (len(files), prep.height, prep.width, prep.channels)
    _check(files, shape, 1)
    images = np.empty(shape, np.uint8)
    for k, file in enumerate(files):
        pixels = prepare(read_image(file), plain).transpose(1, 2, 0)
        images[k] = np.clip(np.rint(pixels), 0, 255)
    return images


def _check(files: Sequence[Path], shape: Sequence[int], width: int) -> None:
    if files:
        check_bytes(files[0].parent, shape, width)
