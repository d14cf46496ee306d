"""The network that segments a digit in clutter."""

from __future__ import annotations

from pathlib import Path

import capsedge
from capsedge.datasets.mask_folders import read_masks
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.training.mask_training import overlap_of
from capsedge.runtime.files.writing import sha256, write_text
from capsedge.runtime.session.masks import overlap_of_session
from capsedge.runtime.zoo import zoo_checkpoint, zoo_model
from tools.zoo.runs import facts, indented, is_in, recipe, training, write_checkpoint

__all__ = ["export", "is_in", "write"]

MAX_DROP = 0.5  # points of mean Dice that INT8 may cost
CARD = """# {name}

A small SegCaps (LaLonde and Bagci 2018) that finds a handwritten digit in clutter: for each pixel, whether it
belongs to the digit.

| | |
|---|---|
| parameters | {parameters:,} |
| routing | dynamic with votes shared by all positions, {iterations} iterations |
| data | {training:,} drawn images with the first digits of MNIST's training images; no other |
| overlap | mean Dice **{dice:.4f}**, IoU {iou:.4f}, on {test:,} images drawn with MNIST's test images |
| in INT8 | mean Dice {int8:.4f} |
| seed | {seed} |
| file | `{name}.safetensors`, SHA-256 `{checksum}` |

`{name}.onnx` is in FP32, `{name}-int8.onnx` in INT8, calibrated with training images.

The images are drawn: noise, three lines and two rectangles of any brightness, and over them a white digit.
The mask is known by construction: the pixels that ink covers by half or more.

Trained with

    python -m tools.zoo.clutter_images data/mnist data/clutter
{command}
on a CPU, with PyTorch {torch}; the run was stopped after {last} of its {epochs} epochs. The weights
are those with the best mean Dice on 500 validation images ({validation:.4f}), rounded to FP16 and stored
in FP16; computations are in FP32. Test images were not used to choose an epoch.

Input: grey, 32x32 pixels, one digit of 20 pixels in any place. Larger images are resized to that,
and their masks back.

MNIST: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Proc. IEEE 86(11), 1998.
"""


def write(name: str, runs: Path, data: Path) -> None:
    """Write the checkpoint and the card of a run."""
    source = runs / name / "model.safetensors"
    target = write_checkpoint(source, name, data, half=True)
    export(name, data)
    model = load_checkpoint(target)
    prep, names = model.config.preprocessing, model.config.class_names
    test = read_masks(data, "test", prep, names)
    in_fp32 = overlap_of(model, test)
    assert test.masks is not None  # `read_masks` has them
    with capsedge.load(f"{name}-int8") as session:
        in_int8 = overlap_of_session(session, test.inputs(), test.masks)
    made, last = recipe(source), training(source)["last"]
    command = [
        f"capsedge train --model {name} --data data/clutter --epochs {made['epochs']}",
        f"--batch {made['batch']} --lr {made['learning_rate']} --shift {made['shift']}",
        f"--seed {made['seed']} -o runs/{name}",
    ]
    card = CARD.format(
        training=len(read_masks(data, "train", prep, names)),
        test=len(test),
        dice=in_fp32.mean_dice,
        iou=in_fp32.mean_iou,
        int8=in_int8.mean_dice,
        seed=made["seed"],
        command=indented(command),
        epochs=made["epochs"],
        last=last["epoch"],
        validation=last["validation_dice"],
        **facts(target),
    )
    write_text(target.with_suffix(".md"), card)
    print(name, in_fp32.mean_dice, in_int8.mean_dice, target.stat().st_size)


def export(name: str, data: Path) -> None:
    """Write the FP32 and the INT8 file of a checkpoint."""
    checkpoint, small = zoo_checkpoint(name), zoo_model(f"{name}-int8")
    assert small is not None
    plain = checkpoint.with_suffix(".onnx")
    capsedge.export(load_checkpoint(checkpoint), plain, checkpoint_sha256=sha256(checkpoint))
    capsedge.quantize(plain, small, max_drop=MAX_DROP, calib_data=data)
