"""smallNORB and SVHN: files made in their formats, and damaged ones."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from capsedge.datasets import read_split, smallnorb, svhn
from capsedge.errors import UsageError
from capsedge.models import get_config
from tests.datasets.foreign_files import mat_file, matrix, norb_file

# --- smallNORB ---

PREFIX = "smallnorb-5x46789x9x18x6x2x96x96-training"
NORB = get_config("em-smallnorb").preprocessing


def write_norb(folder: Path, count: int = 7, packed: bool = True) -> NDArray[np.uint8]:
    pairs = np.random.default_rng(0).integers(0, 256, (count, 2, 96, 96), np.uint8)
    labels = np.arange(count, dtype=np.int32) % 5
    pack = gzip.compress if packed else bytes
    ending = ".gz" if packed else ""
    (folder / f"{PREFIX}-dat.mat{ending}").write_bytes(pack(norb_file(pairs)))
    (folder / f"{PREFIX}-cat.mat{ending}").write_bytes(pack(norb_file(labels)))
    return pairs


@pytest.mark.parametrize("packed", [True, False])
def test_smallnorb(tmp_path: Path, packed: bool) -> None:
    pairs = write_norb(tmp_path, packed=packed)
    found = read_split(tmp_path, "train", NORB)
    assert found.images.shape == (7, 48, 48, 2)
    assert found.classes.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert found.split == "train"
    mean = pairs[3, 1, 10:12, 20:22].mean()
    assert abs(float(found.images[3, 5, 10, 1]) - mean) <= 0.5
    some = read_split(tmp_path, "train", NORB, 2)
    assert np.array_equal(some.images, found.images[:2])
    assert not some.whole
    with pytest.raises(UsageError, match="no test"):
        read_split(tmp_path, "test", NORB)


def test_smallnorb_with_one_packed_file(tmp_path: Path) -> None:
    write_norb(tmp_path)
    classes = tmp_path / f"{PREFIX}-cat.mat.gz"
    (tmp_path / f"{PREFIX}-cat.mat").write_bytes(gzip.decompress(classes.read_bytes()))
    classes.unlink()
    assert len(read_split(tmp_path, "train", NORB)) == 7


def test_damaged_smallnorb(tmp_path: Path) -> None:
    write_norb(tmp_path, packed=False)
    images, classes = (tmp_path / f"{PREFIX}-{kind}.mat" for kind in ("dat", "cat"))
    whole, labels = images.read_bytes(), classes.read_bytes()
    wide = np.zeros((1, 2, 96, 95), np.uint8)
    for path, content, message in [
        (images, whole[:-1], "incomplete"),
        (images, whole[:10], "incomplete"),
        (images, b"P6 96 96 " + whole, "begins with"),
        (images, norb_file(wide), "shape is"),
        (images, whole[:8] + struct.pack("<I", 2**31 - 1) + whole[12:], "too large"),
        (classes, norb_file(np.arange(6, dtype=np.int32)), "for 7 images"),
        (classes, norb_file(np.full(7, 5, np.int32)), "classes that smallNORB does not have"),
    ]:
        images.write_bytes(whole)
        classes.write_bytes(labels)
        path.write_bytes(content)
        with pytest.raises(UsageError, match=message):
            smallnorb.read(images)


# --- SVHN ---

SVHN = get_config("capsnet-svhn").preprocessing
PIXELS = np.random.default_rng(1).integers(0, 256, (32, 32, 3, 12), np.uint8)
DIGITS = (1 + np.arange(12, dtype=np.uint8)[:, None]) % 11


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["uint8", "float64"])
def test_svhn(tmp_path: Path, packed: bool, kind: str) -> None:
    digits = np.where(DIGITS == 0, 10, DIGITS).astype(kind)
    note = matrix("note", np.arange(5, dtype=np.int32)[None])
    content = mat_file(note, matrix("X", PIXELS), matrix("y", digits), packed=packed)
    (tmp_path / "test_32x32.mat").write_bytes(content)
    found = read_split(tmp_path, "test", SVHN)
    assert found.images.shape == (12, 32, 32, 3)
    assert np.array_equal(found.images[4], PIXELS[..., 4])
    assert found.classes.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 1]
    some = read_split(tmp_path, "test", SVHN, 3)
    assert (len(some), some.whole, some.split) == (3, False, "test")


def test_damaged_svhn(tmp_path: Path) -> None:
    digits = np.where(DIGITS == 0, 10, DIGITS)
    images, labels = matrix("X", PIXELS), matrix("y", digits)
    whole = mat_file(images, labels)
    path = tmp_path / "train_32x32.mat"
    for content, message in [
        (whole[:100], "does not begin"),
        (b"\x89HDF" + whole[4:124] + b"\x00\x02IM" + whole[128:], "does not begin"),
        (whole[:-30], "incomplete"),
        (mat_file(images), "no array y"),
        (mat_file(images[:300], labels, packed=True), "incomplete"),
        (mat_file(images, matrix("y", digits[:5])), r"y \[5, 1\]"),
        (mat_file(images, matrix("y", digits * 0)), "not digits"),
        (mat_file(matrix("X", PIXELS, (32, 32, 3, 13)), labels), "values for"),
        (mat_file(matrix("X", PIXELS, (32, 32, 3, 2**31 - 1)), labels), "too large"),
        (mat_file(matrix("X", PIXELS, (32, 32, -3, 12)), labels), "has the shape"),
        (whole[:140] + bytes(40) + whole[180:], "not a file of SVHN"),
    ]:
        path.write_bytes(content)
        with pytest.raises(UsageError, match=message):
            svhn.read(path)
