"""Read images with their masks: the folders ``images`` and ``masks``, whose files have the same names.

A mask is an indexed PNG whose values are the numbers of the classes, or a grey one with the same values; or,
for two classes, with 0 for the background and 255 for the foreground. Otherwise 255 is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets.array_files import check_bytes
from capsedge.datasets.class_folders import read_sized
from capsedge.datasets.image_set import ImageSet, marked, part_of
from capsedge.errors import UsageError
from capsedge.runtime.files.reading import FOLDER, path_kind
from capsedge.runtime.images.decoding import read_values
from capsedge.runtime.images.inputs import Size, folder_images
from capsedge.runtime.images.preprocessing import placement_of
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.origin import AnySplit
from capsedge.spec.fields import UNKNOWN

IMAGES, MASKS = "images", "masks"
_FIX = (
    "Pass a folder with images/ and masks/, whose files have the same names but for the suffix "
    "(docs/reference/data.md)."
)


def has_masks(source: Path) -> bool:
    """Whether a folder, or its split for training, holds images with masks."""
    return any(
        path_kind(folder / MASKS) == FOLDER and path_kind(folder / IMAGES) == FOLDER
        for folder in (source, source / "train")
    )


def read_masks(
    source: Path, split: str, prep: Preprocessing, names: Sequence[str], limit: int | None = None
) -> ImageSet:
    """Images and their masks, both in the size of a network's input.

    Args:
        source: a folder with ``images`` and ``masks``, or with such a folder for each split.
        split: ``train``, ``test`` or ``validation``, where the folder has splits.
        prep: the network's preprocessing, which the masks follow; of padding they are unknown.
        names: the classes that a mask may hold.
        limit: number of images to read, from the first on.

    Returns:
        A set with ``masks``.

    Raises:
        UsageError: a folder is missing, an image has no mask of its size, or a mask holds other values.
    """
    folder = source / split if path_kind(source / split) == FOLDER else source
    pairs = _pairs(folder)[:limit]
    images, sizes = read_sized([image for image, _ in pairs], prep)
    values, grey = _values(pairs, sizes)
    numbered = any((value == 1).any() for value in compress(values, grey))
    if len(names) == 2 and not numbered:
        values = [
            np.where(value == UNKNOWN, 1, value).astype(np.uint8) if each else value
            for value, each in zip(values, grey, strict=True)
        ]
    masks = np.stack([mask_of_input(value, prep) for value in values])
    wrong = (masks >= len(names)) & (masks != UNKNOWN)
    if wrong.any():
        first = int(np.flatnonzero(wrong.any((1, 2)))[0])
        raise UsageError(
            f"{pairs[first][1]} has the value {masks[first][wrong[first]].min()}.",
            f"There are {len(names)} classes, 0 to {len(names) - 1}: {', '.join(names[:8])}; 255 is unknown.",
            "Number the classes from 0, or name all of them.",
        )
    return ImageSet(
        source.name,
        images,
        preprocessing=prep,
        names=tuple(image.name for image, _ in pairs),
        split=split if folder != source else "",
        whole=limit is None or len(pairs) < limit,
        masks=masks,
    )


def read_mask_split(
    source: Path,
    split: str,
    prep: Preprocessing,
    names: Sequence[str],
    limit: int | None = None,
    rule: AnySplit | None = None,
) -> ImageSet:
    """One split of images with masks, as `read.read_split` reads one of images with labels.

    Args:
        source, prep, names, limit: as for `read_masks`.
        split: ``train``, ``test`` or ``validation``; without test images, a validation split is taken for
            them.
        rule: which images were held out when the model was trained; a split that the folder lacks is the
            part of the training images that it names.

    Raises:
        UsageError: as for `read_masks`.
    """
    has = {name: path_kind(source / name) == FOLDER for name in (split, "validation")}
    if rule is not None and (split == "train" or not has[split]):
        whole = labelled(read_masks(source, "train", prep, names))
        part = part_of(whole, split, limit, rule)
        if part is not None and len(part):
            return replace(part, labels=None)
    if split == "test" and not has[split] and has["validation"]:
        split = "validation"
    images = labelled(read_masks(source, split, prep, names, limit))
    return replace(images if split == "train" else marked(images, rule), labels=None)


def labelled(images: ImageSet) -> ImageSet:
    """The images as those of a single class, by which they are divided."""
    return replace(images, labels=np.zeros(len(images), np.int64))


def _values(
    pairs: Sequence[tuple[Path, Path]], sizes: Sequence[Size]
) -> tuple[list[NDArray[np.uint8]], list[bool]]:
    """The values of each mask ``[H, W]``, and whether they are grey.

    Args:
        sizes: of the images.
    """
    values, grey, total = [], [], 0
    for (image, mask), (height, width) in zip(pairs, sizes, strict=True):
        value, indexed = read_values(mask)
        if value.shape != (height, width):
            raise UsageError(
                f"{mask} does not fit its image.",
                f"It has {value.shape[1]}x{value.shape[0]} pixels, {image} has {width}x{height}.",
                "Make the mask as large as the image.",
            )
        total += value.size
        check_bytes(mask.parent, (total,))
        values.append(value)
        grey.append(not indexed)
    return values, grey


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Images with their masks, by name."""
    for name in (IMAGES, MASKS):
        if path_kind(folder / name) != FOLDER:
            raise UsageError(
                f"{folder} has no folder '{name}'.", "The network segments images.", _FIX
            )
    images, masks = folder_images(folder / IMAGES), folder_images(folder / MASKS)
    by_name = {mask.stem: mask for mask in masks}
    for image in images:
        if image.stem not in by_name:
            raise UsageError(
                f"{image} has no mask.", f"There is no {MASKS}/{image.stem}.png.", _FIX
            )
    left = set(by_name) - {image.stem for image in images}
    if left:
        mask = by_name[min(left)]
        raise UsageError(f"{mask} has no image.", f"There is no {IMAGES}/{mask.stem}.*.", _FIX)
    return [(image, by_name[image.stem]) for image in images]


def mask_of_input(values: NDArray[np.uint8], prep: Preprocessing) -> NDArray[np.uint8]:
    """A mask ``[H, W]`` of an image as the input shows it: the nearest pixel, `UNKNOWN` for padding."""
    placed = placement_of(prep, *values.shape)
    top, left, height, width = placed.part
    rows, columns = (
        start + (2 * np.arange(inner) + 1) * part // (2 * inner)
        for start, part, inner in zip((top, left), (height, width), placed.inner, strict=True)
    )
    found = np.full((prep.height, prep.width), UNKNOWN, np.uint8)
    down, right = placed.corner(prep.height, prep.width)
    found[down : down + placed.inner[0], right : right + placed.inner[1]] = values[
        np.ix_(rows, columns)
    ]
    return found
