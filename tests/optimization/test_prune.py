"""``capsedge prune``: what it removes, what it keeps, its gate, and which images it looks at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
from click.testing import CliRunner, Result
from PIL import Image

import capsedge
from capsedge.cli import app
from capsedge.datasets import read_split
from capsedge.datasets.image_set import holdout_rule
from capsedge.errors import ArtefactError, ParityError, UsageError
from capsedge.models import CapsuleModel, build, get_config
from capsedge.models.checkpoint import load_checkpoint, save_checkpoint
from capsedge.models.training.recipe import TRAINING_KEY, Recipe, recipe_of
from capsedge.models.training.train import train
from capsedge.optimization import prune_data
from capsedge.optimization.prune import RoundDone
from capsedge.optimization.prune_criteria import multiply_adds
from capsedge.optimization.prune_data import read, read_test
from capsedge.optimization.prune_report import Round
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.metadata.origin import PRUNING_KEY, pruned_of
from tests.models.training.test_training import some_images
from tests.optimization.test_removal import DYNAMIC, EM

FAST = {"epochs": 1, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Squares whose place tells the class, with other noise in each split."""
    folder = tmp_path_factory.mktemp("squares")
    for split, seed in (("train", 0), ("test", 1)):
        images = some_images(288 if split == "train" else 64)
        noise = np.random.default_rng(seed).integers(0, 30, images.images.shape, dtype=np.uint8)
        small = np.maximum(images.images, noise)[:, ::2, ::2]
        np.savez(folder / f"{split}.npz", images=small, labels=images.classes)
    return folder


@pytest.fixture(scope="module")
def checkpoint(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that knows them."""
    folder = tmp_path_factory.mktemp("trained")
    config = DYNAMIC.replace(class_names=("a", "b", "c", "d"))
    training = capsedge.datasets.read_split(data, "train", config.preprocessing)
    train(
        config,
        Recipe(epochs=4, batch=16, learning_rate=3e-3, shift=0, average=0.9),
        training,
        None,
        folder,
    )
    return folder / "model.safetensors"


def pruned(
    checkpoint: Path,
    output: Path,
    data: Path | None = None,
    round_done: RoundDone | None = None,
    **options: Any,
) -> capsedge.PruningReport:
    """`capsedge.prune` with its options as keywords."""
    return capsedge.prune(checkpoint, output, **options, data=data, round_done=round_done)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.thorough
def test_a_target_is_reached_and_every_step_works_on_the_result(
    checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small.safetensors"
    rounds: list[tuple[int, Round]] = []
    report = pruned(
        checkpoint, small, data=data, target_speedup=3, max_drop=5, epochs=2,
        round_done=lambda number, done: rounds.append((number, done)),
    )  # fmt: skip
    assert report.passed
    assert report.speedup >= 3
    assert [number for number, _ in rounds] == [1, 2]
    assert report.outcome is not None
    assert report.images == {
        "fine_tuning": 264, "held_out": 24, "evaluation": 64,
        "searched_on": "train.npz, 24 of 288 images, held out from fine-tuning only",
        "evaluated_on": "test.npz, test split, 64 images",
    }  # fmt: skip
    model = load_checkpoint(small)
    assert multiply_adds(model.config) == report.after.multiply_adds
    assert not (tmp_path / "small.safetensors.pruning").exists()
    assert report.after.bytes < report.before.bytes
    origin = pruned_of(small)
    assert origin is not None
    assert origin.parent == checkpoint.name
    assert origin.units == report.units
    exported = capsedge.export(model, tmp_path / "small.onnx", checkpoint_sha256=sha256(small))
    assert exported.passed
    certificate = capsedge.verify(small, tmp_path / "small.onnx", data=data)
    certificate.check()
    assert certificate.chain[0].facts["claimed_parent"]["parent"] == checkpoint.name
    quantized = capsedge.quantize(
        tmp_path / "small.onnx",
        tmp_path / "small.int8.onnx",
        max_drop=5,
        calib_data=data,
    )
    assert quantized.size < exported.size
    again = pruned(small, tmp_path / "smaller.safetensors", data=data, target_speedup=1.2,
                           max_drop=100, **FAST)  # fmt: skip
    tuned = recipe_of(small)
    assert tuned is not None
    assert tuned.epochs == 2
    assert not any("no recipe" in warning for warning in again.warnings)
    older = pruned_of(again.output)
    assert older is not None
    assert older.grandparent is not None
    assert older.grandparent["parent"] == checkpoint.name


@pytest.mark.thorough
def test_without_a_target_the_held_out_images_end_the_search(
    checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    report = pruned(
        checkpoint, tmp_path / "s.safetensors", data=data, max_drop=100, criterion="look-ahead",
        **FAST,
    )  # fmt: skip
    assert report.criterion == "look-ahead"
    assert len(report.rounds) >= 3
    sizes = [r.multiply_adds for r in report.rounds]
    assert sizes == sorted(sizes, reverse=True)
    assert report.after.multiply_adds == sizes[-1]
    kept = [r for r in report.rounds if r.drop <= 2]
    strict = pruned(
        checkpoint, tmp_path / "t.safetensors", data=data, max_drop=2, criterion="look-ahead",
        **FAST,
    )  # fmt: skip
    assert all(r.drop <= 2 for r in strict.rounds[:-1])
    assert strict.after.multiply_adds >= min((r.multiply_adds for r in kept), default=0)


@pytest.mark.thorough
def test_the_gate_keeps_a_rejected_file_aside(
    checkpoint: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network without fine-tuning worth the name, pruned to a fiftieth."""
    small = tmp_path / "small.safetensors"
    with pytest.raises(ParityError, match=r"points of accuracy lost, 0 allowed") as caught:
        pruned(checkpoint, small, data=data, target_speedup=50, max_drop=0, epochs=1,
                       learning_rate=1e-9)  # fmt: skip
    assert not small.exists()
    assert caught.value.report.output == Path(f"{small}.rejected")
    assert Path(f"{small}.rejected").exists()
    ran = invoke("prune", checkpoint, "-o", small, "--data", data, "--target-speedup", 50,
                 "--epochs", 1, "--lr", 1e-9, "--max-drop", 0)  # fmt: skip
    assert isinstance(ran.exception, ParityError)


@pytest.mark.thorough
def test_the_search_never_reads_the_test_images(
    checkpoint: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read once, after all rounds."""
    order: list[str] = []
    read_split = prune_data.read_split

    def recording(source: Path, split: str, *rest: object) -> object:
        order.append(split)
        return read_split(source, split, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(prune_data, "read_split", recording)
    pruned(
        checkpoint, tmp_path / "s.safetensors", data=data, target_speedup=2, max_drop=100,
        round_done=lambda number, _: order.append(f"round {number}"), **FAST,
    )  # fmt: skip
    assert order == ["train", "round 1", "test"]


@pytest.mark.thorough
def test_the_test_images_decide_nothing_but_the_gate(
    checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    """Other test images, the same network."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.npz").write_bytes((data / "train.npz").read_bytes())
    noise = np.random.default_rng(5).integers(0, 256, (40, 14, 14, 1), dtype=np.uint8)
    np.savez(other / "test.npz", images=noise, labels=np.arange(40) % 4)
    files = []
    for name, source in (("one", data), ("two", other)):
        files.append(tmp_path / f"{name}.safetensors")
        pruned(checkpoint, files[-1], data=source, max_drop=100, target_speedup=2, **FAST)
    one, two = map(safetensors.torch.load_file, files)
    assert all((one[name] == two[name]).all() for name in one)


@pytest.mark.thorough
def test_an_interrupted_pruning_goes_on_to_the_same_network(
    checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    class StopError(Exception):
        pass

    def stop(number: int, _: Round) -> None:
        raise StopError

    options = {"data": data, "target_speedup": 3, "max_drop": 100, **FAST}
    whole, cut = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    pruned(checkpoint, whole, **options)
    with pytest.raises(StopError):
        pruned(checkpoint, cut, round_done=stop, **options)
    assert not cut.exists()
    with pytest.raises(UsageError, match="--resume"):
        pruned(checkpoint, cut, **options)
    with pytest.raises(ArtefactError, match=r"target_speedup was 3.* and is now 4"):
        pruned(checkpoint, cut, resume=True, **{**options, "target_speedup": 4})
    pruned(checkpoint, cut, resume=True, **options)
    one, two = safetensors.torch.load_file(whole), safetensors.torch.load_file(cut)
    assert all((one[name] == two[name]).all() for name in one)


def test_without_data_nothing_with_an_effect_goes(checkpoint: Path, tmp_path: Path) -> None:
    ran = invoke("prune", checkpoint, "-o", tmp_path / "s.safetensors", "--json")
    assert ran.exit_code == 0, ran.output
    document = json.loads(ran.stdout)
    assert document["criterion"] == "exact"
    assert document["speedup"] == 1
    assert document["outcome"] is None
    model = load_checkpoint(checkpoint)
    model.state_dict()["stem.0.weight"][3] = 0
    model.state_dict()["stem.1.weight"][3] = 0
    model.state_dict()["stem.1.bias"][3] = 0
    save_checkpoint(model, tmp_path / "idle.safetensors")
    report = pruned(tmp_path / "idle.safetensors", tmp_path / "t.safetensors")
    assert report.units == {"stem.0 channels": "7 of 8"}


@pytest.mark.thorough
def test_em_is_fine_tuned_too(data: Path, tmp_path: Path) -> None:
    import torch

    config = EM.replace(class_names=("a", "b", "c", "d"))
    torch.manual_seed(10)  # right on half of the images; most seeds are no better than chance
    save_checkpoint(build(config), tmp_path / "em.safetensors")
    report = pruned(
        tmp_path / "em.safetensors", tmp_path / "s.safetensors", data=data, target_speedup=1.5,
        max_drop=100, **FAST,
    )  # fmt: skip
    assert report.speedup >= 1.5
    assert any("no recipe" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_speedup": 2}, "needs data"),
        ({"target_speedup": 1}, "from 1.01"),
        ({"max_drop": "1"}, "a number"),
        ({"target_speedup": float("nan")}, "from 1.01"),
        ({"criterion": "magnitude"}, "look-ahead"),
        ({"max_drop": -1}, "Invalid max_drop"),
        ({"epochs": 0}, "from 1"),
    ],
)
def test_what_cannot_be_asked_for(
    checkpoint: Path, tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        pruned(checkpoint, tmp_path / "s.safetensors", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_files_and_data_that_do_not_fit(checkpoint: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"would overwrite|same|input"):
        pruned(checkpoint, checkpoint)
    with pytest.raises(UsageError, match="would be a checkpoint"):
        pruned(checkpoint, tmp_path / "small.onnx")
    few = tmp_path / "few"
    few.mkdir()
    images = np.zeros((39, 14, 14, 1), np.uint8)
    np.savez(few / "train.npz", images=images, labels=np.arange(39) % 4)
    with pytest.raises(UsageError, match="too few"):
        pruned(checkpoint, tmp_path / "s.safetensors", data=few, target_speedup=2)
    many = np.zeros((300, 14, 14, 1), np.uint8)
    np.savez(few / "train.npz", images=many, labels=np.arange(300) % 10)
    with pytest.raises(UsageError, match="class 9"):
        pruned(checkpoint, tmp_path / "s.safetensors", data=few, target_speedup=2)


def _divided(place: Path, each: int) -> tuple[Path, CapsuleModel]:
    """A folder with so many images of two classes, and a network that was trained on a part of it."""
    pixels = np.random.default_rng(0).integers(0, 256, (2 * each, 14, 14, 1), dtype=np.uint8)
    for number, image in enumerate(pixels):
        (place / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(place / "ab"[number % 2] / f"{number}.png")
    model = build(DYNAMIC.replace(class_names=("a", "b")))
    images = read_split(place, "train", model.config.preprocessing)
    model.training_split = holdout_rule(images, 2, {"test": 0.15, "validation": 0.1}, 0)
    return place, model


@pytest.mark.parametrize(
    ("each", "counts", "unseen"),
    [(120, (184, 20, 36), True), (30, (35, 11, 8), False)],
    ids=["validation images", "some of the training images"],
)
def test_few_images_are_divided_as_the_training_did(
    tmp_path: Path, each: int, counts: tuple[int, ...], unseen: bool
) -> None:
    folder, model = _divided(tmp_path / "photos", each)
    images = read(folder, model, None, 0)
    test = read_test(folder, model, None, images)
    assert test is not None
    assert (len(images.training), len(images.held_out), len(test)) == counts
    assert images.unseen == unseen
    warnings = " ".join(images.warnings)
    assert f"only {counts[1]} images are held out for the search" in warnings
    assert ("too high" in warnings) != unseen
    assert test.described == f"photos, {counts[2]} of {2 * each} images, held out from training"
    assert not images.held_out.occurs_in(images.training).any()


@pytest.mark.thorough
def test_shared_images_are_refused_and_one_file_has_no_test_split(
    checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with np.load(data / "train.npz") as found:
        images, labels = found["images"], found["labels"]
    np.savez(shared / "train.npz", images=images, labels=labels)
    np.savez(shared / "test.npz", images=images[:30], labels=labels[:30])
    options = {"target_speedup": 2, "max_drop": 100, **FAST}
    with pytest.raises(UsageError, match="among the training images"):
        pruned(checkpoint, tmp_path / "s.safetensors", data=shared, **options)
    report = pruned(checkpoint, tmp_path / "t.safetensors", data=shared / "train.npz", **options)
    searched = "train.npz, 24 of 288 images, held out from fine-tuning only"
    assert report.images["evaluated_on"] == report.images["searched_on"] == searched


@pytest.mark.parametrize("text", ["{", "[]", '{"parent": 1}', '{"parent": "' + "x" * 10**6 + '"}'])
def test_a_hostile_lineage_is_an_error_of_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.safetensors"
    save_checkpoint(build(get_config("digits-em")), path, {PRUNING_KEY: text})
    with pytest.raises(ArtefactError, match="pruned from"):
        pruned_of(path)
    assert isinstance(invoke("inspect", path).exception, ArtefactError)


@pytest.mark.parametrize("text", ["{", '{"recipe": {"epochs": -1}, "last": {}}', '{"recipe": 3}'])
def test_a_hostile_recipe_is_an_error_of_the_file(data: Path, tmp_path: Path, text: str) -> None:
    config = DYNAMIC.replace(class_names=("a", "b", "c", "d"))
    path = tmp_path / "m.safetensors"
    save_checkpoint(build(config), path, {TRAINING_KEY: text})
    with pytest.raises(ArtefactError, match="how it was trained"):
        pruned(path, tmp_path / "s.safetensors", data=data, target_speedup=2)
