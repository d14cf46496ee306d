"""``capsedge train``: a run, its going on, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from capsedge.cli import app
from capsedge.datasets import read_images, read_split
from capsedge.errors import UsageError
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.training.recipe import training_of
from capsedge.runtime.metadata.metadata import Preprocessing
from tests.conftest import ROOT

RUN = ["train", "--model", "digits-em", "--iters", "1", "--batch", "16", "--json"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        images = rng.integers(0, 256, (48, 28, 28), dtype=np.uint8)
        np.savez(tmp_path / f"{split}.npz", images=images, labels=np.arange(48) % 10)
    return tmp_path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_trains_and_goes_on(data: Path) -> None:
    run = data / "run"
    done = invoke(*RUN, "--data", data, "-o", run, "--epochs", 2, "--limit", 32)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [e["epoch"] for e in document["epochs"]] == [1, 2]
    assert document["epochs"][0]["test_images"] == 32
    assert load_checkpoint(document["checkpoint"]).config.iterations == 1
    again = invoke(*RUN, "--data", data, "-o", run, "--epochs", 2, "--limit", 32)
    assert isinstance(again.exception, UsageError)
    assert "--resume" in str(again.exception)
    more = data / "more"
    init = ("--init", run / "model.safetensors")
    assert invoke(*RUN, "--data", data, "-o", more, "--epochs", 1, *init).exit_code == 0


def test_of_one_file_images_are_held_out_and_found_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "capsedge.models.training.run.draw_confusion", lambda *_: None
    )  # slow to import
    run, alone = data / "run", data / "train.npz"
    done = invoke(*RUN, "--data", alone, "-o", run, "--epochs", 1)
    assert done.exit_code == 0, done.output
    assert "no test images: 10 training images are held out" in done.stderr
    document = json.loads(done.stdout)
    assert document["test_data"] == "train.npz, 10 of 48 images, held out from training"
    assert document["test_images"] == 10
    assert f"{document['test_accuracy']:.4f} ({document['test_data']})" in done.stderr
    model = load_checkpoint(run / "model.safetensors")
    prep, rule = model.config.preprocessing, model.training_split
    test = read_images(alone.rename(data / "moved.npz"), prep, "test", rule=rule)
    assert test.described == "moved.npz, 10 of 48 images, held out from training"
    assert len(read_split(data / "moved.npz", "train", prep, rule=rule)) == 28
    again = ("--data", data / "moved.npz", "-o", run, "--epochs", 1, "--resume")
    more = json.loads(invoke(*RUN, *again).stdout)
    assert more["epochs"] == []
    assert more["test_accuracy"] == document["test_accuracy"]


def test_without_images_to_hold_out_accuracy_is_that_of_training(data: Path) -> None:
    """Of classes with one image each, none can be held out."""
    run, alone = data / "run", data / "train.npz"
    done = invoke(*RUN[:-1], "--data", alone, "-o", run, "--epochs", 1, "--limit", 10)
    assert done.exit_code == 0, done.output
    assert "accuracy on the training images" in done.stderr
    assert "test accuracy" not in done.stderr
    (line,) = [json.loads(text) for text in (run / "history.jsonl").read_text().splitlines()]
    assert line["training_images"] == 10
    assert not any(key.startswith(("test", "validation")) for key in line)
    stored = training_of(run / "model.safetensors")
    assert stored is not None
    assert stored.last["training_accuracy"] == line["training_accuracy"]


def test_data_with_test_images_record_what_was_trained_on(data: Path) -> None:
    run = data / "run"
    assert invoke(*RUN, "--data", data, "-o", run, "--epochs", 1, "--limit", 16).exit_code == 0
    model = load_checkpoint(run / "model.safetensors")
    prep, rule = model.config.preprocessing, model.training_split
    assert rule is not None
    whole = read_images(data / "train.npz", prep, "test", limit=16, rule=rule)
    assert whole.described == "train.npz, 16 images, 16 of which trained the model"
    assert read_images(data, prep, "test", rule=rule).described == (
        "test.npz, test split, 48 images, none of which trained the model"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "digits-emm"], "digits-em"),
        (["--data", "absent"], "There is no file or folder absent"),
        (["--recipe", "schedule=never"], "never"),
        (["--recipe", "pairs=triple"], "triple"),
        (["--iters", "0"], "Invalid --iters 0"),
        (["--lr", "-1"], "Invalid --lr -1"),
        (["--lr", "nan"], "Invalid --lr nan"),
        (["--lr", "1e30"], "Invalid --lr 1e30"),
        (["--shift", "28"], "Their shorter side has 28 pixels"),
        (["--seed", "-1"], "from 0 to 4294967295"),
        (["--batch", "1000"], "too few for a batch of 1000"),
        (
            ["--init", str(ROOT / "capsedge/zoo/digits-dynamic.safetensors")],
            "a different configuration",
        ),
    ],
)
def test_refuses(data: Path, arguments: list[str], message: str) -> None:
    words = [*RUN, "--data", data, "-o", data / "run"]
    if arguments[0] in words:  # an option is given once
        at = words.index(arguments[0])
        del words[at : at + 2]
    done = invoke(*words, *arguments)
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)
    assert not (data / "run").exists()


def test_refuses_a_file_for_a_folder(data: Path) -> None:
    done = invoke(*RUN, "--data", data, "-o", data / "train.npz")
    assert isinstance(done.exception, UsageError)
    assert "Not a directory" in str(done.exception)


def test_a_size_that_no_preprocessing_takes(data: Path) -> None:
    result = invoke(*RUN, "--data", data, "-o", data / "run", "--size", 4097)
    assert isinstance(result.exception, UsageError)
    assert "from 1 to 4096" in str(result.exception)
    Preprocessing(4096, 4096, 3)


def test_recipes() -> None:
    """A paper's name sets several fields; a later field and ``--lr`` come before it."""
    from capsedge.cli.train import _with_recipe
    from capsedge.errors import UsageError
    from capsedge.models.training.train_options import TrainOptions

    plain = TrainOptions()
    assert _with_recipe(plain, []) == plain
    found = _with_recipe(plain, ["tsai", "average=0.9", "patience=3", "pairs=overlap"])
    assert (found.schedule, found.learning_rate, found.average) == ("multistep", 0.1, 0.9)
    assert (found.patience, found.pairs) == (3, "overlap")
    assert _with_recipe(TrainOptions(learning_rate=0.5), ["sabour"]).learning_rate == 0.5
    for wrong in (
        "hinton",
        "epochs=3",
        "average=2",
        "average=x",
        "patience=0.5",
        "schedule=",
        "pairs",
    ):
        with pytest.raises(UsageError):
            _with_recipe(plain, [wrong])
