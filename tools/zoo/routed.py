"""The three small networks for single digits, one per kind of routing."""

from __future__ import annotations

from pathlib import Path

import capsedge
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.training.evaluate import predict_all
from capsedge.runtime.files.writing import sha256, write_text
from capsedge.runtime.zoo import zoo_checkpoint
from tools.zoo.runs import (
    commands,
    confusion,
    facts,
    is_in,
    recipe,
    stages,
    test_split,
    write_checkpoint,
)

__all__ = ["export", "is_in", "write"]

CARD = """# {name}

A small capsule network for handwritten digits: {family}.

| | |
|---|---|
| parameters | {parameters:,} |
| routing | {routing}, {iterations} iterations |
| data | MNIST, all 60,000 training images; no other |
| accuracy | **{accuracy:.2f} %** of all 10,000 MNIST test images ({errors} wrong) |
| seed | {seed} |
| file | `{name}.safetensors`, SHA-256 `{checksum}` |

Trained with

{command}
on a CPU, with PyTorch {torch}. The weights are those of the last epoch{half}. Test accuracy
was not used to choose an epoch.{again}

Input: white ink on black, the digit 20 pixels high, centred in 28x28.

Confusion table (rows: true class, columns: predicted):

{table}

MNIST: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Proc. IEEE 86(11), 1998.
"""
AGAIN = (
    " Each run except the first continues the previous one, whose accuracy fell short of the goal."
)
LARGEST = (
    "digits-dynamic"  # in FP32, its checkpoint would take a quarter of what the package may hold
)
HALF = ", rounded to FP16 and stored in FP16; computations are in FP32"
FAMILIES = {
    "dynamic": "CapsNet with dynamic routing (Sabour, Frosst, Hinton 2017) and a reconstruction decoder",
    "em": "matrix capsules with EM routing (Hinton, Sabour, Frosst 2018)",
    "attention": "inverted dot-product attention routing (Tsai et al. 2020)",
}


def write(name: str, runs: Path, data: Path) -> None:
    """Write the checkpoint and the card of a run."""
    source, routing = runs / name / "model.safetensors", name.removeprefix("digits-")
    half = name == LARGEST
    target = write_checkpoint(source, name, data, half=half)
    model = load_checkpoint(target)
    test = test_split(data, model.config.preprocessing)
    found = predict_all(model, test).argmax(1).numpy()
    right = int((found == test.classes).sum())
    card = CARD.format(
        routing=routing,
        half=HALF if half else "",
        family=FAMILIES[routing],
        accuracy=right / len(test) * 100,
        errors=len(test) - right,
        seed=recipe(source)["seed"],
        command=commands(runs, name, name),
        again=AGAIN if len(stages(runs, name)) > 1 else "",
        table=confusion(test.classes, found, model.config.class_names),
        **facts(target),
    )
    write_text(target.with_suffix(".md"), card)
    print(name, right, target.stat().st_size)


def export(name: str, data: Path) -> None:
    """Write the ONNX file of a checkpoint; dynamic routing has a decoder."""
    checkpoint = zoo_checkpoint(name)
    model = load_checkpoint(checkpoint)
    decoder = bool(getattr(model.config, "decoder", ()))
    capsedge.export(
        model,
        checkpoint.with_suffix(".onnx"),
        extra_outputs=("reconstruction",) if decoder else (),
        checkpoint_sha256=sha256(checkpoint),
    )
