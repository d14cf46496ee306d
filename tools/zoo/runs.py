"""Trained runs: the commands that made them, and their checkpoints in the package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch

import capsedge
from capsedge.datasets import ImageSet, read_split
from capsedge.datasets.mask_folders import read_masks
from capsedge.errors import UsageError
from capsedge.exporters.export_options import ExportOptions
from capsedge.models import CapsuleModel
from capsedge.models.checkpoint import load_checkpoint, save_checkpoint
from capsedge.models.training.evaluate import predict_all, typical_input_of_training
from capsedge.models.training.recipe import TRAINING_KEY
from capsedge.models.training.train_options import TrainOptions
from capsedge.runtime.files.documents import dump
from capsedge.runtime.files.writing import sha256, temporary_folder
from capsedge.runtime.images.preprocessing import prepare_all
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.origin import PRUNING_KEY
from capsedge.runtime.metadata.typical_input import TYPICAL_INPUT_KEY
from capsedge.runtime.zoo import zoo_checkpoint
from capsedge.spec.vocabularies import SEGMENTATION, ExtraOutput

_KEPT = (TRAINING_KEY, PRUNING_KEY)
_WIDTH = 100


def stages(runs: Path, name: str) -> list[Path]:
    """The folders of a model's runs, each continued from the previous one."""
    return [*sorted(runs.glob(f"{name}-[0-9]")), runs / name]


def is_in(runs: Path, name: str) -> bool:
    """Whether RUNS holds the model."""
    return (runs / name / "model.safetensors").is_file()


def metadata(checkpoint: Path) -> dict[str, str]:
    """The metadata of a checkpoint."""
    with safetensors.safe_open(checkpoint, framework="pt") as file:
        found: dict[str, str] = file.metadata()
    return found


def recipe(checkpoint: Path) -> dict[str, Any]:
    """How a checkpoint was trained."""
    found: dict[str, Any] = training(checkpoint)["recipe"]
    return found


def training(checkpoint: Path) -> dict[str, Any]:
    """The recipe of a checkpoint, and the figures of the last epoch."""
    found: dict[str, Any] = json.loads(metadata(checkpoint)[TRAINING_KEY])
    return found


def in_half(checkpoint: Path) -> bool:
    """Whether the weights of a checkpoint are stored in FP16."""
    with safetensors.safe_open(checkpoint, framework="pt") as file:
        return "F32" not in {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118


def commands(runs: Path, name: str, model: str) -> str:
    """The commands that trained the network ``model`` in the runs of ``name``, in order, indented."""
    text, init = "", ""
    for run in stages(runs, name):
        known = recipe(run / "model.safetensors")
        words = [f"capsedge train --model {model} --data mnist --epochs {known['epochs']}"]
        words += [f"--lr {known['learning_rate']}"]
        if known["average"] != TrainOptions.average:
            words += [f"--recipe average={known['average']}"]
        words += [f"--seed {known['seed']}"]
        if known.get("pairs", "none") != "none":
            words += [f"--recipe pairs={known['pairs']}"]
        elif known["shift"] != 2:
            words += [f"--shift {known['shift']}"]
        words += [f"--{k} {known[k]}" for k in ("rotate", "zoom") if known.get(k)]
        words += ["--fast"] if known.get("fast") else []
        words += [init] if init else []
        text += indented([*words, f"-o runs/{run.name}"])
        init = f"--init runs/{run.name}/model.safetensors"
    return text


def indented(words: list[str]) -> str:
    """A command in as few lines as possible, indented as Markdown code."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) < _WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return "    " + " \\\n    ".join(lines) + "\n"


def test_split(data: Path, prep: Preprocessing) -> ImageSet:
    """The test images, on which a card's figures are measured.

    Raises:
        UsageError: the data has no test images.
    """
    found = read_split(data, "test", prep)
    if found.split != "test":
        raise UsageError(f"{data} has no test split.", "A card reports on test images only.")
    return found


def write_checkpoint(
    source: Path, name: str, data: Path, model: CapsuleModel | None = None, *, half: bool = False
) -> Path:
    """Write the package's checkpoint: weights and history from ``source``, and the criterion from ``data``.

    Args:
        model: the network, if the package has it in another form.
        half: whether to round the weights to FP16 and store them in it.
    """
    model, target = model or load_checkpoint(source), zoo_checkpoint(name)
    config = model.config
    known = metadata(source)
    extra = {k: v for k, v in known.items() if k in _KEPT}
    pairs = recipe(source).get("pairs", "none") if TRAINING_KEY in known else "none"
    images = (
        read_masks(data, "train", config.preprocessing, config.class_names)
        if config.task == SEGMENTATION
        else read_split(data, "train", config.preprocessing)
    )
    typical = typical_input_of_training(images, config, pairs)
    assert typical is not None
    extra[TYPICAL_INPUT_KEY] = dump(typical.to_dict())
    save_checkpoint(model.half() if half else model, target, extra)
    return target


def export_int8(name: str, calibration: Path, max_drop: float) -> None:
    """Write the INT8 file of a model's checkpoint.

    Args:
        calibration: images with labels.
        max_drop: percentage points of accuracy on them that INT8 may cost.
    """
    checkpoint = zoo_checkpoint(name)
    model = load_checkpoint(checkpoint)
    extra: tuple[ExtraOutput, ...] = () if model.decoder is None else ("reconstruction",)
    with temporary_folder() as folder:
        plain = folder / f"{name}.onnx"
        options = ExportOptions(extra_outputs=extra, checkpoint_sha256=sha256(checkpoint))
        capsedge.export(model, plain, options)
        capsedge.quantize(
            plain,
            checkpoint.with_suffix(".onnx"),
            max_drop=max_drop,
            calib_data=calibration,
        )


def answers(name: str, test: ImageSet) -> np.ndarray:
    """The classes that the package's ONNX file finds."""
    with capsedge.load(name) as session:
        assert session.roles.scores is not None
        assert session.metadata is not None
        assert session.metadata.preprocessing is not None
        images = np.stack(prepare_all(test.images, session.metadata.preprocessing))
        runs = session.run_batches(images, [session.roles.scores])
        return np.concatenate([outputs[session.roles.scores].argmax(1) for _, outputs in runs])


def accuracy(model: CapsuleModel, test: ImageSet) -> float:
    """The accuracy of a model in FP32, in per cent."""
    found = predict_all(model, test).argmax(1).numpy()
    return float((found == test.classes).mean() * 100)


def confusion(truth: np.ndarray, found: np.ndarray, names: Sequence[str]) -> str:
    """A Markdown table of counts: a row per true class, a column per predicted one."""
    counts = np.zeros((len(names), len(names)), int)
    np.add.at(counts, (truth, found), 1)
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [
        f"| **{name}** | " + " | ".join(map(str, row)) + " |"
        for name, row in zip(names, counts, strict=True)
    ]
    return "\n".join(lines)


def facts(target: Path) -> dict[str, Any]:
    """The facts that every card states about its file."""
    model = load_checkpoint(target)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "iterations": model.config.iterations,
        "name": target.stem,
        "checksum": sha256(target),
        "torch": torch.__version__,
    }
