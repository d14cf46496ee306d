"""Images with their masks: what is read, and the first pair that does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsedge import Preprocessing
from capsedge.datasets.mask_folders import has_masks, mask_of_input, read_masks
from capsedge.errors import UsageError
from capsedge.runtime.session.masks import mask_png

PREP = Preprocessing(4, 6, 1)
NAMES = ("back", "front")


def write(folder: Path, masks: list[np.ndarray], indexed: bool = True, size: int = 0) -> Path:
    """A folder of grey images and masks, numbered from 0."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for k, mask in enumerate(masks):
        height, width = mask.shape
        Image.fromarray(np.full((height + size, width), 9 * k, np.uint8)).save(
            folder / "images" / f"{k}.jpg"
        )
        target = folder / "masks" / f"{k}.png"
        if indexed:
            target.write_bytes(mask_png(mask, NAMES))
        else:
            Image.fromarray(mask).save(target)
    return folder


def mask(*rows: str) -> np.ndarray:
    return np.array([[255 if c == "." else int(c) for c in row] for row in rows], np.uint8)


FULL = mask("000111", "000111", "011111", "...111")


@pytest.mark.parametrize("indexed", [True, False])
def test_numbers_and_unknown_pixels(tmp_path: Path, indexed: bool):
    data = read_masks(write(tmp_path, [FULL, 1 - FULL // 255], indexed), "test", PREP, NAMES)
    assert data.masks is not None
    assert np.array_equal(data.masks[0], FULL)
    assert data.images.shape == (2, 4, 6, 1)
    assert data.names == ("0.jpg", "1.jpg")
    assert data.take(np.array([1])).masks is not None
    assert data.digest() != read_masks(tmp_path, "test", PREP, NAMES, limit=1).digest()


def test_grey_masks_of_two_classes_are_black_and_white(tmp_path: Path):
    data = read_masks(write(tmp_path, [(FULL == 1) * np.uint8(255)], False), "test", PREP, NAMES)
    assert data.masks is not None
    assert np.array_equal(data.masks[0], FULL == 1)


def test_splits(tmp_path: Path):
    write(tmp_path / "train", [FULL])
    write(tmp_path / "test", [FULL, FULL])
    assert has_masks(tmp_path)
    assert not has_masks(tmp_path / "train" / "images")
    assert [len(read_masks(tmp_path, s, PREP, NAMES)) for s in ("train", "test")] == [1, 2]


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("stretch", ["001111", "001111", "001111", "001111"]),
        ("pad", [".0011.", ".0011.", ".0011.", ".0011."]),
        ("center", [".0011.", ".0011.", ".0011.", ".0011."]),
        ("crop", ["000111", "000111", "000111", "000111"]),
    ],
)
def test_masks_follow_the_image_into_the_input(rule: str, wanted: list[str]):
    prep = Preprocessing(4, 6, 1, resize=rule)
    found = mask_of_input(mask(*["0011"] * 4), prep)
    rows = ["".join("." if v == 255 else str(v) for v in row) for row in found]
    if rule == "stretch":
        assert rows[0] in ("000111", "001111")
    else:
        assert rows == wanted


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _write(name: str, mode: str) -> Callable[[Path], None]:
    return lambda folder: Image.new(mode, (6, 4)).save(folder / name)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_remove("masks/1.png"), r"images/1\.jpg has no mask"),
        (_remove("images/1.jpg"), r"masks/1\.png has no image"),
        (_write("masks/1.png", "RGB"), r"masks/1\.png is not a mask"),
        (_write("masks/1.jpg", "L"), r"masks/1\.jpg is not a mask"),
        (lambda folder: (folder / "masks/1.png").write_bytes(b""), r"masks/1\.png"),
    ],
)
def test_the_first_pair_that_does_not_fit(
    tmp_path: Path, change: Callable[[Path], None], what: str
):
    write(tmp_path, [FULL, FULL])
    if what.startswith(r"masks/1\.jpg"):
        (tmp_path / "masks/1.png").unlink()
    change(tmp_path)
    with pytest.raises(UsageError, match=what):
        read_masks(tmp_path, "test", PREP, NAMES)


def test_a_mask_of_another_size(tmp_path: Path):
    with pytest.raises(UsageError, match="does not fit its image") as failed:
        read_masks(write(tmp_path, [FULL], size=1), "test", PREP, NAMES)
    assert "It has 6x4 pixels" in failed.value.why


def test_a_value_without_a_class(tmp_path: Path):
    with pytest.raises(UsageError, match=r"0\.png has the value 2"):
        read_masks(write(tmp_path, [FULL % 255 * 2]), "test", PREP, NAMES)


def test_no_folders(tmp_path: Path):
    with pytest.raises(UsageError, match="has no folder 'images'"):
        read_masks(tmp_path, "test", PREP, NAMES)
