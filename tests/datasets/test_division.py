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
from capsedge.datasets.image_set import divided, holdout_rule
from capsedge.errors import ArtefactError
from capsedge.runtime.metadata.metadata import ModelMetadata, Preprocessing
from capsedge.runtime.metadata.origin import TrainingSplit, joint_training_split
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
    return divided(images, holdout_rule(images, classes, shares, seed))


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
    assert test.first(3).described == "photos, 3 of 63 images, held out from training"
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
    rule = holdout_rule(images, 2, SHARES, 1)
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
    rule = holdout_rule(images, 2, SHARES, 1)
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
    rule = holdout_rule(_set([20, 20]), 2, SHARES, 1)
    images = np.random.default_rng(5).integers(0, 256, (20, 4, 4, 1), dtype=np.uint8)
    folder = _folder(tmp_path / "others", ImageSet("others", images, np.arange(20) % 2))
    found = read_images(folder, PREP, "test", rule=rule)
    assert (len(found), found.split) == (20, "")
    assert found.described == "others, all 20 images, none of which trained the model"
    longer = replace(rule, sample="0" * 64 * 16)  # more images were trained on than it names
    found = read_images(folder, PREP, "test", rule=longer)
    assert found.described == "others, all 20 images; cannot tell whether they trained the model"


def _idx(place: Path, images: ImageSet) -> Path:
    place.mkdir()
    for name, array in (("images-idx3", images.images[..., 0]), ("labels-idx1", images.classes)):
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
        (place / f"train-{name}-ubyte").write_bytes(head + array.astype(np.uint8).tobytes())
    return place


def _archive(place: Path, images: ImageSet) -> Path:
    place.parent.mkdir(exist_ok=True)
    np.savez(place, images=images.images, labels=images.classes)
    return place


@pytest.mark.parametrize("kind", ["file", "archives", "idx", "idx file", "class folders"])
def test_every_kind_of_data_without_test_images_is_divided(tmp_path: Path, kind: str) -> None:
    images = _set([20, 20])
    rule = holdout_rule(images, 2, SHARES, 1)
    source = {
        "file": lambda: _archive(tmp_path / "one.npz", images),
        "archives": lambda: _archive(tmp_path / "data" / "train.npz", images).parent,
        "idx": lambda: _idx(tmp_path / "data", images),
        "idx file": lambda: _idx(tmp_path / "data", images) / "train-images-idx3-ubyte",
        "class folders": lambda: _folder(tmp_path / "data", images),
    }[kind]()
    wanted = {split: part.digest() for split, part in divided(images, rule).items()}
    for split, which in (("test", "held out from training"), ("train", "trained on")):
        found = read_images(source, PREP, split, rule=rule)
        assert found.split == split
        assert found.described.endswith(f", {len(found)} of 40 images, {which}")
        if kind != "class folders":  # whose images are in another order
            assert found.digest() == wanted[split]
    if kind != "idx file":
        assert len(read_split(source, "validation", PREP, rule=rule)) == 4


def test_a_test_split_made_of_trained_images_says_so(tmp_path: Path) -> None:
    images = _set([20, 20])
    rule = holdout_rule(images, 2, SHARES, 1)
    trained = len(divided(images, rule)["train"])
    source = _archive(tmp_path / "data" / "test.npz", images).parent
    found = read_images(source, PREP, "test", rule=rule)
    text = f"test.npz, test split, 40 images, {trained} of which trained the model"
    assert found.described == text
    for name, expected in (("train", trained), ("test", 0)):
        part = found.take(np.flatnonzero(found.occurs_in(replace(
            divided(images, rule)[name], preprocessing=PREP
        ))))  # fmt: skip
        count = f"{expected or 'none'} of which trained the model"
        assert part.described == f"test.npz, test split, {len(part)} images, {count}"


@pytest.mark.parametrize("kind", ["folder", "array"])
@pytest.mark.parametrize("every", [True, False])
def test_trained_images_without_labels_are_counted(tmp_path: Path, kind: str, every: bool) -> None:
    images = _set([20, 20])
    rule = holdout_rule(images, 2, SHARES, 1)
    trained = len(divided(images, rule)["train"])
    text = f"{trained} of which trained the model"
    if not every:  # the sample of a larger data set
        rule = replace(rule, sample=rule.sample[:48] + "0" * 61 * 16)
        text = "at least 3 of which trained the model"
    source = tmp_path / "pixels.npy"
    if kind == "folder":
        source = tmp_path / "flat"
        source.mkdir()
        for number, pixels in enumerate(images.images):
            Image.fromarray(pixels[..., 0]).save(source / f"{number}.png")
    else:
        np.save(source, images.images)
    found = read_images(source, PREP, "test", rule=rule)
    assert found.described == f"{source.name}, all 40 images, {text}"


def test_a_stated_test_split_stays_and_validation_is_drawn(tmp_path: Path) -> None:
    images = _set([20, 20])
    rule = holdout_rule(images, 2, {"validation": 0.1}, 1)
    assert rule.summary == "4 % to 5 % of each class for validation (seed 1)"
    source = _archive(tmp_path / "data" / "train.npz", images).parent
    others = np.random.default_rng(5).integers(0, 256, (20, 4, 4, 1), dtype=np.uint8)
    _archive(source / "test.npz", ImageSet("test", others, np.arange(20) % 2))
    found = read_split(source, "test", PREP, rule=rule)
    assert found.described == "test.npz, test split, 20 images, none of which trained the model"
    assert read_split(source, "validation", PREP, rule=rule).occurs_in(images).all()
    assert len(read_split(source, "train", PREP, rule=rule)) == 36


def test_of_other_labels_nothing_is_claimed(tmp_path: Path) -> None:
    """Thresholds are those of classes: with other labels, trained images would pass for held-out ones."""
    images = _set([40, 40])
    rule = holdout_rule(images, 2, SHARES, 1)
    other = _archive(tmp_path / "one.npz", replace(images, labels=1 - images.classes))
    found = read_images(other, PREP, "test", rule=rule)
    assert found.described == "one.npz, all 80 images, 62 of which trained the model"
    assert joint_training_split([rule, holdout_rule(images, 2, SHARES, 2)]).applying(
        images.checksums, (1 - images.classes).tolist()
    ) is None  # fmt: skip
    prepared = images.images.astype(np.float32).transpose(0, 3, 1, 2)
    np.savez(tmp_path / "prepared.npz", images=prepared, labels=images.classes)
    floats = read_images(tmp_path / "prepared.npz", PREP, "test", rule=rule)
    assert floats.described.endswith("all 80 images; cannot tell whether they trained the model")


def test_what_any_of_several_networks_was_trained_on_is_not_held_out(tmp_path: Path) -> None:
    images = _set([60, 60])
    rules = [holdout_rule(images, 2, {"test": 0.5}, seed) for seed in (1, 2)]
    source = _archive(tmp_path / "one.npz", images)
    apart = ImageSet("other", np.full((1, 4, 4, 1), 7, np.uint8), np.zeros(1, np.int64))
    other = holdout_rule(apart, 1, {}, 0)  # of a network with other data
    together = joint_training_split([*rules, None, rules[0], other])
    held = read_images(source, PREP, "test", rule=together)
    assert 10 < len(held) < 50
    for rule in rules:
        trained = replace(divided(images, rule)["train"], preprocessing=PREP)
        assert not held.occurs_in(trained).any()
        assert trained.occurs_in(read_images(source, PREP, "train", rule=together)).all()
    assert joint_training_split([None]) is None
    assert joint_training_split([rules[0], rules[0]]) is rules[0]


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
    empty = TrainingSplit(7, "19999999" + "00000000", "33333333" + "00000000", "")
    assert (
        empty.summary
        == "10 % of each class for testing, 10 % of each class for validation (seed 7)"
    )
    assert TrainingSplit(0, "", "", "").summary == "nothing drawn (seed 0)"


def test_a_folder_of_classes_is_numbered_as_the_model_names_them(tmp_path: Path) -> None:
    """By its own order, a folder that lacks a class, or a model with another order, gets wrong labels."""
    images = _set([6, 6])
    folder = _folder(tmp_path / "photos", images)  # the classes 0 and 1
    for named, wanted in (
        ((), {0, 1}),
        (("1", "0"), {0, 1}),
        (("2", "1", "0"), {1, 2}),
        (("a", "1"), {0, 1}),
    ):
        found = read_images(folder, PREP, "test", named=named)
        assert set(found.classes.tolist()) == wanted
        if "0" in named:
            for name, label in zip(found.names, found.classes, strict=True):
                assert named[label] == name.split("/")[0]
