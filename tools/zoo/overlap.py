"""The network that tells two overlapping digits apart."""

from __future__ import annotations

from pathlib import Path

from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.training.evaluate import count_correct
from capsedge.runtime.files.writing import write_text
from tools.zoo.routed import export
from tools.zoo.runs import commands, facts, is_in, recipe, stages, test_split, write_checkpoint

__all__ = ["export", "is_in", "write"]

CARD = """# {name}

A capsule network that recognizes two overlapping handwritten digits: convolutions, dynamic routing and a
reconstruction decoder (Sabour, Frosst, Hinton 2017, section 6).

| | |
|---|---|
| parameters | {parameters:,} |
| routing | dynamic, {iterations} iterations |
| data | pairs of two different digits, made from the 60,000 training images of MNIST; no other |
| accuracy | **{accuracy:.2f} %** of 10,000 pairs of MNIST test images ({errors} wrong) |
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
AGAIN = " Each run except the first continued from the previous one."


def write(name: str, runs: Path, data: Path) -> None:
    """Write the checkpoint of a run, and its card."""
    source = runs / name / "model.safetensors"
    target = write_checkpoint(source, name, data, half=True)
    model = load_checkpoint(target)
    test = test_split(data, model.config.preprocessing)
    right = int(count_correct(model, test, "overlap").sum())
    card = CARD.format(
        accuracy=right / len(test) * 100,
        errors=len(test) - right,
        seed=recipe(source)["seed"],
        command=commands(runs, name, name),
        again=AGAIN if len(stages(runs, name)) > 1 else "",
        **facts(target),
    )
    write_text(target.with_suffix(".md"), card)
    print(name, right, target.stat().st_size)
