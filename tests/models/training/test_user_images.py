"""Folders of one's own images: classes, colours, sizes and splits come from the data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import capsedge
from capsedge.datasets import ImageSet, class_names, colour_of, read_split, side_of
from capsedge.errors import UsageError
from capsedge.models import MODELS, build, get_config
from capsedge.models.capsule_stack_config import CapsuleStackConfig, RoutedLayerConfig, StemLayer
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.configs import Conv, DeepCapsConfig, ModelConfig, PSCapsNetConfig, ResNet
from capsedge.models.fsanet_config import FSANetConfig
from capsedge.models.training import user_images
from capsedge.models.training.evaluate import by_class, confusion, draw_confusion
from capsedge.models.training.recipe import recipe_of
from capsedge.models.training.train_options import TrainOptions
from tests.exporters.nets import CONFIGS
from tests.tables import table


def pictures(folder: Path, classes: dict[str, int], colour: bool = False, first: int = 0) -> Path:
    """So many images of odd sizes in a sub-folder for each class; grey ones are stored as RGB by turns."""
    for place, (name, count) in enumerate(classes.items()):
        (folder / name).mkdir(parents=True)
        for k in range(first, first + count):
            random = np.random.default_rng([place, k])
            pixels = random.integers(0, 256, (9 + k % 5, 12, 3 if colour else 1), dtype=np.uint8)
            image = Image.fromarray(pixels if colour else pixels[..., 0])
            (image.convert("RGB") if k % 2 else image).save(folder / name / f"{k}.png")
    return folder


def test_classes_and_colours_are_those_of_the_folder(tmp_path: Path) -> None:
    grey = pictures(tmp_path / "grey", {"b é": 2, "a": 3, "10": 2})
    (grey / ".cache").mkdir()
    (grey / "notes.txt").write_text("no class")
    colour = pictures(tmp_path / "colour" / "train", {"x": 2, "y": 2}, colour=True).parent
    assert class_names(grey) == ("10", "a", "b é")
    assert class_names(colour) == ("x", "y")
    assert (colour_of(grey), colour_of(colour)) == (False, True)
    assert user_images.default_model(grey) == (user_images.SMALL_GREY, None)
    assert user_images.default_model(colour) == (user_images.OTHER, None)
    config = user_images.fitted(get_config("digits-em"), colour, None)
    assert (config.classes, config.preprocessing.channels) == (2, 3)
    assert build(config).config.class_names == ("x", "y")


def test_larger_images_keep_more_pixels(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for k, side in enumerate((40, 60, 90)):
        Image.fromarray(np.zeros((100, side), np.uint8)).save(tmp_path / "a" / f"{k}.png")
    (tmp_path / "a" / "9.png").write_bytes(b"broken")
    assert side_of(tmp_path) == 60
    assert user_images.default_model(tmp_path) == (user_images.OTHER, user_images.LARGER)


def test_other_data_has_no_classes_of_its_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", images=np.zeros((4, 28, 28), np.uint8), labels=np.arange(4))
    (tmp_path / "figures").mkdir()
    pictures(tmp_path / "figures", {"a": 1})
    assert class_names(tmp_path) == ()
    assert class_names(tmp_path / "train.npz") == ()
    config = get_config("digits-em")
    assert user_images.fitted(config, tmp_path, None) is config
    with pytest.raises(UsageError, match="--size does not apply"):
        user_images.fitted(config, tmp_path, 20)
    with pytest.raises(UsageError, match="--model"):
        user_images.default_model(tmp_path)


def test_a_size_too_small_for_the_model_is_named_before_images_are_read(tmp_path: Path) -> None:
    folder = pictures(tmp_path, {"a": 1, "b": 1})
    for file in folder.rglob("*.png"):
        file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(UsageError, match="too deep for images of 7x7 pixels"):
        capsedge.train(folder, tmp_path / "run", model="photos", size=7)


def test_a_model_for_these_classes_keeps_its_preprocessing(tmp_path: Path) -> None:
    digits = pictures(tmp_path, {str(digit): 1 for digit in range(10)}, colour=True)
    config = get_config("digits-em")
    assert user_images.fitted(config, digits, None) is config


SMALL = {"preprocessing": get_config("digits-em").preprocessing, "class_names": ("a", "b")}
NETWORKS: dict[str, ModelConfig] = {
    **MODELS,
    "deep-caps": DeepCapsConfig(**SMALL, stem=(Conv(8, 3, 1, 1),), primary_types=2),
    "self-attention": CONFIGS["self-attention"],
    "pscapsnet": PSCapsNetConfig(**SMALL, stem=ResNet(((8, 1, 1),)), primary_dim=4),
    "capsule-stack": CapsuleStackConfig(
        **SMALL,
        layers=(StemLayer("conv", 8, (9, 9), (4, 4)),),
        primary_dim=8,
        routed=(RoutedLayerConfig(2, 4),),
    ),
}


@pytest.mark.thorough
@table(
    "name, classes, channels",
    [
        (name, classes, 1 + 2 * (classes > 2))
        for name, config in NETWORKS.items()
        for classes in (2, 12, 100)
        if config.task != "segmentation"
    ],
)
def test_every_network_takes_any_number_of_classes(name: str, classes: int, channels: int) -> None:
    """Shapes alone: nothing is computed, so that the largest networks cost nothing."""
    config = NETWORKS[name]
    prep = replace(config.preprocessing, channels=channels, mean=(0.0,), std=(1.0,))
    names = tuple(f"class {k}" for k in range(classes))
    with torch.device("meta"):
        network = build(config.with_classes(names).replace(preprocessing=prep, iterations=1)).eval()
        scores = network(torch.empty(2, *prep.shape)).scores
    assert scores.shape == (2, classes)


def test_a_network_without_classes_is_refused() -> None:
    config = FSANetConfig(preprocessing=get_config("photos").preprocessing)
    with pytest.raises(UsageError, match="estimates values"):
        config.with_classes(("a", "b"))
    assert NETWORKS["capsule-stack"].with_classes("abc").classes == 3


def test_images_lie_deeper_and_hidden_files_are_none(tmp_path: Path) -> None:
    pictures(tmp_path, {"a": 2, "b": 1, "b/2024/may": 3, ".trash": 2})
    (tmp_path / "a" / "._0.png").write_bytes(b"macOS")
    (tmp_path / "a" / "link.png").symlink_to(tmp_path / "a" / "1.png")
    (tmp_path / "b" / "circle").symlink_to(tmp_path)
    found = read_split(tmp_path, "train", get_config("digits-em").preprocessing)
    assert class_names(tmp_path) == ("a", "b")
    assert np.bincount(found.classes).tolist() == [3, 4]


def test_all_broken_images_are_named_at_once(tmp_path: Path) -> None:
    pictures(tmp_path, {"a": 3, "b": 3})
    prep = get_config("digits-em").preprocessing
    first, second = tmp_path / "a" / "0.png", tmp_path / "b" / "2.png"
    first.write_bytes(first.read_bytes()[:60])
    assert not colour_of(tmp_path)
    with pytest.raises(UsageError, match=r"0\.png"):
        read_split(tmp_path, "train", prep)
    second.write_bytes(b"junk")
    with pytest.raises(UsageError, match=r"^2 of 6 images cannot be read: .*0\.png, .*2\.png\."):
        read_split(tmp_path, "train", prep)


def test_labels_of_test_images_are_those_of_the_training_classes(tmp_path: Path) -> None:
    """A class without test images does not shift the others."""
    pictures(tmp_path / "train", {"a": 2, "b": 2, "c": 2})
    pictures(tmp_path / "val", {"a": 1, "c": 1})
    prep = get_config("digits-em").preprocessing
    assert read_split(tmp_path, "test", prep).classes.tolist() == [0, 2]
    pictures(tmp_path / "val", {"z": 1})
    with pytest.raises(UsageError, match="training images: z"):
        read_split(tmp_path, "test", prep)


def test_a_limit_takes_images_of_all_classes(tmp_path: Path) -> None:
    pictures(tmp_path, {"a": 6, "b": 6, "c": 6})
    some = read_split(tmp_path, "train", get_config("digits-em").preprocessing, 6)
    assert np.bincount(some.classes).tolist() == [2, 2, 2]


def _set(counts: list[int], **pixels: Any) -> ImageSet:
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 4, 4, 1), dtype=np.uint8)
    return ImageSet("photos", images, labels, **pixels)


def test_few_and_unequal_images_are_named() -> None:
    said: list[str] = []
    user_images.check_class_balance(["cat", "dog"], _set([60, 3]), said.append)
    assert "fewer than 10 training images: dog (3)" in said[0]
    assert "60 images of cat, 3 of dog" in said[1]
    user_images.check_class_balance([str(k) for k in range(12)], _set([2] * 12), said.append)
    assert said[2].endswith("9 (2) and 2 more classes")
    with pytest.raises(UsageError, match="no training images of dog"):
        user_images.check_class_balance(["cat", "dog"], _set([60]), said.append)


def test_one_class_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one class: a"):
        user_images.fitted(get_config("digits-em"), pictures(tmp_path, {"a": 2}), None)


def test_mean_and_deviation_are_measured() -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 6, 6, 3), dtype=np.uint8)
    prep = user_images.normalized(get_config("photos"), images).preprocessing
    np.testing.assert_allclose(prep.mean, (images / 255).mean((0, 1, 2)), atol=1e-4)
    np.testing.assert_allclose(prep.std, (images / 255).std((0, 1, 2)), atol=1e-4)


def test_lines_by_class() -> None:
    matrix = confusion(np.array([0, 0, 1, 1, 1]), np.array([0, 0, 1, 0, 0]), 3)
    assert matrix.tolist() == [[2, 0, 0], [2, 1, 0], [0, 0, 0]]
    lines = by_class(["cat", "dog", "owl"], matrix)
    assert lines[1:] == ["  dog: 1 of 3; 2 taken for cat", "  cat: 2 of 2", "  owl: not tested"]
    many = by_class([str(k) for k in range(100)], np.eye(100, dtype=np.int64))
    assert len(many) == 27
    assert many[-1] == "  and 75 more classes, none less accurate"


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 120])
def test_the_confusion_matrix_is_drawn(tmp_path: Path, count: int) -> None:
    pytest.importorskip("matplotlib")
    names = [f"{k} $x_$ \u732b{'long ' * (k % 9)}" for k in range(count)]
    draw_confusion(names, np.eye(count, dtype=np.int64) * 3, tmp_path / "confusion.png")
    with Image.open(tmp_path / "confusion.png") as picture:
        assert min(picture.size) > 1000


@pytest.mark.thorough
def test_a_run(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data" / "train", {"cat": 12, "a dog": 12}).parent
    pictures(data / "test", {"cat": 3, "a dog": 4}, first=10)
    said: list[str] = []
    options = TrainOptions(epochs=1, batch=100, average=0, size=28)
    done = capsedge.train(data, tmp_path / "run", options, log=said.append)
    made, text = done.checkpoint, "\n".join(said)
    assert "no validation images: 2 training images are held out" in text
    assert "22 training images, 2 validation images, 3 test images" in text
    assert (
        f"test accuracy of epoch 1, which is kept: {done.test_accuracy:.4f} (data, test split, 3 images)"
        in text
    )
    # Of the four that are in both folders, one was drawn for validation.
    assert "3 test images are left out: they are also among the training images" in text
    assert "1 test image is left out: it is also among the validation images" in text
    assert "2 classes (a dog, cat); grey, resized to 28x28 (--size)" in text
    assert "batches of 2: there are 22 training images" in text
    assert "right, by class:" in text
    recipe = recipe_of(made)
    assert recipe is not None
    assert recipe.patience == 5
    config = load_checkpoint(made).config
    assert config.class_names == ("a dog", "cat")
    assert config.preprocessing.std != (1.0,)
    line = json.loads((tmp_path / "run" / "history.jsonl").read_text())
    assert line["validation_images"] == 2
    assert "test_accuracy" not in line
    assert "confusion matrix" in text


@pytest.mark.thorough
def test_validation_images_of_a_folder_choose_and_do_not_test(tmp_path: Path) -> None:
    """An image that is in two splits is used in one; two images of each class suffice for a run."""
    data = tmp_path / "data"
    pictures(data / "train", {"cat": 8, "dog": 8})
    pictures(data / "val", {"cat": 3, "dog": 3}, first=7)
    pictures(data / "test", {"cat": 3, "dog": 3}, first=9)
    said: list[str] = []
    options = TrainOptions(model="digits-em", epochs=1, batch=4, average=0)
    done = capsedge.train(data, tmp_path / "run", options, log=said.append)
    text = "\n".join(said)
    assert "2 validation images are left out: they are also among the training images" in text
    assert "2 test images are left out: they are also among the validation images" in text
    assert "16 training images, 4 validation images, 4 test images" in text
    assert done.test_images == 4
    few = pictures(tmp_path / "few", {"a": 2, "b": 2})
    done = capsedge.train(few, tmp_path / "small", options, log=said.append)
    assert done.test_images == 2


def test_patience_needs_validation_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", images=np.zeros((4, 28, 28), np.uint8), labels=np.arange(4))
    with pytest.raises(UsageError, match="patience does not apply"):
        capsedge.train(tmp_path, tmp_path / "run", model="digits-em", patience=3)


@pytest.mark.thorough
def test_a_folder_starts_from_a_model_of_the_zoo(tmp_path: Path) -> None:
    """Its model and normalization, for other classes; only the class capsules are new."""
    data, said = pictures(tmp_path / "data", {"coat": 12, "shirt": 12, "shoe": 12}), []
    options = TrainOptions(init="digits-attention", epochs=1, batch=8)
    trained = capsedge.train(data, tmp_path / "run", options, log=said.append)
    config, zoo = load_checkpoint(trained.checkpoint).config, get_config("digits-attention")
    assert config.class_names == ("coat", "shirt", "shoe")
    assert config.preprocessing == zoo.preprocessing
    (line,) = [text for text in said if "trained further" in text]
    taken, total = (int(word.replace(",", "")) for word in line.split() if word[0].isdigit())
    assert total / 2 < taken < total
    assert "start at random" in line


def test_a_folder_without_labels_is_refused_before_a_model_is_asked_for(tmp_path: Path) -> None:
    """The advice to choose a model would not help."""
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(UsageError, match="holds images, but no labels"):
        user_images.default_model(tmp_path)
    with pytest.raises(UsageError, match="is an image"):
        user_images.default_model(tmp_path / "a.png")
    np.savez(tmp_path / "one.npz", images=np.zeros((2, 28, 28), np.uint8), labels=np.arange(2))
    with pytest.raises(UsageError, match="with --model"):
        user_images.default_model(tmp_path / "one.npz")
