"""Losses, augmentation, data formats, and runs that resume to the same numbers."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import capsedge
from capsedge.datasets import ImageSet, array_files, read_split, typical_input_from
from capsedge.errors import ArtefactError, EnvironmentProblem, ParityError, UsageError
from capsedge.models import CapsuleOutput, build, get_config
from capsedge.models.checkpoint import load_checkpoint, save_checkpoint
from capsedge.models.training import augment, losses
from capsedge.models.training import train as epochs
from capsedge.models.training.evaluate import (
    count_correct,
    evaluation_pairs,
    normalize_images,
    predict_all,
)
from capsedge.models.training.losses import batch_loss, fast_math
from capsedge.models.training.recipe import Recipe, training_of
from capsedge.models.training.train import train
from capsedge.models.training.train_options import TrainOptions

PREP = get_config("digits-em").preprocessing


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_images(n: int = 48) -> ImageSet:
    """A bright square whose place tells the class."""
    generator = np.random.default_rng(0)
    labels = np.arange(n, dtype=np.int64) % 4
    images = generator.integers(0, 40, (n, 28, 28, 1), dtype=np.uint8)
    for k, label in enumerate(labels):
        y, x = 4 + 12 * (label // 2), 4 + 12 * (label % 2)
        images[k, y : y + 8, x : x + 8] = 255
    return ImageSet("test", images, labels)


# Losses: by hand from the formulas.


def test_margin_loss() -> None:
    lengths = torch.tensor([[0.8, 0.3, 0.05]])
    targets = torch.tensor([[1.0, 0.0, 0.0]])
    assert losses.margin_loss(lengths, targets).item() == pytest.approx(0.1**2 + 0.5 * 0.2**2)


def test_spread_loss() -> None:
    activations = torch.tensor([[0.6, 0.5, 0.1]])
    targets = torch.tensor([[1.0, 0.0, 0.0]])
    found = losses.spread_loss(activations, targets, 0.2).item()
    assert found == pytest.approx((0.2 - 0.1) ** 2)


def test_cross_entropy_for_one_and_for_several_labels() -> None:
    logits = torch.tensor([[2.0, 0.0]])
    one = losses.cross_entropy_loss(logits, torch.tensor([[1.0, 0.0]])).item()
    assert one == pytest.approx(np.log(1 + np.exp(-2.0)))
    two = losses.cross_entropy_loss(logits, torch.tensor([[1.0, 1.0]])).item()
    assert two == pytest.approx((np.log(1 + np.exp(-2.0)) + np.log(2.0)) / 2)


# Augmentation.


def test_shift_moves_and_keeps() -> None:
    x = torch.zeros(64, 1, 9, 9)
    x[:, :, 4, 4] = 1
    y = augment.shift(x, 2, rng())
    assert torch.equal(y.sum((1, 2, 3)), torch.ones(64))
    places = {tuple(p[2:].tolist()) for p in y.nonzero()}
    assert len(places) > 10
    assert all(2 <= a <= 6 and 2 <= b <= 6 for a, b in places)
    assert augment.shift(x, 0, rng()) is x


def test_affine_identity_places_the_image_in_the_centre() -> None:
    x = torch.rand(2, 1, 28, 28, generator=rng())
    y = augment.affine(x, (36, 36), rng(), shift_limit=0)
    torch.testing.assert_close(y[:, :, 4:32, 4:32], x, atol=1e-4, rtol=0)
    assert y[:, :, :3].abs().max() == 0


def test_affine_shift_is_in_pixels() -> None:
    x = torch.zeros(200, 1, 28, 28)
    x[:, :, 13:15, 13:15] = 1
    y = augment.affine(x, (36, 36), rng(), shift_limit=6)
    rows = torch.arange(36.0)
    centre = (y.sum((1, 3)) * rows).sum(1) / y.sum((1, 2, 3))
    assert 5 < (centre - 17.5).abs().max() <= 6.1


@pytest.mark.parametrize("diverse", [False, True])
def test_overlap_makes_pairs_of_two_classes(diverse: bool) -> None:
    x, labels = torch.rand(40, 1, 28, 28, generator=rng()), torch.arange(40) % 4
    canvas, both, each = augment.overlap(x, labels, (36, 36), rng(), diverse=diverse)
    assert canvas.shape[1:] == (1, 36, 36)
    assert len(canvas) == len(both) == len(each) > 30
    assert bool((both[:, 0] != both[:, 1]).all())
    assert torch.equal(canvas, torch.maximum(each[:, 0], each[:, 1]))


# Data formats.


def write_idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    data = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx(tmp_path: Path, ending: str) -> None:
    data = some_images(8)
    write_idx(tmp_path / f"train-images-idx3-ubyte{ending}", data.images[..., 0])
    write_idx(tmp_path / f"train-labels-idx1-ubyte{ending}", data.labels)
    found = read_split(tmp_path, "train", PREP)
    assert np.array_equal(found.images, data.images)
    assert np.array_equal(found.labels, data.labels)


def test_damaged_idx(tmp_path: Path) -> None:
    path = tmp_path / "x-idx"
    write_idx(path, np.zeros((4, 5), np.uint8))
    whole = path.read_bytes()
    for content in (b"", whole[:-1], whole + b"x", b"\x00\x00\x0d\x02" + whole[4:]):
        path.write_bytes(content)
        with pytest.raises(UsageError):
            array_files.read(path)
    path.write_bytes(struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**31, 2**31))
    with pytest.raises(UsageError, match="claims"):
        array_files.read(path)


def test_npz_and_its_errors(tmp_path: Path) -> None:
    data = some_images(8)
    np.savez(tmp_path / "train.npz", images=data.images, labels=data.labels)
    assert len(read_split(tmp_path, "train", PREP)) == 8
    np.savez(tmp_path / "bad.npz", images=data.images.astype(float), labels=data.labels)
    with pytest.raises(UsageError, match="uint8"):
        read_split(tmp_path / "bad.npz", "train", PREP)
    objects = np.array([{"x": 1}], dtype=object)
    np.savez(tmp_path / "object.npz", images=objects, labels=objects)
    with pytest.raises(UsageError):
        read_split(tmp_path / "object.npz", "train", PREP)


def test_cifar_batches_without_running_pickles(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    batch = {b"data": images.reshape(3, -1), b"labels": [3, 1, 2]}
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))  # as the originals
    found = read_split(tmp_path, "train", get_config("attention-cifar10-simple").preprocessing)
    assert np.array_equal(found.images, images.transpose(0, 2, 3, 1))
    assert found.labels.tolist() == [3, 1, 2]

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'trapped'}",)

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UsageError, match="names"):
        read_split(tmp_path, "train", PREP)
    assert not (tmp_path / "trapped").exists()


def test_folder_of_images(tmp_path: Path) -> None:
    for name, value in (("a", 10), ("b", 200)):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.new("L", (28, 28), value).save(tmp_path / "train" / name / "x.png")
    found = read_split(tmp_path, "train", PREP)
    assert found.images.shape == (2, 28, 28, 1)
    assert found.images[:, 0, 0, 0].tolist() == [10, 200]
    assert found.labels.tolist() == [0, 1]
    with pytest.raises(UsageError, match="no labels"):
        read_split(tmp_path / "train" / "a", "train", PREP)


# The loop.

RECIPE = Recipe(epochs=3, batch=16, learning_rate=5e-3, shift=1, seed=3)
CONFIG = get_config("digits-em").replace(iterations=2)


@pytest.mark.thorough
def test_training_learns_and_keeps_its_history(tmp_path: Path) -> None:
    data = some_images()
    # The margin of the spread loss grows, so that its value says little: cross entropy here.
    config = get_config("digits-attention")
    model = train(config, RECIPE, data, data, tmp_path)
    lines = [json.loads(x) for x in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [x["epoch"] for x in lines] == [1, 2, 3]
    assert lines[-1]["loss"] < lines[0]["loss"]
    accuracy = (predict_all(model, data).argmax(1).numpy() == data.labels).mean()
    assert lines[-1]["test_accuracy"] == pytest.approx(accuracy)
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.sample(1)
@pytest.mark.parametrize("count", [48, 128])
def test_the_checkpoint_states_its_typical_input(tmp_path: Path, count: int) -> None:
    """Too few images do not tell."""
    data, config = some_images(count), get_config("digits-attention")
    train(config, replace(RECIPE, epochs=1), data, None, tmp_path)
    typical = load_checkpoint(tmp_path / "model.safetensors").typical_input
    assert typical == (None if count < 100 else typical_input_from(data, config.preprocessing))


@pytest.mark.sample(1)
@pytest.mark.parametrize("average", [0.0, 0.9])
def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path, average: float) -> None:
    from dataclasses import replace

    data, recipe = some_images(32), replace(RECIPE, average=average, epochs=2)
    whole = train(CONFIG, recipe, data, None, tmp_path / "whole")

    class StopError(Exception):
        pass

    def interrupt(line: dict[str, object]) -> None:
        if line["epoch"] == 1:
            raise StopError

    with pytest.raises(StopError):
        train(CONFIG, recipe, data, None, tmp_path / "cut", epoch_done=interrupt)
    with pytest.raises(UsageError, match="--resume"):
        train(CONFIG, recipe, data, None, tmp_path / "cut")
    resumed = train(CONFIG, recipe, data, None, tmp_path / "cut", resume=True)
    for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ArtefactError, match="other settings") as changed:
        train(CONFIG, replace(recipe, seed=9), data, None, tmp_path / "cut", resume=True)
    assert f"seed was {recipe.seed} and is now 9." in changed.value.why
    with pytest.raises(ArtefactError, match="state of a training run") as state:
        load_checkpoint(tmp_path / "cut" / "last.pt")
    assert f"{tmp_path / 'cut' / 'model.safetensors'}" in state.value.fix


def accuracies(monkeypatch: pytest.MonkeyPatch, given: list[float]) -> None:
    """Let the validation accuracy of the epochs be these."""
    shares = iter(given)
    monkeypatch.setattr(epochs, "count_correct", lambda *_: torch.tensor([next(shares)]))


@pytest.mark.thorough
def test_the_best_epoch_on_validation_images_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And training ends after it; both survive an interruption."""
    data, recipe = some_images(32), replace(RECIPE, epochs=6, patience=2, batch=32)
    validation = replace(some_images(16), split="validation")
    states: list[dict[str, torch.Tensor]] = []
    given = [0.25, 0.5, 0.5, 0.25, 1.0, 1.0]

    class StopError(Exception):
        pass

    def keep(line: dict[str, object]) -> None:
        states.append(load_checkpoint(tmp_path / "model.safetensors").state_dict())
        if line["epoch"] == 3:
            raise StopError

    accuracies(monkeypatch, given)
    with pytest.raises(StopError):
        train(CONFIG, recipe, data, validation, tmp_path, epoch_done=keep)
    accuracies(monkeypatch, given[3:])
    best = train(CONFIG, recipe, data, validation, tmp_path, resume=True, epoch_done=keep)
    lines = [json.loads(x) for x in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [x["validation_accuracy"] for x in lines] == given[:4]
    stored = training_of(tmp_path / "model.safetensors")
    assert stored is not None
    assert stored.last["epoch"] == 3  # of two equally accurate ones, the later
    for name, value in best.state_dict().items():
        assert torch.equal(value, states[2][name])
        assert torch.equal(value, states[3][name])
    assert any(not torch.equal(states[1][n], v) for n, v in best.state_dict().items())
    again = train(CONFIG, recipe, data, validation, tmp_path, resume=True)  # nothing is left to do
    assert torch.equal(next(again.parameters()), next(best.parameters()))


def test_a_run_does_not_go_on_with_other_images(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=1)
    train(CONFIG, recipe, some_images(32), None, tmp_path)
    with pytest.raises(ArtefactError, match="other images"):
        train(CONFIG, recipe, some_images(33), None, tmp_path, resume=True)
    # Another seed holds out other images: it is the seed that is named.
    with pytest.raises(ArtefactError, match="other settings") as changed:
        train(CONFIG, replace(recipe, seed=9), some_images(33), None, tmp_path, resume=True)
    assert "seed was" in changed.value.why


@pytest.mark.thorough
def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    data, still = some_images(32), Recipe(epochs=1, batch=16, learning_rate=1e-12)
    first = train(CONFIG, RECIPE, data, None, tmp_path / "first")
    second = train(CONFIG, still, data, None, tmp_path / "second", initial=first)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    with pytest.raises(UsageError, match="a different configuration"):
        train(CONFIG.replace(iterations=1), still, data, None, tmp_path / "third", initial=first)


def test_training_for_other_classes_starts_from_a_checkpoint(tmp_path: Path) -> None:
    """All weights whose shape depends on neither the classes nor the size of the images are kept."""
    data, still = some_images(32), Recipe(epochs=1, batch=16, learning_rate=1e-12)
    first = train(CONFIG, RECIPE, data, None, tmp_path / "first")
    more = CONFIG.replace(class_names=(*CONFIG.class_names, "another"))
    second = train(more, still, data, None, tmp_path / "second", initial=first)
    before, after = dict(first.named_parameters()), dict(second.named_parameters())
    kept = {name for name in before if before[name].shape == after[name].shape}
    assert any(name.startswith("stem") for name in kept)
    assert any(name.startswith("classes") for name in before.keys() - kept)
    for name in kept:
        torch.testing.assert_close(before[name], after[name], atol=1e-6, rtol=0)


@pytest.mark.sample(1)
@pytest.mark.parametrize("pairs", ["overlap", "diverse"])
def test_pairs_train_a_multi_label_model(tmp_path: Path, pairs: str) -> None:
    prep = {**get_config("digits-dynamic").to_dict()["preprocessing"], "height": 36, "width": 36}
    from capsedge.runtime.metadata.metadata import Preprocessing

    config = get_config("digits-dynamic").replace(
        preprocessing=Preprocessing(**prep), task="multi-label"
    )
    recipe = Recipe(epochs=1, batch=16, pairs=pairs)
    train(config, recipe, some_images(32), some_images(20), tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    line = json.loads((tmp_path / "history.jsonl").read_text())
    assert line["test_images"] == 20


def test_pairs_are_judged_on_the_same_pairs_every_time(tmp_path: Path) -> None:
    """A pair is right if both of the two best classes are its own."""
    data, config = some_images(40), get_config("digits-overlap")
    one, two = (list(evaluation_pairs(data, config, diverse=False)) for _ in range(2))
    canvases, owners = (torch.cat(part) for part in zip(*one, strict=True))
    assert canvases.shape == (40, 1, 36, 36)
    assert bool((owners[:, 0] != owners[:, 1]).all())
    assert torch.equal(canvases, torch.cat([c for c, _ in two]))
    model = build(config)

    def oracle(images: torch.Tensor) -> CapsuleOutput:
        k = next(
            at for at, (c, _) in enumerate(one) if torch.equal(normalize_images(c, config), images)
        )
        scores = torch.nn.functional.one_hot(one[k][1], 10).sum(1).float()
        scores[0] = scores[0].roll(1)  # the first pair is answered with two neighbours
        return CapsuleOutput(scores, images, images)

    model.forward = oracle  # type: ignore[method-assign]
    right = count_correct(model, data, "overlap")
    assert right.sum() == 39
    assert not right[0]


@pytest.mark.parametrize("schedule", ["exponential", "multistep"])
def test_the_papers_schedules_run(tmp_path: Path, schedule: str) -> None:
    more = {"flip": True, "rotate": 10.0, "zoom": 0.1}
    recipe = Recipe(epochs=1, batch=16, schedule=schedule, learning_rate=1e-3, **more)
    train(CONFIG, recipe, some_images(16), None, tmp_path)


def test_data_that_does_not_fit(tmp_path: Path) -> None:
    data = some_images(16)
    with pytest.raises(UsageError, match="class 11"):
        train(CONFIG, RECIPE, ImageSet("test", data.images, data.labels + 8), None, tmp_path)
    colour = ImageSet("test", np.repeat(data.images, 3, 3), data.labels)
    with pytest.raises(UsageError, match="3 channels"):
        train(CONFIG, RECIPE, colour, None, tmp_path)
    with pytest.raises(UsageError, match="too few for a batch"):
        train(CONFIG, Recipe(batch=64), data, None, tmp_path)


@pytest.mark.slow  # compiles
@pytest.mark.parametrize("name", ["digits-dynamic", "digits-em", "digits-attention"])
def test_fast_arithmetic_changes_the_last_digits_only(name: str) -> None:
    """BF16 has eight bits of mantissa; capsules and all weights stay in FP32."""
    torch.manual_seed(0)
    model = build(get_config(name)).train()
    images = torch.rand(8, 1, 28, 28)
    labels = torch.arange(8)
    gradients = []
    for fast in (False, True):
        model.zero_grad()
        with fast_math(fast):
            loss = batch_loss(model, images, labels, Recipe(shift=0), rng(), 0.5)
        loss.backward()
        gradients.append(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        )
    for key, value in gradients[0].items():
        found = gradients[1][key]
        assert found.dtype == torch.float32
        cosine = torch.nn.functional.cosine_similarity(value.flatten(), found.flatten(), dim=0)
        assert cosine > 0.95 or value.norm() < 1e-6, key


def test_fast_arithmetic_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EnvironmentProblem, match="--fast"), fast_math(True):
        pass
    with fast_math(False):
        pass


@pytest.mark.slow
def test_fast_runs_resume_like_others_and_old_runs_still_do(tmp_path: Path) -> None:
    """A run without --fast has the identity that runs had before there was such an option."""
    data, recipe = some_images(32), replace(RECIPE, epochs=1)
    train(CONFIG, recipe, data, None, tmp_path)
    with pytest.raises(ArtefactError, match="other settings"):
        train(CONFIG, replace(recipe, fast=True), data, None, tmp_path, resume=True)
    train(CONFIG, recipe, data, None, tmp_path, resume=True)


def test_windows_of_larger_images_have_no_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many pixels as the image has to spare come in from its own, not zeros."""
    config = get_config("digits-attention")
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(losses, "normalize_images", lambda x, _: seen.append(x) or x)
    ramp = torch.arange(1.0, 33).expand(64, 1, 32, 32)
    recipe = replace(RECIPE, shift=2)
    labels = torch.zeros(64, dtype=torch.long)
    batch_loss(build(config), ramp, labels, recipe, torch.Generator().manual_seed(0), 0.0)
    assert seen[0].shape == (64, 1, 28, 28)
    assert seen[0][:, 0, 0, 0].unique().tolist() == [1, 2, 3, 4, 5]
    assert float(seen[0].max()) == 32


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("digits-em", {}),
        ("digits-dynamic", {"flip": True}),
        ("digits-dynamic", {"rotate": 20, "zoom": 0.1}),
        ("digits-overlap", {"pairs": "overlap"}),
        ("digits-overlap", {"pairs": "diverse"}),
    ],
)
def test_a_step_elsewhere_mixes_no_devices(name: str, changes: dict[str, Any]) -> None:
    """By shapes and devices alone, without a GPU; cross entropy looks at values, which are not there."""
    model = build(name).to("meta")
    images, labels = torch.rand(4, 1, 28, 28, device="meta"), torch.arange(4)
    recipe = replace(RECIPE, shift=2, **changes)
    loss = batch_loss(model, images, labels, recipe, torch.Generator(), 0.5)
    loss.backward()
    assert loss.device.type == "meta"
    assert all(p.grad is not None and p.grad.device.type == "meta" for p in model.parameters())


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no NVIDIA GPU")
def test_training_on_a_gpu_and_going_on(tmp_path: Path) -> None:
    data = some_images(32)
    train(CONFIG, replace(RECIPE, average=0.9), data, None, tmp_path, device="cuda")
    again = replace(RECIPE, average=0.9)
    model = train(CONFIG, again, data, None, tmp_path, resume=True, device="cuda")
    assert next(model.parameters()).device.type == "cpu"


def test_devices_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Unknown device 'tpu'"):
        train(CONFIG, RECIPE, some_images(), None, tmp_path, device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(EnvironmentProblem, match="finds no GPU"):
            train(CONFIG, RECIPE, some_images(), None, tmp_path, device="cuda")


def test_the_shape_of_a_checkpoint_is_trained_anew(tmp_path: Path) -> None:

    images = np.random.default_rng(0).integers(0, 256, (32, 28, 28), dtype=np.uint8)
    for split in ("train", "test"):
        np.savez(tmp_path / f"{split}.npz", images=images, labels=np.arange(32) % 10)
    config = get_config("digits-em").replace(primary_types=3, iterations=1)
    torch.manual_seed(7)
    given = build(config)
    save_checkpoint(given, tmp_path / "shape.safetensors")
    options = TrainOptions(
        model=str(tmp_path / "shape.safetensors"),
        epochs=1,
        batch=16,
        learning_rate=1e-12,
        average=0,
        seed=2,
    )
    made = capsedge.train(tmp_path, tmp_path / "run", options).checkpoint
    found = load_checkpoint(made)
    assert found.config == config
    torch.manual_seed(2)
    fresh = build(config).get_parameter("primary_pose.conv.weight")
    torch.testing.assert_close(found.get_parameter("primary_pose.conv.weight"), fresh)
    assert not torch.equal(given.get_parameter("primary_pose.conv.weight"), fresh)


def test_the_trained_models_say_how_they_were_trained() -> None:
    from capsedge.models.training.recipe import recipe_of
    from capsedge.runtime.zoo import checkpoint_of_routing
    from capsedge.spec.vocabularies import ZOO_ROUTINGS as ROUTINGS

    assert all(recipe_of(checkpoint_of_routing(routing)) for routing in ROUTINGS)


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_training_that_diverges_ends_with_an_error_and_without_weights(
    tmp_path: Path, average: float
) -> None:
    recipe = Recipe(epochs=1, batch=16, schedule="multistep", learning_rate=1e30, average=average)
    with pytest.raises(ParityError, match="diverged in epoch 1") as raised:
        train(get_config("digits-small"), recipe, some_images(), None, tmp_path)
    assert raised.value.exit_code == 4
    assert not list(tmp_path.iterdir())
