"""Training on images with masks: the sets, the loss, Dice as the measure, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from capsedge import Preprocessing
from capsedge.calibration.float_model import FloatModel
from capsedge.calibration.quantize import _read
from capsedge.datasets import ImageSet
from capsedge.datasets.mask_folders import read_mask_split
from capsedge.errors import UsageError
from capsedge.models import registry
from capsedge.models.training import mask_training
from capsedge.models.training.recipe import Recipe
from capsedge.models.training.run import train
from capsedge.runtime.session.masks import mask_png
from capsedge.verification.verify import _samples
from tests.models.test_segcaps import SMALL, network
from tests.runtime.models import segmentation_model
from tests.runtime.test_masks import segmenter


def draw(
    folder: Path, count: int, names: tuple[str, ...] = ("ground", "square"), seed: int = 4
) -> Path:
    """Images of a bright square on a dark ground, with its mask."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for k in range(count):
        mask = np.zeros((8, 8), np.uint8)
        y, x = rng.integers(0, 5, 2)
        mask[y : y + 3, x : x + 3] = 1
        pixels = (mask * 180 + rng.integers(0, 60, (8, 8))).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{k:03}.png")
        (folder / "masks" / f"{k:03}.png").write_bytes(mask_png(mask, names))
    return folder


def test_the_loss_falls_with_the_masks_and_not_with_unknown_pixels():
    model, recipe = network(), Recipe(shift=0)
    images = torch.rand(2, 1, 8, 8)
    lengths = model(images).scores[:, 0]
    right, wrong = (lengths >= 0.5).long(), (lengths < 0.5).long()

    def loss(masks: torch.Tensor) -> float:
        rng = torch.Generator().manual_seed(0)
        return mask_training.mask_loss(model, images, masks, recipe, rng).item()

    assert loss(right) < loss(wrong)
    half = right.clone()
    half[:, :4] = 255
    other = wrong.clone()
    other[:, 4:] = right[:, 4:]
    other[:, :4] = 255
    assert loss(half) == loss(other)


def test_a_shift_moves_image_and_mask_together(monkeypatch: pytest.MonkeyPatch):
    seen: list[torch.Tensor] = []
    model = network()
    monkeypatch.setattr(
        mask_training,
        "normalize_images",
        lambda x, _: seen.append(x) or x,  # type: ignore[func-returns-value]
    )
    masks = torch.zeros(4, 8, 8, dtype=torch.long)
    masks[:, 2:5, 2:5] = 1
    images = masks.unsqueeze(1).float()
    rng = torch.Generator().manual_seed(3)
    mask_training.mask_loss(model, images, masks, Recipe(shift=2, flip=True), rng)
    assert seen[0].shape == images.shape
    assert not torch.equal(seen[0], images)
    assert float(seen[0].sum()) == float(images.sum())


def test_overlap_is_measured_on_known_pixels():
    model = network()
    pixels = np.random.default_rng(1).integers(0, 256, (3, 8, 8, 1), np.uint8)
    found = ImageSet("x", pixels, masks=np.zeros((3, 8, 8), np.uint8))
    lengths = mask_training.predict_all(model, found).numpy()[:, 0]
    masks = (lengths >= 0.5).astype(np.uint8)
    masks[:, 0] = 255
    overlap = mask_training.overlap_of(model, dataclasses.replace(found, masks=masks))
    assert (overlap.pixels, overlap.changed, overlap.images) == (3 * 56, 0, 3)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(registry.MODELS, "small-masks", SMALL)
    return "small-masks"


@pytest.mark.thorough
def test_training_a_folder(tmp_path: Path, small: str):
    """Sets, names and colours are those of the folder; Dice chooses the epoch; a run continues."""
    data, said = draw(tmp_path / "data", 80), list[str]()
    options = {"model": small, "batch": 8, "learning_rate": 0.02, "shift": 0}
    trained = train(data, tmp_path / "run", log=said.append, epochs=6, **options)  # type: ignore[arg-type]
    lines = [json.loads(x) for x in (tmp_path / "run/history.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert all(0 <= line["validation_dice"] <= 1 for line in lines)
    assert trained.test_accuracy is None
    assert trained.test_dice is not None
    assert trained.test_dice > 0.6
    assert any(line.startswith("mean Dice") for line in said)
    assert any("2 classes (ground, square); grey" in line for line in said)
    again = train(data, tmp_path / "run", resume=True, epochs=6, **options)  # type: ignore[arg-type]
    assert again.test_dice == trained.test_dice


@pytest.mark.parametrize("field", ["rotate", "zoom", "pairs"])
def test_recipes_for_single_objects(tmp_path: Path, small: str, field: str):
    value = "overlap" if field == "pairs" else 0.2
    with pytest.raises(UsageError, match=f"{field} does not apply to masks"):
        mask_training.check(SMALL, dataclasses.replace(Recipe(), **{field: value}))


def test_a_folder_without_masks(tmp_path: Path, small: str):
    (tmp_path / "images").mkdir()
    with pytest.raises(UsageError, match="has no masks"):
        train(tmp_path, tmp_path / "run", model=small)


def test_splits_are_those_of_the_training(tmp_path: Path) -> None:
    """A folder without splits is divided as when the model was trained; a split of its own goes first."""
    config = dataclasses.replace(SMALL, class_names=("ground", "square"))
    prep, names = config.preprocessing, config.class_names
    folder = draw(tmp_path / "one", 60)
    *sets, rule = mask_training.read_sets(folder, config, None, 1, lambda _: None, (0.2, 0.1))
    for split, wanted in zip(("train", "validation", "test"), sets, strict=True):
        found = read_mask_split(folder, split, prep, names, None, rule)
        assert found.names == wanted.names
        assert (found.split, found.labels) == (split, None)
    assert len(read_mask_split(folder, "test", prep, names)) == 60
    other = tmp_path / "split"
    draw(other / "train", 20, seed=9)
    draw(other / "validation", 5, seed=6)
    assert read_mask_split(other, "test", prep, names, 3, rule).split == "validation"
    assert len(read_mask_split(other, "test", prep, names, 3, rule)) == 3


def test_verify_and_quantize_take_what_was_held_out(tmp_path: Path) -> None:
    prep, names = Preprocessing(8, 8, 1), ("ground", "square")
    config = dataclasses.replace(SMALL, class_names=names, preprocessing=prep)
    folder = draw(tmp_path / "one", 60)
    *sets, rule = mask_training.read_sets(folder, config, None, 1, lambda _: None, (0.2, 0.1))
    path = tmp_path / "m.onnx"
    with segmenter(1, prep, class_names=names, training_split=rule) as session:
        assert session.metadata is not None
        held_out = _samples(folder, session, (1, 8, 8), None, None)
        model = segmentation_model((1, 8, 8), properties=session.metadata.to_properties())
        onnx.save(model, path)
    assert held_out.names == sets[2].names
    for split, wanted in (("train", sets[0]), ("test", sets[2])):
        assert _read(FloatModel(path), folder, split).names == wanted.names
