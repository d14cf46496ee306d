"""Put trained runs into the package: checkpoints, model cards, ONNX files.

Usage: python tools/zoo.py [RUNS] DATA, where RUNS holds the folders digits-dynamic, digits-em and
digits-attention made by `capsedge train`, and DATA the MNIST files. Earlier runs that a
run continued from (--init) are beside it as digits-<routing>-1, digits-<routing>-2 and so on. Without
RUNS, the package's checkpoints keep all but the criterion for nothing to see, which is measured on DATA.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

import capsedge
from capsedge.checkpoint import load_checkpoint, save_checkpoint
from capsedge.datasets import nothing_from, read_split
from capsedge.runtime.files.writing import sha256, write_text
from capsedge.runtime.nothing import NOTHING_KEY
from capsedge.training.evaluation import predict_all
from capsedge.zoo import ROUTINGS, checkpoint_of_routing

COMMAND = """    capsedge train --model digits-{routing} --data mnist --epochs {epochs} \\
        --lr {learning_rate} --average {average} --seed {seed}{more}{init} -o runs/{run}
"""
CARD = """# digits-{routing}

A small capsule network for handwritten digits: {family}.

| | |
|---|---|
| parameters | {parameters:,} |
| routing | {routing}, {iterations} iterations |
| data | MNIST, all 60,000 training images; no other |
| accuracy | **{accuracy:.2f} %** of all 10,000 MNIST test images ({errors} wrong) |
| seed | {seed} |
| file | `digits-{routing}.safetensors`, SHA-256 `{checksum}` |

Trained with

{command}
on a CPU, with PyTorch {torch}. The weights are those of the last epoch; no epoch was chosen by its accuracy
on the test images.{again}
Input: white ink on black, the digit 20 pixels high, centred in 28x28.

Confusion table (rows: true class, columns: predicted):

{table}

MNIST: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Proc. IEEE 86(11), 1998.
"""
AGAIN = " Each run except the first continued from the previous one, whose accuracy fell short of the goal."
FAMILIES = {
    "dynamic": "CapsNet with dynamic routing (Sabour, Frosst, Hinton 2017) and a reconstruction decoder",
    "em": "matrix capsules with EM routing (Hinton, Sabour, Frosst 2018)",
    "attention": "inverted dot-product attention routing (Tsai et al. 2020)",
}


def stages(runs: Path, routing: str) -> list[Path]:
    """The folders of a model's runs, each continued from the previous one."""
    return [*sorted(runs.glob(f"digits-{routing}-[0-9]")), runs / f"digits-{routing}"]


def commands(runs: Path, routing: str) -> str:
    """The commands that made a model, in order."""
    text, init = "", ""
    for run in stages(runs, routing):
        recipe = training(run / "model.safetensors")["recipe"]
        more = "".join(f" --{k} {recipe[k]}" for k in ("rotate", "zoom") if recipe.get(k))
        text += COMMAND.format(routing=routing, run=run.name, init=init, more=more, **recipe)
        init = f" \\\n        --init runs/{run.name}/model.safetensors"
    return text


def training(checkpoint: Path) -> dict[str, Any]:
    """How a checkpoint was trained, from its own metadata."""
    with safetensors.safe_open(checkpoint, framework="pt") as file:
        found: dict[str, Any] = json.loads(file.metadata()["capsedge.training"])
    return found


def confusion(truth: np.ndarray, found: np.ndarray) -> str:
    """A Markdown table of counts."""
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (truth, found), 1)
    lines = ["| | " + " | ".join(map(str, range(10))) + " |", "|---" * 11 + "|"]
    lines += [f"| **{k}** | " + " | ".join(map(str, row)) + " |" for k, row in enumerate(counts)]
    return "\n".join(lines)


def write_checkpoint(source: Path, routing: str, data: Path) -> Path:
    """The package's checkpoint: the weights and the training of ``source``, and the criterion of ``data``."""
    model, target = load_checkpoint(source), checkpoint_of_routing(routing)
    nothing = nothing_from(data, model.config.preprocessing)
    extra = {"capsedge.training": training(source), NOTHING_KEY: nothing.to_dict()}
    save_checkpoint(model, target, {key: json.dumps(value) for key, value in extra.items()})
    return target


def recalibrate(data: Path) -> None:
    """Measure the criterion again, and put the new checksums into the cards."""
    for routing in ROUTINGS:
        path = checkpoint_of_routing(routing)
        before = sha256(path)
        write_checkpoint(path, routing, data)
        card = path.with_suffix(".md")
        write_text(card, card.read_text().replace(before, sha256(path)))


def main() -> None:
    """Write checkpoints, cards and ONNX files."""
    data = Path(sys.argv[-1])
    if len(sys.argv) == 2:
        recalibrate(data)
    else:
        write_trained(Path(sys.argv[1]), data)
    for routing in ROUTINGS:
        export(routing)


def write_trained(runs: Path, data: Path) -> None:
    """Write the checkpoints of runs, and their cards."""
    import torch

    for routing in ROUTINGS:
        source = runs / f"digits-{routing}" / "model.safetensors"
        model = load_checkpoint(source)
        history = training(source)
        target = write_checkpoint(source, routing, data)
        test = read_split(data, "test", model.config.preprocessing)
        found = predict_all(model, test).argmax(1).numpy()
        right = int((found == test.labels).sum())
        card = CARD.format(
            routing=routing,
            family=FAMILIES[routing],
            parameters=sum(p.numel() for p in model.parameters()),
            iterations=model.config.iterations,
            accuracy=right / len(test) * 100,
            errors=len(test) - right,
            seed=history["recipe"]["seed"],
            checksum=sha256(target),
            command=commands(runs, routing),
            again=AGAIN if len(stages(runs, routing)) > 1 else "",
            torch=torch.__version__,
            table=confusion(test.labels, found),
        )
        write_text(target.with_suffix(".md"), card)
        print(routing, right, target.stat().st_size)


def export(routing: str) -> None:
    """Write the ONNX file of a checkpoint; dynamic routing has a decoder."""
    checkpoint = checkpoint_of_routing(routing)
    capsedge.export(
        load_checkpoint(checkpoint),
        checkpoint.with_suffix(".onnx"),
        extra_outputs=("reconstruction",) if routing == "dynamic" else (),
        checkpoint_sha256=sha256(checkpoint),
    )


if __name__ == "__main__":
    main()
