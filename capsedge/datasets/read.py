"""Find and read a set of images: folders, archives, idx files and single images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import array_files, cifar, smallnorb, svhn
from capsedge.datasets.array_files import check_bytes
from capsedge.datasets.class_folders import (
    NAMES,
    SPLITS,
    class_names,
    classes_of,
    images_of,
    read_classes,
    read_pixels,
    read_prepared,
)
from capsedge.datasets.image_set import ImageSet, check_finite_images, marked, part_of
from capsedge.errors import UsageError
from capsedge.runtime.files.formats import identify_path
from capsedge.runtime.files.reading import FOLDER, list_folder, path_kind
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.origin import AnySplit

_IDX_IMAGES, _IDX_LABELS = "-images-idx3-ubyte", "-labels-idx1-ubyte"
_IDX_STEMS = {"train": "train", "test": "t10k", "validation": "validation"}
_CIFAR_STEMS = {"train": "data_batch_", "test": "test_batch", "validation": "validation_batch"}
# What may be read as data; other known formats are refused by name.
_DATA = ("npz", "zip", "npy", "image", "idx", "compressed", "folder")


def read_images(
    source: Path | str,
    prep: Preprocessing | None,
    split: str,
    limit: int | None = None,
    inputs: Mapping[str, str] | None = None,
    classes: bool = True,
    rule: AnySplit | None = None,
    named: Sequence[str] = (),
) -> ImageSet:
    """Images, or other inputs, for evaluating or calibrating a model, with labels if they are known.

    Args:
        source: a data set folder as `read_split` reads, an npz file with ``images`` or an array for each of
            the model's inputs (and ``labels``), an npy file, an idx file of images (its labels beside it), a
            folder of images, or one image.
        prep: the model's preprocessing; with None only prepared arrays are accepted.
        split: split of a data set folder: ``train`` or ``test``.
        limit: number of images to read, from the first on.
        inputs: the model's inputs: numpy's type by name; None if the model is not known.
        classes: whether labels are numbers of classes. Those of an archive for a regression are not read.
        rule, named: as for `read_split`.

    Raises:
        UsageError: the source cannot be read, is empty, or does not fit the model.
    """
    source = Path(source)
    if not os.path.lexists(source):
        raise UsageError(f"There is no {source}.", "", "Pass a folder or a file with images.")
    kind = identify_path(source)
    key = "folder" if path_kind(source) == FOLDER else "" if kind is None else kind.key
    if key and key not in _DATA:
        raise _no_data(source)
    whole = None if rule is not None else limit  # a rule divides all of a file's images
    if key in ("npz", "zip") or source.suffix == ".npz":
        data = _ruled(_archive(source, whole, prep, inputs or {}, classes), split, limit, rule)
    elif key == "npy":
        pixels = ImageSet(source.name, array_files.read_single(source, limit))
        data = marked(_checked(pixels, source, prep, inputs), rule)
    elif prep is None:
        raise UsageError(
            f"{source} cannot be prepared for this model.",
            "The model's file does not state the preprocessing.",
            _PREPARED,
        )
    elif key == "folder":
        files = images_of(source)
        data = (
            _images(source, files, prep, limit, rule)
            if files
            else read_split(source, split, prep, limit, rule, named)
        )
    elif key == "image":
        data = _images(source, [source], prep, None, rule)
    else:
        data = _ruled(_idx(source, whole), split, limit, rule)
    if len(data) == 0:
        raise UsageError(
            f"{source} holds no images.",
            "",
            "Pass a folder with images, an npz file or an idx file.",
        )
    return replace(data, preprocessing=None if data.images.dtype.kind == "f" else prep)


def read_split(
    source: Path | str,
    split: str,
    prep: Preprocessing,
    limit: int | None = None,
    rule: AnySplit | None = None,
    named: Sequence[str] = (),
) -> ImageSet:
    """One split of a data set: pixels ``[N, H, W, C]`` and labels.

    Args:
        source: a folder with MNIST-like idx files (``train-images-idx3-ubyte[.gz]`` and so on), with the
            python batches of CIFAR-10 (``data_batch_1`` and so on), with the files of smallNORB or those of
            SVHN (``train_32x32.mat``), with ``train.npz`` / ``test.npz``
            (or ``train_*.npz``), with ``train/`` and ``test/`` folders of images, one sub-folder per class;
            or one npz file with ``images`` and ``labels``.
        split: ``train``, ``test`` or ``validation``; without test images, a validation split is taken for
            them.
        prep: the model's preprocessing, used to size images of a folder.
        limit: number of images to read, from the first on.
        rule: which images were held out when the model was trained; a split that the data lack is the part
            of the training images that it names.
        named: names of the model's classes: where those of a folder are among them, they are numbered like
            these, otherwise in alphabetical order.

    Returns:
        A set whose ``split`` is ``train``, ``test`` or ``validation``; empty if the source is one set, in
        one file or with one sub-folder per class, which is read whatever the split.

    Raises:
        UsageError: there is no data in a known format, it lacks the split, or it is damaged.
    """
    source = Path(source)
    if rule is not None and (split == "train" or not _states(source, split, prep, named)):
        part = _by_rule(source, split, prep, limit, rule, named)
        if part is not None and len(part):
            return part
    images = _declared(source, split, prep, limit, named)
    return images if split == "train" else marked(images, rule)


def _states(source: Path, split: str, prep: Preprocessing, named: Sequence[str]) -> bool:
    """Whether the data have this split themselves."""
    try:
        return _declared(source, split, prep, 1, named).split == split
    except UsageError:
        return False


def _by_rule(
    source: Path,
    split: str,
    prep: Preprocessing,
    limit: int | None,
    rule: AnySplit,
    named: Sequence[str],
) -> ImageSet | None:
    """The part of the training images that a model's training held out, or kept; None if they are others."""
    try:
        images = _declared(source, "train", prep, None, named)
    except UsageError:  # such as a folder with test images only
        return None
    return part_of(images, split, limit, rule)


def _ruled(data: ImageSet, split: str, limit: int | None, rule: AnySplit | None) -> ImageSet:
    """A single file's images: the part that the rule names, or all with what it tells about them."""
    part = part_of(data, split, limit, rule)
    if part is not None and len(part):
        return part
    return marked(data.first(limit), None if split == "train" else rule)


def _declared(
    source: Path, split: str, prep: Preprocessing, limit: int | None, named: Sequence[str]
) -> ImageSet:
    """One split as the data state it, without any rule."""
    kind = identify_path(source) if os.path.lexists(source) else None
    if source.suffix == ".npz" or (kind is not None and kind.key == "npz"):
        return _labelled(_archive(source, limit, prep, {}))
    if kind is not None and path_kind(source) != FOLDER:
        raise _no_data(source)
    names = list_folder(source)
    for ending in (".gz", ""):
        images = f"{_IDX_STEMS[split]}{_IDX_IMAGES}{ending}"
        if images in names:
            return replace(_labelled(_idx(source / images, limit)), split=split)
    batches = [n for n in names if n.startswith(_CIFAR_STEMS[split])]
    if batches:
        return replace(_cifar(source, batches, limit), split=split)
    for module in (smallnorb, svhn):
        if file := module.file_of_split(names, split):
            found_images, labels = module.read(source / file, limit)
            whole = limit is None or len(found_images) < limit
            return ImageSet(source.name, found_images, labels, split=split, whole=whole)
    for name in NAMES[split]:
        archives = [n for n in names if n.startswith(name) and n.endswith(".npz")]
        if archives:
            data = _labelled(_archive(source / archives[0], limit, prep, {}))
            return replace(data, split=SPLITS[name])
    inside, of = classes_of(source, split)
    pixels, labels, files = read_classes(inside, prep, limit, _numbered(source, named))
    if len(pixels) == 0:
        raise _no_classes(source, inside, split)
    return ImageSet(source.name, pixels, labels, names=files, split=of, whole=limit is None)


def _numbered(source: Path, named: Sequence[str]) -> tuple[str, ...]:
    """The classes of a folder in the order of their numbers."""
    classes = class_names(source)
    return tuple(named) if set(classes) <= set(named) else classes


def _no_classes(source: Path, inside: Path, split: str) -> UsageError:
    """The error for a folder without labelled images."""
    layout = f"{inside}/CLASS/image.png, one sub-folder per class"
    if images := images_of(inside):
        count = "1 image is" if len(images) == 1 else f"{len(images)} images are"
        return UsageError(
            f"{inside} holds images, but no labels.",
            f"{count} directly in the folder; the label of an image is the name of its sub-folder.",
            f"Arrange them as {layout}; or save an npz file with 'images' and 'labels' "
            "(docs/reference/data.md).",
        )
    listed = sorted(
        n
        for n in list_folder(source)
        if n.split(".")[0].split("_")[0] in SPLITS or n.startswith("smallnorb-")
    )
    if inside == source and listed:
        names = " or ".join(NAMES[split][:2])
        return UsageError(
            f"{source} has no {split} images.",
            f"It holds {', '.join(listed)}.",
            f"Add {names}, in the same format (docs/reference/data.md).",
        )
    return UsageError(
        f"{inside} holds no data in a known format.",
        "Supported formats: MNIST idx files, CIFAR-10 Python batches, the files of smallNORB and "
        "SVHN, train.npz and test.npz, and one sub-folder of images per class.",
        f"Arrange images as {layout}, or use one of the other formats (docs/reference/data.md).",
    )


def _labelled(data: ImageSet) -> ImageSet:
    """A set to train on: pixels, and a label for each."""
    if data.images.dtype != np.uint8:
        raise UsageError(
            f"{data.source}: images are {data.images.dtype} {list(data.images.shape)}.",
            "They must be uint8 [N, H, W] or [N, H, W, C].",
        )
    if len(data.classes) and data.classes.min() < 0:
        raise UsageError(f"{data.source} has labels below 0.", "", "Number the classes from 0.")
    return data


def _archive(
    source: Path,
    limit: int | None,
    prep: Preprocessing | None,
    inputs: Mapping[str, str],
    classes: bool = True,
) -> ImageSet:
    with array_files.opened_arrays(source) as arrays:
        first, *more = _named(source, arrays, list(inputs))
        images = arrays.read(first, limit)
        others = {name: arrays.read(name, limit) for name in more}
        known = "labels" in arrays
        labels = _labels(source, arrays.read("labels", limit)) if known and classes else None
    whole = limit is None or len(images) < limit if images.ndim else True
    if images.ndim and labels is not None and labels.shape != (len(images),):
        raise _other_count(source, labels, images)
    ignored = "labels" if known and not classes else ""
    data = ImageSet(source.name, images, labels, whole=whole, others=others, ignored=ignored)
    return _checked(data, source, prep, inputs)


def _other_count(source: Path, labels: NDArray[Any], images: NDArray[Any]) -> UsageError:
    return UsageError(
        f"{source} has labels {list(labels.shape)} for {len(images)} images.",
        "Every image needs one label: the number of its class, counted from 0.",
        f"Save the labels as [{len(images)}], in the order of the images (docs/reference/data.md).",
    )


def _named(source: Path, arrays: array_files.Arrays, inputs: list[str]) -> list[str]:
    """The names of the arrays for the model's inputs: their own, or for a single one ``images``, or any."""
    if inputs and all(name in arrays for name in inputs):
        return inputs
    names = [name for name in arrays.names if name != "labels"]
    if len(inputs) > 1:
        raise UsageError(
            f"{source} does not have an array for every input of the model.",
            f"It has {', '.join(names) or 'none'}; the inputs are {', '.join(inputs)}.",
            "Save the arrays under the names of the inputs with numpy.savez.",
        )
    return names if inputs and len(names) == 1 else ["images"]


def image_set_from_arrays(
    images: NDArray[Any] | Mapping[str, NDArray[Any]],
    prep: Preprocessing | None,
    inputs: Mapping[str, str],
) -> ImageSet:
    """Arrays as `read_images` reads them from files: one for a single input, or one by the name of each."""
    named = dict(images) if isinstance(images, Mapping) else {next(iter(inputs), "images"): images}
    if set(named) != set(inputs):
        raise UsageError(
            "The arrays do not match the model's inputs.",
            f"Given: {', '.join(map(str, named))}; the inputs are {', '.join(inputs)}.",
            "Pass one array [N, ...] for each input, by name.",
        )
    first, *more = inputs
    others = {name: np.asarray(named[name]) for name in more}
    return _checked(
        ImageSet("an array", np.asarray(named[first]), others=others), "The array", prep, inputs
    )


def _checked(
    data: ImageSet,
    source: Path | str,
    prep: Preprocessing | None,
    inputs: Mapping[str, str] | None,
) -> ImageSet:
    """The set, if its arrays are pixels that can be prepared, or prepared."""
    images = data.images
    takes = next(iter((inputs or {}).values()), "")
    if prep is not None or not inputs:
        if images.dtype == np.uint8 and images.ndim in (3, 4):
            images = images[..., None] if images.ndim == 3 else images
        elif images.dtype.kind != "f" or images.ndim != 4:
            raise UsageError(
                f"{source}: images are {images.dtype} {list(images.shape)}.",
                "They must be uint8 pixels [N, H, W] or [N, H, W, C], or prepared floats [N, C, H, W].",
            )
    elif images.dtype.kind in "iu" and takes.startswith("float"):
        raise UsageError(
            f"{source} has whole numbers, {images.dtype} {list(images.shape)}; the model takes {takes}.",
            "The model's file does not state the preprocessing, so pixels cannot be prepared for it.",
            _PREPARED,
        )
    for name, array in (
        (source, images),
        *((f"'{n}' of {source}", a) for n, a in data.others.items()),
    ):
        if array.ndim < 1 or (images.ndim and len(array) != len(images)):
            raise UsageError(
                f"{name} has the shape {list(array.shape)}.",
                "The first axis of every array counts the samples.",
                "Save arrays [N, ...] with the same N.",
            )
        check_finite_images(array, name)
    return replace(data, images=images)


_PREPARED = "Save arrays in the model's layout, such as floats [N, C, H, W], as an npz or npy file."


def _no_data(source: Path) -> UsageError:
    kind = identify_path(source)
    assert kind is not None
    fix, command = kind.advice(source)
    return UsageError(
        f"{source} is {kind.name}.",
        "Data can be folders of images, npz, npy or idx files (docs/reference/data.md).",
        fix,
        command=command,
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
            "They must be whole numbers, the class of each image counted from 0.",
            "Leave the labels out; or, if they are values to estimate, describe the model's file "
            "as a regression: `capsedge.optimize(model, path, description=capsedge.Description("
            "task='regression'))` (docs/reference/metadata.md).",
            command=(
                "Leave the labels out; or, if they are values to estimate, describe the model's "
                "file as a regression: capsedge optimize MODEL.onnx -o NEW.onnx --task regression "
                "(docs/reference/metadata.md)"
            ),
        )
    if labels.size and labels.min() < 0:
        raise UsageError(
            f"{source} has labels below 0.",
            "They number the classes from 0.",
            "Leave images without a class out of the file.",
        )
    return labels.astype(np.int64)


def _images(
    source: Path,
    files: list[Path],
    prep: Preprocessing,
    limit: int | None,
    rule: AnySplit | None,
) -> ImageSet:
    chosen = files[:limit]
    images = read_prepared(chosen, prep)
    names = tuple(file.name for file in chosen)
    image_set = ImageSet(source.name, images, names=names, whole=len(chosen) == len(files))
    if rule is None:
        return image_set
    pixels = ImageSet(source.name, read_pixels(chosen, prep))  # a rule knows images by these
    return marked(image_set, rule, pixels.checksums)


def _idx(source: Path, limit: int | None) -> ImageSet:
    images = array_files.read(source, limit)
    if images.ndim != 3:
        raise UsageError(
            f"{source} holds no images.",
            f"Its shape is {list(images.shape)}.",
            "Save images as [N, H, W].",
        )
    beside = source.with_name(source.name.replace(_IDX_IMAGES, _IDX_LABELS))
    labels = None
    if beside != source and os.path.lexists(beside):
        labels = array_files.read(beside, limit).astype(np.int64)
        if labels.shape != (len(images),):
            raise _other_count(beside, labels, images)
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
