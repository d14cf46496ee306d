"""Read the files of smallNORB: pairs of pictures of toys, in the format of its authors.

https://cs.nyu.edu/~ylclab/data/norb-v1.0-small: a magic number that names the type, the number of axes and
three sizes or more, all little-endian and of four bytes; then the values in C order.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets.array_files import Gunzip, check_bytes, content_of, read_into
from capsedge.errors import UsageError
from capsedge.runtime.files.reading import file_size, open_regular_file

_NAMES = {"train": "training", "test": "testing"}
_BYTES, _WHOLE = 0x1E3D4C55, 0x1E3D4C54  # magic numbers: uint8, int32
_PAIR = (2, 96, 96)
_HALF = 48
_AT_ONCE = 512  # pairs
_CLASSES = 5

_Content: TypeAlias = "BufferedReader | Gunzip"


def file_of_split(names: Iterable[str], split: str) -> str:
    """The file of a split's images; empty if it is not there."""
    pattern = rf"smallnorb-.*-{_NAMES.get(split, split)}-dat\.mat(\.gz)?"
    return next((name for name in sorted(names) if re.fullmatch(pattern, name)), "")


def read(path: Path, count: int | None = None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pairs of pictures, as the two channels of an image, and their classes.

    The pictures of 96x96 pixels are halved, each pixel the mean of four, as in Sabour et al. 2017 and Hinton
    et al. 2018, who train on random windows of 32x32 pixels and test on the one in the middle.

    Args:
        path: the file of the images, ``...-dat.mat`` or ``...-dat.mat.gz``; that of the classes is beside it.
        count: the first so many; all with None.

    Returns:
        Images ``[N, 48, 48, 2]`` and classes ``[N]``, from 0 to 4.
    """
    with open_regular_file(path) as file:
        content = content_of(file, path)
        shape = _header(content, path, _BYTES)
        if len(shape) != 4 or shape[1:] != _PAIR:
            raise _foreign(path, f"its shape is {list(shape)}")
        total = shape[0] if count is None else min(count, shape[0])
        stored = file_size(file) if isinstance(content, Gunzip) else None
        check_bytes(path, (total, *_PAIR), 1, stored)
        images = np.empty((total, _HALF, _HALF, 2), np.uint8)
        for start in range(0, total, _AT_ONCE):
            some = min(_AT_ONCE, total - start)
            pairs = _values(content, path, (some, *_PAIR), np.dtype(np.uint8))
            fours = pairs.reshape(some, 2, _HALF, 2, _HALF, 2).astype(np.uint16).sum((3, 5))
            images[start : start + some] = ((fours + 2) // 4).transpose(0, 2, 3, 1)
    return images, _classes(path, shape[0])[:total]


def _classes(path: Path, count: int) -> NDArray[np.int64]:
    beside = path.with_name(path.name.replace("-dat.mat", "-cat.mat"))
    if not beside.exists():  # one of the two may be packed
        name = beside.name
        beside = path.with_name(name.removesuffix(".gz") if name.endswith(".gz") else f"{name}.gz")
    with open_regular_file(beside) as file:
        content = content_of(file, beside)
        shape = _header(content, beside, _WHOLE)
        if shape[0] != count or any(size != 1 for size in shape[1:]):
            raise _foreign(beside, f"its shape is {list(shape)}, for {count} images")
        labels = _values(content, beside, (count,), np.dtype("<i4")).astype(np.int64)
    if count and not 0 <= labels.min() <= labels.max() < _CLASSES:
        raise _foreign(beside, "it has classes that smallNORB does not have")
    return labels


def _header(content: _Content, path: Path, magic: int) -> tuple[int, ...]:
    """The sizes along the axes. Raises UsageError if it is no such file."""
    head = _bytes(content, path, 8)
    number, axes = struct.unpack("<2I", head)
    if number != magic or not 1 <= axes <= 4:
        raise _foreign(path, f"it begins with {head.hex(' ')}")
    sizes = struct.unpack(f"<{max(3, axes)}I", _bytes(content, path, 4 * max(3, axes)))
    return sizes[:axes]


def _values(
    content: _Content, path: Path, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> NDArray[np.generic]:
    expected = check_bytes(path, shape, dtype.itemsize)
    return np.frombuffer(_bytes(content, path, expected), dtype).reshape(shape)


def _bytes(content: _Content, path: Path, expected: int) -> bytes:
    data = bytes(read_into(content, bytearray(expected)))
    if len(data) < expected:
        raise UsageError(
            f"{path} is incomplete.", f"{len(data):,} bytes of {expected:,}.", "Get a new copy."
        )
    return data


def _foreign(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is not a file of smallNORB.",
        f"{why[0].upper()}{why[1:]}.",
        "Get the files smallnorb-*-dat.mat and -cat.mat, gzipped or not.",
    )
