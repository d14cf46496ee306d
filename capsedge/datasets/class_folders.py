"""Folders of images: of one class or none, or with one sub-folder per class."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets.array_files import check_bytes
from capsedge.errors import UsageError
from capsedge.runtime.files.reading import list_folder
from capsedge.runtime.images.decoding import read_image
from capsedge.runtime.images.headers import is_image_name
from capsedge.runtime.images.inputs import Size
from capsedge.runtime.images.preprocessing import prepare
from capsedge.runtime.metadata.metadata import Preprocessing

# Names of the files or folders of a split, the one that is meant first.
_VALIDATION = ("val", "valid", "validation")
NAMES = {"train": ("train",), "test": ("test", *_VALIDATION), "validation": _VALIDATION}
SPLITS = {"train": "train", "test": "test"} | dict.fromkeys(_VALIDATION, "validation")
_NAMED = 20  # images that cannot be read, in an error
_GREY = 8  # levels by which the channels of a pixel may differ in a grey image


def class_names(source: Path | str) -> tuple[str, ...]:
    """Names of the classes of a folder with one sub-folder per class, of its training images if it is split.

    They are in alphabetical order: the position of a name is the label. Empty for data of another kind.

    Raises:
        UsageError: the folder cannot be read.
    """
    source = Path(source)
    if not os.path.isdir(source):
        return ()
    inside, _ = classes_of(source, "train")
    names = _classes_in(inside)
    other = any(re.match(r"(train|test|t10k|data_batch)[-_.]", n) for n in list_folder(source))
    return () if other or not any(images_below(inside / name) for name in names) else names


def colour_of(source: Path | str, sample: int = 200) -> bool:
    """Whether the images of a folder with one sub-folder per class are in colour, judging by a sample.

    A grey picture that is stored as RGB is grey. Images that cannot be read are passed over: `read_classes`
    names all of them.

    Raises:
        UsageError: a folder cannot be read.
    """
    for pixels in _sampled(Path(source), sample):
        if pixels.ndim == 3 and pixels.shape[2] >= 3:
            rgb = pixels[..., :3].astype(np.int16)
            if int(np.ptp(rgb, axis=2).max()) > _GREY:
                return True
    return False


def side_of(source: Path | str, sample: int = 50) -> int:
    """The median of the shorter side in pixels, of images chosen as in `colour_of`; 0 without images.

    Raises:
        UsageError: a folder cannot be read.
    """
    sides = [min(pixels.shape[:2]) for pixels in _sampled(Path(source), sample)]
    return int(np.median(sides)) if sides else 0


def _sampled(source: Path, count: int) -> Iterator[NDArray[Any]]:
    """About this many training images, evenly spaced, without unreadable ones."""
    inside, _ = classes_of(source, "train")
    files = [file for name in _classes_in(inside) for file in images_below(inside / name)]
    for file in files[:: max(1, len(files) // count)]:
        try:
            yield read_image(file)
        except UsageError:
            continue


def classes_of(source: Path, split: str) -> tuple[Path, str]:
    """The folder with the classes' sub-folders, and the split that it is; empty if the source is one set.

    A class may be called ``train`` too: a split has sub-folders of its own.
    """
    for name in NAMES[split]:
        if _holds_folders(source / name):
            return source / name, SPLITS[name]
    return source, ""


def images_of(folder: Path) -> list[Path]:
    """The images of a folder except hidden ones, sorted by name. Raises UsageError if it cannot be read."""
    return [folder / name for name in list_folder(folder) if is_image_name(name)]


def images_below(folder: Path) -> list[Path]:
    """The images of a folder and its sub-folders except hidden ones, sorted by name.

    Folders that are links are not entered: they may lead in a circle. Links to images are followed.
    """
    inside = [folder / name for name in _folders_of(folder)]
    deeper = [file for each in inside if not each.is_symlink() for file in images_below(each)]
    return images_of(folder) + deeper


def _classes_in(folder: Path) -> tuple[str, ...]:
    """The names of its sub-folders but hidden ones and those that are splits."""
    return tuple(
        name
        for name in _folders_of(folder)
        if name not in SPLITS or not _holds_folders(folder / name)
    )


def _folders_of(folder: Path) -> tuple[str, ...]:
    """The names of its sub-folders but hidden ones, in alphabetical order."""
    names = list_folder(folder)
    return tuple(n for n in names if not n.startswith(".") and os.path.isdir(folder / n))


def _holds_folders(folder: Path) -> bool:
    """Whether there is such a folder, with folders in it."""
    return os.path.isdir(folder) and any(
        os.path.isdir(folder / name) for name in list_folder(folder)
    )


def read_prepared(files: Sequence[Path], prep: Preprocessing) -> NDArray[np.float32]:
    """Images prepared for a model's input ``[N, C, H, W]``."""
    shape = (len(files), prep.channels, prep.height, prep.width)
    _check_total(files, shape, 4)
    images = np.empty(shape, np.float32)
    for k, file in enumerate(files):
        images[k] = prepare(file, prep)
    return images


def read_classes(
    folder: Path, prep: Preprocessing, count: int | None, names: Sequence[str] = ()
) -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[str, ...]]:
    """Read one sub-folder per class, in alphabetical order.

    Args:
        prep: the model's preprocessing, to whose size the images are resized.
        count: number of images to read, evenly spaced over all of them; None for all.
        names: names of the classes; those of the sub-folders by default.

    Returns:
        Pixels ``[N, H, W, C]``, classes ``[N]``, and the files' paths in the folder; empty if there are no
        such sub-folders.
    """
    folders = _classes_in(folder)
    names = names or folders
    if unknown := [name for name in folders if name not in names and images_below(folder / name)]:
        raise UsageError(
            f"{folder} has a class without training images: {', '.join(unknown[:3])}.",
            f"The training classes are {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}.",
            "Rename or remove that folder.",
        )
    labelled = [
        (file, label)
        for label, name in enumerate(names)
        if name in folders
        for file in images_below(folder / name)
    ]
    if count is not None and count < len(labelled):
        labelled = [labelled[k * len(labelled) // count] for k in range(count)]
    images = read_pixels([file for file, _ in labelled], prep)
    paths = tuple(file.relative_to(folder).as_posix() for file, _ in labelled)
    return images, np.array([label for _, label in labelled], np.int64), paths


def read_pixels(files: Sequence[Path], prep: Preprocessing) -> NDArray[np.uint8]:
    """Pixels ``[N, H, W, C]`` of images, resized to a model's size and not prepared further."""
    return read_sized(files, prep)[0]


def read_sized(files: Sequence[Path], prep: Preprocessing) -> tuple[NDArray[np.uint8], list[Size]]:
    """`read_pixels`, and the height and width that each image has itself."""
    plain = Preprocessing(prep.height, prep.width, prep.channels, scale=1.0, resize=prep.resize)
    shape = (len(files), prep.height, prep.width, prep.channels)
    _check_total(files, shape, 1)
    images = np.empty(shape, np.uint8)
    broken: dict[Path, UsageError] = {}
    sizes: list[Size] = []
    for k, file in enumerate(files):
        try:
            image = read_image(file)
            pixels = prepare(image, plain).transpose(1, 2, 0)
        except UsageError as error:
            broken[file] = error
            continue
        images[k] = np.clip(np.rint(pixels), 0, 255)
        sizes.append((image.shape[0], image.shape[1]))
    if len(broken) == 1:
        raise next(iter(broken.values()))
    if broken:
        named = ", ".join(map(str, list(broken)[:_NAMED]))
        more = f" and {len(broken) - _NAMED} more" if len(broken) > _NAMED else ""
        raise UsageError(
            f"{len(broken)} of {len(files)} images cannot be read: {named}{more}.",
            f"The first: {next(iter(broken.values())).what}",
            "Remove or replace these files.",
        )
    return images, sizes


def _check_total(files: Sequence[Path], shape: Sequence[int], width: int) -> None:
    if files:
        check_bytes(files[0].parent, shape, width)
