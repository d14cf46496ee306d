"""The network for photographs, trained by `tools.zoo.train_photos`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from capsedge.models.checkpoint import load_checkpoint
from capsedge.runtime.files.writing import write_text
from tools.zoo.runs import (
    accuracy,
    answers,
    confusion,
    export_int8,
    facts,
    is_in,
    test_split,
    write_checkpoint,
)

__all__ = ["export", "is_in", "write"]

EVERY = 10  # epochs between lines in the card's log
CARD = """# {name}

A capsule network for colour photographs: a residual network of six blocks and inverted dot-product attention
routing (Tsai et al. 2020), quantized to INT8.

| | |
|---|---|
| parameters | {parameters:,} |
| routing | attention, {iterations} iterations |
| data | the 50,000 training images of CIFAR-10, re-encoded as JPEG; no other |
| accuracy | **{accuracy:.2f} %** of all 10,000 test images ({errors:,} wrong), re-encoded as JPEG, in INT8 |
| | {checkpoint:.2f} % in FP32 |
| file | `{name}.safetensors`, SHA-256 `{checksum}` |

**The figures cannot be compared with published ones.** The network was trained and tested on a copy of
CIFAR-10 that was re-encoded as JPEG: on 4,000 images, its pixels differ from the originals by 5.8 grey levels
on average (a PSNR of 30.5 dB).

Trained with

    python -m tools.zoo.train_photos data/cifar10 runs/{name}/model.safetensors \\
        --epochs {epochs} --seed {seed}
    python -m tools.zoo data runs

on {device}, with PyTorch {torch}. The weights are those of the last epoch, rounded to FP16 and
stored in FP16; computations are in FP32. Test accuracy was not used to choose an epoch.

Input: RGB, 32x32 pixels, one object in the middle. Larger images are resized to that.

| epoch | seconds | training loss |
|---|---|---|
{log}

Confusion table of the INT8 file (rows: true class, columns: predicted):

{table}

CIFAR-10: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", University of Toronto, 2009.
"""


def write(name: str, runs: Path, data: Path) -> None:
    """Write the checkpoint and the card of a run."""
    source = runs / name / "model.safetensors"
    run: dict[str, Any] = json.loads(source.with_suffix(".json").read_text())
    target = write_checkpoint(source, name, data, half=True)
    export(name, data)
    model = load_checkpoint(target)
    test = test_split(data, model.config.preprocessing)
    found = answers(name, test)
    right = int((found == test.classes).sum())
    history = list(enumerate(run["history"], 1))
    card = CARD.format(
        accuracy=right / len(test) * 100,
        errors=len(test) - right,
        checkpoint=accuracy(model, test),
        log="\n".join(
            f"| {epoch} | {line['seconds']} | {line['loss']} |"
            for epoch, line in history
            if epoch == 1 or epoch % EVERY == 0 or epoch == len(history)
        ),
        table=confusion(test.classes, found, model.config.class_names),
        **(facts(target) | run["recipe"]),
    )
    write_text(target.with_suffix(".md"), card)
    print(name, right, target.stat().st_size)


def export(name: str, data: Path) -> None:
    """Write the INT8 file of a checkpoint."""
    export_int8(name, data, max_drop=0.3)
