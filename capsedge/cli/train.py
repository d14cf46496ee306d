"""``capsedge train``: trains a model of the registry on a data set."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from capsedge.cli import _options, _process
from capsedge.cli._options import bar
from capsedge.cli._output import log, print_json, print_table, require, say
from capsedge.cli._parameters import Option
from capsedge.cli._paths import READS, READS_DATA, READS_OR_NAME, PathRole
from capsedge.errors import UsageError


def _written(folder: Path) -> list[Path]:
    """The files of a run; imported late, since models need numpy."""
    from capsedge.models.training.run_files import files

    return files(folder)


Model = Annotated[
    str | None,
    Option(
        "--model",
        help=(
            "Name of a model, such as digits-em (see --list), or a checkpoint whose architecture "
            "is trained from random weights. By default, for a folder with one sub-folder per "
            "class, a small model for its images."
        ),
    ),
    READS_OR_NAME,
]
Listed = Annotated[
    bool, Option("--list", help="List the models: parameters, input, size of the weights.")
]
Data = Annotated[
    Path | None,
    Option(
        "--data",
        help=(
            "Data set folder: MNIST-like idx files, CIFAR-10 Python batches, train.npz and "
            "test.npz, or train/ and test/ with one sub-folder of images per class. Without "
            "separate test images: one sub-folder per class, or one npz file. Required, except with --list."
        ),
    ),
    READS_DATA,
]
Size = Annotated[
    int | None,
    Option(
        "--size",
        min=1,
        help="Height and width to which images of a folder are resized; by default the model's.",
    ),
]
Output = Annotated[
    Path | None,
    Option(
        "-o",
        "--output",
        help="Folder of the run: checkpoint, history, state, confusion matrix. Required, except with --list.",
    ),
    PathRole(written=_written, creates=True),
]
Epochs = Annotated[int, Option("--epochs", min=1, help="Passes over the training images.")]
Batch = Annotated[int, Option("--batch", min=1, help="Images per step.")]
LearningRate = Annotated[float, Option("--lr", help="Peak learning rate.")]
Schedule = Annotated[
    str,
    Option(
        "--schedule",
        help="one-cycle (Adam), exponential (Adam, Sabour et al.) or multistep (SGD, Tsai et al.).",
    ),
]
Shift = Annotated[int, Option("--shift", min=0, help="Random shift in pixels.")]
Rotate = Annotated[float, Option("--rotate", min=0, max=180, help="Random rotation in degrees.")]
Zoom = Annotated[
    float, Option("--zoom", min=0, max=0.9, help="Random change of size, as a fraction.")
]
Flip = Annotated[bool, Option("--flip", help="Random mirroring.")]
Pairs = Annotated[
    str, Option("--pairs", help="none, overlap (MultiMNIST) or diverse (DiverseMultiMNIST).")
]
Average = Annotated[
    float,
    Option("--average", min=0.0, max=0.99999, help="Decay of the moving average of the weights."),
]
Seed = Annotated[int, Option("--seed", help="Seed of weights, order and augmentation.")]
Init = Annotated[
    Path | None, Option("--init", help="Start from the weights of this checkpoint."), READS
]
Limit = Annotated[
    int | None, Option("--limit", min=1, help="Only the first N images of each split.")
]
Threads = Annotated[
    int | None,
    Option("--threads", min=1, help="Threads for PyTorch; by default its own choice."),
]
Device = Annotated[
    str, Option("--device", help="Where the network is computed: cpu, or cuda for a GPU.")
]
Fast = Annotated[
    bool,
    Option(
        "--fast", help="Convolutions in BF16, compiled routing; for processors with AMX. Needs g++."
    ),
]
Patience = Annotated[
    int | None,
    Option(
        "--patience",
        min=0,
        help=(
            "End when so many epochs were not more accurate on the validation images; by default "
            "half of --epochs; 0 never."
        ),
    ),
]
Resume = Annotated[bool, Option("--resume", help="Continue the run in the output folder.")]

_ACCURACIES = {
    "test": "test accuracy",
    "validation": "validation accuracy",
    "training": "accuracy on the training images",
}


def command(
    data: Data = None,
    output: Output = None,
    model: Model = None,
    listed: Listed = False,
    size: Size = None,
    iters: _options.Iterations = None,
    epochs: Epochs = 10,
    batch: Batch = 128,
    learning_rate: LearningRate = 3e-3,
    schedule: Schedule = "one-cycle",
    shift: Shift = 2,
    rotate: Rotate = 0.0,
    zoom: Zoom = 0.0,
    flip: Flip = False,
    pairs: Pairs = "none",
    average: Average = 0.999,
    seed: Seed = 1,
    fast: Fast = False,
    init: Init = None,
    limit: Limit = None,
    threads: Threads = None,
    patience: Patience = None,
    device: Device = "cpu",
    resume: Resume = False,
    as_json: _options.Json = False,
) -> None:
    """Train a capsule network on images.

    Writes model.safetensors, history.jsonl and the state that --resume continues from.
    """
    require("torch", what="Training needs torch.", fix="pip install 'capsedge[export]'")
    if listed:
        _list(as_json)
        return
    if data is None or output is None:
        missing = "--data" if data is None else "--output"
        raise UsageError(
            f"{missing} is missing.",
            "",
            "Run `capsedge train --data FOLDER -o RUN`, or `capsedge train --list` for the models.",
        )
    from capsedge.models.training.recipe import Recipe
    from capsedge.models.training.run import train_model

    recipe = Recipe(
        epochs, batch, schedule, learning_rate, shift, rotate, zoom, flip, pairs, average, seed,
        fast,
    )  # fmt: skip
    lines: list[dict[str, Any]] = []

    def done(line: dict[str, Any]) -> None:
        lines.append(line)
        _log_epoch(line, epochs, len(lines))

    try:
        with bar("training", epochs) as progress:
            trained = train_model(
                model, data, output, recipe, size=size, iterations=iters, init=init, limit=limit,
                threads=threads, patience=patience, device=device, resume=resume, log=log, progress=progress,
                epoch_done=done,
            )  # fmt: skip
    except KeyboardInterrupt:
        log("interrupted: finished epochs are kept; continue with the same command and --resume")
        raise SystemExit(_process.exit_code() or _process.INTERRUPTED) from None
    checkpoint = trained.checkpoint
    if as_json:
        document: dict[str, Any] = {"checkpoint": str(checkpoint), "epochs": lines}
        if trained.test_accuracy is not None:
            document["test_accuracy"] = trained.test_accuracy
            document["test_images"] = trained.test_images
        print_json(document)
    else:
        say(checkpoint)
        source, target = shlex.quote(str(checkpoint)), shlex.quote(str(output / "model.onnx"))
        log("next:", f"  capsedge export --checkpoint {source} -o {target}")


def _list(as_json: bool) -> None:
    """The models of the registry: what they take, and how large they are."""
    from capsedge.models.sizes import model_sizes

    models = model_sizes()
    if as_json:
        print_json({"schema": 1, "models": [asdict(each) for each in models]})
        return
    rows = [
        [
            each.name, f"{each.parameters:,}", f"{each.height}x{each.width}x{each.channels}",
            str(each.classes), each.routing, f"{each.int8_bytes / 1e6:.1f} MB",
            "microcontroller (2 MB)" if each.fits_flash else "phone, Raspberry Pi, PC",
            "trained" if each.trained else "",
        ]
        for each in models
    ]  # fmt: skip
    columns = [
        "name", "parameters", "input", "classes", "routing", "a byte each", "fits", "weights",
    ]  # fmt: skip
    print_table("Models", columns, rows, essential=("name", "parameters", "input"))


def _log_epoch(line: dict[str, Any], epochs: int, done: int) -> None:
    """One line; ``done`` epochs took ``line["seconds"]``."""
    accuracy = ""
    for which, words in _ACCURACIES.items():
        if f"{which}_accuracy" in line:
            accuracy = f", {words} {line[f'{which}_accuracy']:.4f}"
    left = (epochs - line["epoch"]) * line["seconds"] / done
    remaining = f", about {left:.0f} s left" if left else ""
    log(
        f"epoch {line['epoch']}/{epochs}: loss {line['loss']:.5f}{accuracy}, {line['seconds']} s{remaining}"
    )
