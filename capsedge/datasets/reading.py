"""Finding and reading a set of images: the formats of data set folders, archives, idx files and images."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import cifar, folder, idx, npz
from capsedge.datasets.imageset import ImageSet, check_finite
from capsedge.datasets.sizes import check_bytes
from capsedge.errors import UsageError
from capsedge.runtime.files.opening import listing
from capsedge.runtime.metadata import Preprocessing
from capsedge.runtime.vision.images import SUFFIXES

_IDX_IMAGES, _IDX_LABELS = "-images-idx3-ubyte", "-labels-idx1-ubyte"
_IDX_STEMS = {"train": "train", "test": "t10k"}


def read_images(
    source: Path | str, prep: Preprocessing | None, split: str, limit: int | None = None
) -> ImageSet:
    """Images to evaluate or to calibrate a model on, with labels if they are known.

    Args:
        source: a data set folder as `read_split` reads, an npz file with ``images`` (and ``labels``), an idx
            file of images (its labels beside it), a folder of images, or one image.
        prep: the model's preprocessing; with None only prepared float arrays are accepted.
        split: split of a data set folder: ``train`` or ``test``.
        limit: number of images to read, from the first on.

    Raises:
        UsageError: the source cannot be read, is empty, or does not fit the model.
    """
    source = Path(source)
    if not os.path.lexists(source):
        raise UsageError(f"There is no {source}.", "", "Name a folder or file with images.")
    if source.suffix == ".npz":
        data = _archive(source, limit)
        if data.images.dtype == np.uint8 and prep is None:
            raise _unfit(source, data.images)
    elif prep is None:
        raise UsageError(
            f"{source} cannot be prepared for this model.",
            "The model's file does not state the preprocessing.",
            "Give prepared float arrays [N, C, H, W] in an npz file.",
        )
    elif os.path.isdir(source):
        files = folder.images_of(source)
        data = (
            _images(source, files, prep, limit) if files else read_split(source, split, prep, limit)
        )
    elif source.suffix.lower() in SUFFIXES:
        data = _images(source, [source], prep, None)
    else:
        data = _idx(source, limit)
    if len(data) == 0:
        raise UsageError(
            f"{source} holds no images.",
            "",
            "Name a folder with PNG or JPEG files, an npz or an idx file.",
        )
    return replace(data, preprocessing=None if data.images.dtype.kind == "f" else prep)


def read_split(
    source: Path | str, split: str, prep: Preprocessing, limit: int | None = None
) -> ImageSet:
    """One split of a data set: pixels ``[N, H, W, C]`` and labels.

    Args:
        source: a folder with MNIST-like idx files (``train-images-idx3-ubyte[.gz]`` and so on), with the
            python batches of CIFAR-10 (``data_batch_1`` and so on), with ``train.npz`` / ``test.npz``
            (or ``train_*.npz``), with ``train/`` and ``test/`` folders of images, one sub-folder per class;
            or one npz file with ``images`` and ``labels``.
        split: ``train`` or ``test``.
        prep: the model's preprocessing, used to size images of a folder.
        limit: number of images to read, from the first on.

    Raises:
        UsageError: there is no data in a known format, or it is damaged.
    """
    source = Path(source)
    if source.suffix == ".npz":
        return _labelled(_archive(source, limit))
    names = listing(source)
    for ending in (".gz", ""):
        images = f"{_IDX_STEMS[split]}{_IDX_IMAGES}{ending}"
        if images in names:
            return replace(_labelled(_idx(source / images, limit)), split=split)
    batches = [
        n for n in names if n.startswith("data_batch_" if split == "train" else "test_batch")
    ]
    if batches:
        return replace(_cifar(source, batches, limit), split=split)
    archives = [n for n in names if n.startswith(split) and n.endswith(".npz")]
    if archives:
        return replace(_labelled(_archive(source / archives[0], limit)), split=split)
    inside = source / split if os.path.isdir(source / split) else source
    pixels, labels = folder.read_classes(inside, prep, limit)
    if len(pixels) == 0:
        raise UsageError(
            f"{inside} holds no data in a known format.",
            "Known are MNIST idx files, CIFAR-10 python batches, train.npz and test.npz, images, and one "
            "sub-folder of images per class.",
            "Name a folder with one of these (docs/data.md).",
        )
    return ImageSet(source.name, pixels, labels, split=split, whole=limit is None)


def _labelled(data: ImageSet) -> ImageSet:
    """A set to train on: pixels, and a label for each."""
    if data.images.dtype != np.uint8:
        raise UsageError(
            f"{data.source}: images are {data.images.dtype} {list(data.images.shape)}.",
            "They must be uint8 [N, H, W] or [N, H, W, C].",
        )
    if len(data.classes) and data.classes.min() < 0:
        raise UsageError(f"{data.source} has labels below 0.", "", "Classes are counted from 0.")
    return data


def _archive(source: Path, limit: int | None) -> ImageSet:
    with npz.opened_arrays(source) as arrays:
        images = arrays.read("images", limit)
        labels = _labels(source, arrays.read("labels", limit)) if "labels" in arrays else None
    whole = limit is None or len(images) < limit if images.ndim else True
    if images.ndim and labels is not None and labels.shape != (len(images),):
        raise UsageError(f"{source} has labels {list(labels.shape)} for {len(images)} images.")
    if images.dtype.kind == "f" and images.ndim == 4:
        check_finite(images, source)
    elif images.dtype == np.uint8 and images.ndim in (3, 4):
        images = images[..., None] if images.ndim == 3 else images
    else:
        raise _unfit(source, images)
    return ImageSet(source.name, images, labels, whole=whole)


def _unfit(source: Path, images: NDArray[Any]) -> UsageError:
    return UsageError(
        f"{source}: images are {images.dtype} {list(images.shape)}.",
        "They must be uint8 pixels [N, H, W] or [N, H, W, C], or prepared floats [N, C, H, W].",
    )


def _labels(source: Path, labels: NDArray[Any]) -> NDArray[np.int64]:
    whole = labels.dtype.kind in "bi" or (
        bool(np.isfinite(labels).all())
        and bool((labels == np.rint(labels)).all())
        and (labels.size == 0 or -(2**53) <= labels.min() <= labels.max() <= 2**53)
    )
    if not whole:
        raise UsageError(
            f"{source}: labels are {labels.dtype} {list(labels.shape)}.",
            "They must be whole numbers, one per image.",
        )
    return labels.astype(np.int64)


def _images(source: Path, files: list[Path], prep: Preprocessing, limit: int | None) -> ImageSet:
    chosen = files[:limit]
    images = folder.read_prepared(chosen, prep)
    names = tuple(file.name for file in chosen)
    return ImageSet(source.name, images, names=names, whole=len(chosen) == len(files))


def _idx(source: Path, limit: int | None) -> ImageSet:
    images = idx.read(source, limit)
    if images.ndim != 3:
        raise UsageError(
            f"{source} holds no images.",
            f"Its shape is {list(images.shape)}.",
            "It must be [N, H, W].",
        )
    beside = source.with_name(source.name.replace(_IDX_IMAGES, _IDX_LABELS))
    labels = None
    if beside != source and os.path.lexists(beside):
        labels = idx.read(beside, limit).astype(np.int64)
        if labels.shape != (len(images),):
            raise UsageError(f"{beside} has labels {list(labels.shape)} for {len(images)} images.")
    whole = limit is None or len(images) < limit
    return ImageSet(source.name, images[..., None], labels, whole=whole)


def _cifar(source: Path, names: list[str], limit: int | None) -> ImageSet:
    pixels: list[NDArray[np.uint8]] = []
    labels: list[NDArray[np.int64]] = []
    count = 0
    for name in names:
        if limit is not None and count >= limit:
            break
        more, classes = cifar.read(source / name)
        count += len(classes)
        check_bytes(source, (count, *more.shape[1:]))
        pixels.append(more)
        labels.append(classes)
    return ImageSet(source.name, np.concatenate(pixels), np.concatenate(labels)).first(limit)
