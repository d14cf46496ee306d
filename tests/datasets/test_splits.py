"""Which images a source gives as training and test images, and what it says where it has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsedge.datasets import read_images, read_split
from capsedge.errors import UsageError
from capsedge.runtime.metadata.metadata import Preprocessing

PREP = Preprocessing(8, 8, 1)
# The files of a source, and the split that it gives as training and as test images; a text is an error's.
LAYOUTS: dict[str, tuple[list[str], str, str]] = {
    "one folder per class": (["cat/0.png", "dog/0.png"], "", ""),
    "one file": (["set.npz"], "", ""),
    "train and test": (["train/cat/0.png", "test/cat/1.png"], "train", "test"),
    "train and val": (["train/cat/0.png", "val/cat/1.png"], "train", "validation"),
    "test before val": (["train/a/0.png", "val/a/1.png", "test/a/2.png"], "train", "test"),
    "train alone": (["train/cat/0.png"], "train", "has no test images"),
    "classes called train and bus": (["train/0.png", "bus/1.png"], "", ""),
    "archives": (["train.npz", "test.npz"], "train", "test"),
    "archives with validation": (["train.npz", "val.npz"], "train", "validation"),
    "train archive alone": (["train.npz"], "train", "has no test images"),
    "images without labels": (["0.png", "1.png"], "no labels", "no labels"),
    "split without labels": (["train/0.png", "test/0.png"], "", ""),
    "nothing": (["notes.txt"], "no data", "no data"),
}


def made(folder: Path, files: list[str]) -> Path:
    rng = np.random.default_rng(0)
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (4, 8, 8), np.uint8)
        if path.suffix == ".npz":
            np.savez(path, images=pixels, labels=np.arange(4))
        elif path.suffix == ".png":
            Image.fromarray(pixels[0]).save(path)
        else:
            path.write_text("no image")
    return folder / files[0] if files == ["set.npz"] else folder


def split_of(source: Path, split: str) -> str:
    try:
        found = read_split(source, split, PREP)
    except UsageError as error:
        return error.what if error.fix else "no fix"
    if found.split:
        assert f", {found.split} split, {len(found)} images" in found.described
    else:
        assert found.described.endswith(
            f"{len(found)} images; cannot tell whether they trained the model"
        )
    return found.split


def test_a_split_is_only_what_the_source_calls_so(tmp_path: Path) -> None:
    failures = []
    for name, (files, *wanted) in LAYOUTS.items():
        source = made(tmp_path / name, files)
        for split, expected in zip(("train", "test"), wanted, strict=True):
            found = split_of(source, split)
            if found != expected and not (" " in expected and expected in found):
                failures.append(f"{name}, {split}: {found!r} instead of {expected!r}")
    assert not failures, "\n".join(failures)


def test_images_without_labels_are_told_how_to_lie(tmp_path: Path) -> None:
    source = made(tmp_path, ["0.png", "1.png"])
    with pytest.raises(UsageError, match=r"CLASS/image\.png, one sub-folder per class") as caught:
        read_split(source, "train", PREP)
    assert "2 images" in caught.value.why
    assert "labels" in caught.value.what


@pytest.mark.parametrize("form", ["npz", "idx"])
def test_labels_of_another_number_come_with_the_shape_to_save(form: str, tmp_path: Path) -> None:
    pixels, labels = np.zeros((8, 8, 8), np.uint8), np.zeros(7, np.uint8)
    if form == "npz":
        source = tmp_path / "bad.npz"
        np.savez(source, images=pixels, labels=labels)
    else:
        source = tmp_path / "x-images-idx3-ubyte"
        source.write_bytes(
            bytes([0, 0, 8, 3, 0, 0, 0, 8] * 1 + [0, 0, 0, 8] * 2) + pixels.tobytes()
        )
        beside = tmp_path / "x-labels-idx1-ubyte"
        beside.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 7]) + labels.tobytes())
    with pytest.raises(UsageError, match=r"labels \[7\] for 8 images") as caught:
        read_images(source, PREP, "test")
    assert "Save the labels as [8]" in caught.value.fix
