"""Images to judge or to calibrate a model on: the one reader of data sets, archives, idx files and folders.

Imports no torch: calibration reads images where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.images import SUFFIXES, prepare
from capsedge.runtime.metadata import Preprocessing
from capsedge.training.data import load_images, read_idx, read_npz

_IDX = "-images-idx3-ubyte"


@dataclass(frozen=True)
class ImageSet:
    """What was read.

    Attributes:
        images: pixels ``[N, H, W, C]`` uint8, or prepared floats ``[N, C, H, W]``.
        labels: their classes ``[N]``; None if not known.
        preprocessing: how pixels become the input; None if they are prepared.
        names: of the files of single images; empty for other sources.
        split: that was read of a data set folder; empty for other sources.
        whole: whether these are all images of the source.
    """

    images: NDArray[Any]
    labels: NDArray[np.int64] | None = None
    preprocessing: Preprocessing | None = None
    names: tuple[str, ...] = ()
    split: str = ""
    whole: bool = True


def read_images(
    source: Path, prep: Preprocessing | None, split: str, limit: int | None = None
) -> ImageSet:
    """Read images and, where they are known, labels.

    Args:
        source: a data set folder as ``capsedge train`` reads, an npz file with ``images`` (and ``labels``),
            an idx file of images (its labels beside it), a folder of images, or one image.
        prep: the model's preprocessing; None takes prepared float arrays only.
        split: of a data set folder: ``train`` or ``test``.
        limit: the first so many.

    Raises:
        UsageError: nothing readable is there, it is empty, or it does not fit the model.
    """
    if not source.exists():
        raise UsageError(f"There is no {source}.", "", "Name a folder or file with images.")
    if source.suffix == ".npz":
        found = _arrays(source, prep)
    elif prep is None:
        raise UsageError(
            f"{source} cannot be prepared for this model.",
            "The model's file says nothing of preprocessing.",
            "Give prepared float arrays [N, C, H, W] in an npz file.",
        )
    elif source.is_dir():
        files = sorted(p for p in source.iterdir() if p.suffix.lower() in SUFFIXES)
        found = _files(files, prep, limit) if files else _data_set(source, prep, split)
    elif source.suffix.lower() in SUFFIXES:
        found = _files([source], prep, None)
    else:
        found = _idx(source, prep)
    if len(found.images) == 0:
        raise UsageError(
            f"{source} holds no images.",
            "",
            "Name a folder with PNG or JPEG files, an npz or an idx file.",
        )
    if limit is None or limit >= len(found.images):
        return found
    labels = None if found.labels is None else found.labels[:limit]
    return replace(found, images=found.images[:limit], labels=labels, whole=False)


def check_finite(images: NDArray[Any], source: Path | str) -> None:
    """Refuse prepared images that have values which are no numbers.

    Raises:
        UsageError: there are such values.
    """
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        bad = int((~np.isfinite(images)).reshape(len(images), -1).any(1).sum())
        raise UsageError(
            f"{source} has values that are NaN or infinite.",
            f"{bad} of {len(images)} images have them.",
            "Clean the arrays; or give uint8 pixels [N, H, W, C] to have them prepared.",
        )


def _arrays(source: Path, prep: Preprocessing | None) -> ImageSet:
    images, labels = read_npz(source)
    if images.ndim and labels is not None and labels.shape != (len(images),):
        raise UsageError(f"{source} has labels {list(labels.shape)} for {len(images)} images.")
    if images.dtype.kind == "f" and images.ndim == 4:
        check_finite(images, source)
        return ImageSet(images, labels)
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.dtype != np.uint8 or prep is None:
        raise UsageError(
            f"{source}: images are {images.dtype} {list(images.shape)}.",
            "Wanted uint8 pixels [N, H, W] or [N, H, W, C], or prepared floats [N, C, H, W].",
        )
    return ImageSet(images, labels, prep)


def _files(files: list[Path], prep: Preprocessing, limit: int | None) -> ImageSet:
    chosen = files[:limit]
    images = np.stack([prepare(file, prep) for file in chosen])
    names = tuple(file.name for file in chosen)
    return ImageSet(images, names=names, whole=len(chosen) == len(files))


def _idx(source: Path, prep: Preprocessing) -> ImageSet:
    images = read_idx(source)
    if images.ndim != 3:
        raise UsageError(
            f"{source} holds no images.", f"Its shape is {list(images.shape)}.", "Wanted [N, H, W]."
        )
    beside = source.with_name(source.name.replace(_IDX, "-labels-idx1-ubyte"))
    labels = read_idx(beside).astype(np.int64) if beside != source and beside.is_file() else None
    if labels is not None and labels.shape != (len(images),):
        raise UsageError(f"{beside} has {len(labels)} labels for {len(images)} images.")
    return ImageSet(images[..., None], labels, prep)


def _data_set(source: Path, prep: Preprocessing, split: str) -> ImageSet:
    loaded = load_images(source, split, prep)
    return ImageSet(loaded.images, loaded.labels, prep, split=split)
