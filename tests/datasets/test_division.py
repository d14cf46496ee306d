"""Dividing a set into training, validation and test images, and finding the same division again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from capsedge.datasets import ImageSet, read_images, read_split
from capsedge.datasets.division import divided, rule_of
from capsedge.errors import ArtefactError
from capsedge.runtime.metadata import ModelMetadata, Preprocessing
from capsedge.runtime.training_split import TrainingSplit
from capsedge.spec import limits
from tests.runtime.models import metadata

SHARES = {"test": 0.15, "validation": 0.1}
PREP = Preprocessing(4, 4, 1)


def _set(counts: list[int]) -> ImageSet:
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 4, 4, 1), dtype=np.uint8)
    return ImageSet("photos", images, labels)


def _split(
    images: ImageSet, classes: int, seed: int, shares: Mapping[str, float] = SHARES
) -> dict[str, ImageSet]:
    return divided(images, rule_of(images, classes, shares, seed))


def test_some_of_each_class_are_held_out() -> None:
    images = _set([40, 20, 2, 1])
    found = _split(images, 4, 3, {"test": 0.15})
    training, test = found["train"], found["test"]
    assert np.bincount(test.classes, minlength=4).tolist() == [6, 3, 1, 0]
    assert len(training) + len(test) == len(images)
    assert len(found["validation"]) == 0
    assert not test.occurs_in(training).any()
    again, other = (_split(images, 4, seed, {"test": 0.15})["test"] for seed in (3, 4))
    assert again.digest() == test.digest() != other.digest()
    assert (training.split, test.split) == ("train", "test")
    assert test.described == "photos, 10 of 63 images, held out from training"
    assert training.described == "photos, 53 of 63 images, trained on"


def test_copies_of_an_image_are_on_one_side() -> None:
    images = _set([30, 30])
    images.images[:10] = images.images[0]
    found = _split(images, 2, 0)
    training, test, validation = found["train"], found["test"], found["validation"]
    assert not test.occurs_in(training).any()
    assert not validation.occurs_in(training).any()
    assert not test.occurs_in(validation).any()
    assert (test.split, validation.split) == ("test", "validation")
    assert len(validation) >= 2


def test_no_trained_image_is_held_out_when_images_are_added_and_reordered() -> None:
    images = _set([40, 40])
    rule = rule_of(images, 2, SHARES, 1)
    before = divided(images, rule)
    more = np.random.default_rng(9).integers(0, 256, (60, 4, 4, 1), dtype=np.uint8)
    order = np.random.default_rng(2).permutation(140)
    grown = ImageSet(
        "other",
        np.concatenate([images.images, more])[order],
        np.concatenate([images.classes, np.arange(60) % 2])[order],
    )
    after = divided(grown, rule)
    for name, part in before.items():
        assert part.occurs_in(after[name]).all()
        for other in set(before) - {name}:
            assert not part.occurs_in(after[other]).any()


def _folder(place: Path, images: ImageSet) -> Path:
    for number, (pixels, label) in enumerate(zip(images.images, images.classes, strict=True)):
        (place / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[..., 0]).save(place / str(label) / f"{number}.png")
    return place


def test_readers_take_the_part_of_a_folder(tmp_path: Path) -> None:
    images = _set([20, 20])
    folder = _folder(tmp_path / "photos", images)
    rule = rule_of(images, 2, SHARES, 1)
    wanted = {
        name: replace(part, preprocessing=PREP) for name, part in divided(images, rule).items()
    }
    for split in ("train", "test", "validation"):
        found = read_split(folder, split, PREP, rule=rule)
        assert found.split == split
        assert len(found) == len(wanted[split])
        assert [int(name.split("/")[0]) for name in found.names] == found.classes.tolist()
        assert replace(found, preprocessing=PREP).occurs_in(wanted[split]).all()
    held = read_images(folder, PREP, "test", limit=3, rule=rule)
    assert len(held) == 3
    assert held.occurs_in(wanted["test"]).all()
    assert len(read_images(folder, PREP, "test")) == 40
    moved = folder.rename(tmp_path / "moved")
    assert len(read_images(moved, PREP, "test", rule=rule)) == len(wanted["test"])


def test_other_data_are_used_as_a_whole(tmp_path: Path) -> None:
    rule = rule_of(_set([20, 20]), 2, SHARES, 1)
    images = np.random.default_rng(5).integers(0, 256, (20, 4, 4, 1), dtype=np.uint8)
    folder = _folder(tmp_path / "others", ImageSet("others", images, np.arange(20) % 2))
    found = read_images(folder, PREP, "test", rule=rule)
    assert (len(found), found.split, found.share) == (20, "", "")


RULE = TrainingSplit(1, "8000000000000000", "ffffffff00000001", "0123456789abcdef")


@pytest.mark.parametrize(
    "change",
    [
        {"seed": -1},
        {"test": "80"},
        {"test": "8000000G00000000"},
        {"validation": "ffffffff"},
        {"sample": "0123456789abcdef" * 65},
        {"test": "0" * 8 * (limits.WIDTH + 1)},
    ],
)
def test_a_rule_is_checked(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="training split"):
        replace(RULE, **change)
    properties = metadata(training_split=RULE).to_properties()
    found = ModelMetadata.from_properties(properties)
    assert found is not None
    assert found.training_split == RULE
    properties["capsedge.training_split"] = json.dumps(RULE.to_dict() | change)
    with pytest.raises(ArtefactError):
        ModelMetadata.from_properties(properties)


def test_the_rule_in_words() -> None:
    rule = TrainingSplit(7, "19999999" + "26666666", "33333333" + "40000000", "")
    assert rule.summary == (
        "10 % to 15 % of each class for testing, 10 % of each class for validation (seed 7)"
    )
    assert TrainingSplit(0, "", "", "").summary.startswith("0 % of each class for testing")
