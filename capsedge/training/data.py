"""Labelled images from the original files of MNIST-like sets and CIFAR-10, npz, or folders."""

from __future__ import annotations

import gzip
import math
import pickle
import struct
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.images import prepare, read_image
from capsedge.runtime.metadata import Preprocessing

MAX_BYTES = 4 << 30
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}


@dataclass(frozen=True)
class LabelledImages:
    """Images ``[N, H, W, C]`` uint8 and their classes ``[N]`` int64."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


def _check(images: NDArray[Any], labels: NDArray[Any], source: Path) -> LabelledImages:
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4:
        raise UsageError(
            f"{source}: images are {images.dtype} {list(images.shape)}.",
            "Wanted uint8 [N, H, W] or [N, H, W, C].",
        )
    if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer):
        raise UsageError(
            f"{source}: labels are {labels.dtype} {list(labels.shape)}.",
            f"Wanted {len(images)} integers, one an image.",
        )
    return LabelledImages(images, labels.astype(np.int64))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped or plain (the format of MNIST).

    Raises:
        UsageError: the file is missing, damaged, or holds another type.
    """
    try:
        opener: Any = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as f:
            zero, kind, dims = struct.unpack(">HBB", f.read(4))
            if zero != 0 or kind != 8 or not 1 <= dims <= 4:
                raise UsageError(
                    f"{path} is no idx file of bytes.",
                    f"It begins with {zero:#06x} {kind:#04x}, an idx file with 0x0000 0x08.",
                    "Name an idx, npz, PNG or JPEG file, or a data set folder.",
                )
            shape = struct.unpack(f">{dims}I", f.read(4 * dims))
            size = math.prod(shape)
            if size > MAX_BYTES:
                raise UsageError(f"{path} claims {size} bytes.", "That is not read.")
            data = f.read(size + 1)
    except (OSError, EOFError, struct.error) as error:
        raise UsageError(f"Cannot read {path}.", str(error)) from error
    if len(data) != size:
        raise UsageError(f"{path} is not whole.", f"{len(data)} bytes of {size}.")
    return np.frombuffer(data, np.uint8).reshape(shape)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles the python batches of CIFAR-10: numpy arrays and plain values, no other code."""

    ALLOWED: ClassVar[set[tuple[str, str]]] = {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),  # how protocol 2 writes bytes
    }

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        """Refuse everything but array construction."""
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def _read_cifar_batch(path: Path) -> tuple[NDArray[np.uint8], list[int]]:
    try:
        with open(path, "rb") as f:
            batch = _ArraysOnly(f).load()
        data = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return data, list(batch[b"labels"])
    except (OSError, pickle.UnpicklingError, EOFError, KeyError, ValueError) as error:
        raise UsageError(f"{path} is no python batch of CIFAR-10.", str(error)) from error


def _read_folder(folder: Path, prep: Preprocessing) -> LabelledImages:
    """One sub-folder a class, in alphabetical order; images are resized as the model's input is."""
    plain = replace(prep, scale=1.0, mean=(0.0,), std=(1.0,))
    images, labels = [], []
    for index, sub in enumerate(sorted(p for p in folder.iterdir() if p.is_dir())):
        for file in sorted(sub.iterdir()):
            if file.suffix.lower() in SUFFIXES:
                pixels = prepare(read_image(file), plain).transpose(1, 2, 0)
                images.append(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))
                labels.append(index)
    if not images:
        raise UsageError(
            f"{folder} holds no data that capsedge knows.",
            "Looked for MNIST idx files, CIFAR-10 python batches, train.npz and test.npz, images, and one "
            "sub-folder of images a class.",
            "Name a folder with one of these (docs/data.md).",
        )
    return _check(np.stack(images), np.asarray(labels), folder)


def load_images(source: Path | str, split: str, prep: Preprocessing) -> LabelledImages:
    """Find and read one split of a data set.

    Args:
        source: a folder with MNIST-like idx files (``train-images-idx3-ubyte[.gz]`` and so on), with the
            python batches of CIFAR-10 (``data_batch_1`` and so on), with ``train.npz`` / ``test.npz``
            (or ``train_*.npz``), with ``train/`` and ``test/`` folders of images, one sub-folder a class;
            or one npz file with ``images`` and ``labels``.
        split: ``train`` or ``test``.
        prep: the model's preprocessing, used to size images of a folder.

    Raises:
        UsageError: nothing is there that capsedge knows, or it is damaged.
    """
    source = Path(source)
    if source.suffix == ".npz":
        return _read_npz(source)
    if not source.is_dir():
        raise UsageError(f"There is no folder {source}.", "", "Name the folder of the data.")
    stem = "train" if split == "train" else "t10k"
    for ending in (".gz", ""):
        images = source / f"{stem}-images-idx3-ubyte{ending}"
        if images.exists():
            labels = source / f"{stem}-labels-idx1-ubyte{ending}"
            return _check(read_idx(images), read_idx(labels), images)
    batches = sorted(source.glob("data_batch_*" if split == "train" else "test_batch"))
    if batches:
        parts = [_read_cifar_batch(b) for b in batches]
        joined = np.concatenate([p[0] for p in parts])
        return _check(joined, np.asarray([x for p in parts for x in p[1]]), source)
    archives = sorted(source.glob(f"{split}*.npz"))
    if archives:
        return _read_npz(archives[0])
    if (source / split).is_dir():
        return _read_folder(source / split, prep)
    return _read_folder(source, prep)


def read_npz(path: Path) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
    """Arrays ``images`` and, if it is there, ``labels`` of an npz file.

    Raises:
        UsageError: the file is missing, damaged, or has no such arrays.
    """
    try:
        with open(path, "rb") as f, np.lib.npyio.NpzFile(f, allow_pickle=False) as archive:
            labels = archive["labels"].astype(np.int64) if "labels" in archive else None
            return archive["images"], labels
    except (
        OSError,
        KeyError,
        ValueError,
        EOFError,
        RuntimeError,  # of zipfile: encrypted, or a compression that it does not know
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise UsageError(
            f"{path} cannot be read.",
            f"{type(error).__name__}: {error}.",
            "It needs an array 'images', and 'labels' for accuracy.",
        ) from error


def _read_npz(path: Path) -> LabelledImages:
    images, labels = read_npz(path)
    if labels is None:
        raise UsageError(
            f"{path} has no labels.",
            "",
            "It needs arrays 'images' and 'labels', one label an image.",
        )
    return _check(images, labels, path)
