"""The network that recognizes two overlapping digits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import capsedge
from capsedge.datasets import ImageSet, read_split
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.configs import ModelConfig
from capsedge.models.training.evaluate import count_correct, evaluation_pairs, normalize_images
from capsedge.runtime.files.writing import temporary_folder, write_text
from capsedge.runtime.zoo import zoo_checkpoint
from tools.zoo.runs import (
    commands,
    export_int8,
    facts,
    is_in,
    recipe,
    stages,
    test_split,
    write_checkpoint,
)

__all__ = ["export", "is_in", "write"]

CARD = """# {name}

A capsule network that recognizes two overlapping handwritten digits: convolutions, dynamic routing and a
reconstruction decoder (Sabour, Frosst, Hinton 2017, section 6), quantized to INT8.

| | |
|---|---|
| parameters | {parameters:,} |
| routing | dynamic, {iterations} iterations |
| data | pairs of two different digits, made from the 60,000 training images of MNIST; no other |
| accuracy | **{accuracy:.2f} %** of 10,000 pairs of MNIST test images ({errors} wrong), in INT8 |
| | {checkpoint:.2f} % in FP32 |
| seed | {seed} |
| file | `{name}.safetensors`, SHA-256 `{checksum}` |

A pair counts as wrong unless its two digits are the two best classes. The paper reports 94.8 % with
11.36 million parameters.

Trained with

{command}
on a CPU, with PyTorch {torch}. The weights are those of the last epoch, rounded to FP16 and
stored in FP16; computations are in FP32. Test accuracy was not used to choose an epoch.{again}

Input: white ink on black, 36x36 pixels, two digits of different classes, each 20 pixels high and up to 4
pixels from the centre; their bounding boxes overlap by 80 % on average. The test pairs come from a fixed
seed: each test image occurs once, paired with a different digit.

MNIST: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Proc. IEEE 86(11), 1998.
"""
CALIBRATION = 6000  # pairs
AGAIN = " Each run except the first continued from the previous one."


def write(name: str, runs: Path, data: Path) -> None:
    """Write the checkpoint and the card of a run."""
    source = runs / name / "model.safetensors"
    target = write_checkpoint(source, name, data, half=True)
    model = load_checkpoint(target)
    export(name, data)
    test = test_split(data, model.config.preprocessing)
    right = sum(
        int((np.sort(found) == np.sort(owners.numpy())).all(1).sum())
        for found, owners in best_two(name, test, model.config)
    )
    card = CARD.format(
        checkpoint=float(count_correct(model, test, "overlap").sum()) / len(test) * 100,
        accuracy=right / len(test) * 100,
        errors=len(test) - right,
        seed=recipe(source)["seed"],
        command=commands(runs, name, name),
        again=AGAIN if len(stages(runs, name)) > 1 else "",
        **facts(target),
    )
    write_text(target.with_suffix(".md"), card)
    print(name, right, target.stat().st_size)


def best_two(
    name: str, test: ImageSet, config: ModelConfig
) -> Iterator[tuple[np.ndarray, torch.Tensor]]:
    """The package's ONNX file's best two classes for each pair, and the pair's digits: each `[n, 2]`."""
    with capsedge.load(name) as session:
        assert session.roles.scores is not None
        for canvases, owners in evaluation_pairs(test, config):
            scores = session.run(normalize_images(canvases, config).numpy())[session.roles.scores]
            yield scores.argsort(1)[:, -2:], owners


def export(name: str, data: Path) -> None:
    """Write the INT8 file of a checkpoint, calibrated with pairs of training images labelled by one digit."""
    config = load_checkpoint(zoo_checkpoint(name)).config
    training = read_split(data, "train", config.preprocessing, CALIBRATION)
    canvases, owners = zip(*evaluation_pairs(training, config), strict=True)
    pixels = (torch.cat(canvases)[:, 0] * 255).round().to(torch.uint8)
    with temporary_folder() as folder:
        pairs = folder / "pairs.npz"
        np.savez(pairs, images=pixels.numpy(), labels=torch.cat(owners)[:, 0].numpy())
        export_int8(name, pairs, max_drop=1)
