"""``capsedge train``: trains a model of the registry on a data set."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from capsedge.cli import _options, _process
from capsedge.cli._options import grouped
from capsedge.cli._output import bar, log, log_next, print_json, print_table, require_packages, say
from capsedge.cli._paths import READS_DATA, PathRole
from capsedge.errors import UsageError
from capsedge.models.training.train_options import RECIPE_FIELDS, RECIPES, TrainOptions
from capsedge.options import Option, assigned


def _written(folder: Path) -> list[Path]:
    """The files of a run; imported late, since models need numpy."""
    from capsedge.models.training.recipe import run_files

    return run_files(folder)


Listed = Annotated[
    bool, Option("--list", help="List the models: parameters, input, size of the weights.")
]
Data = Annotated[
    Path | None,
    Option(
        "--data",
        help=(
            "Data set folder: MNIST-like idx files, CIFAR-10 Python batches, train.npz and "
            "test.npz, or train/ and test/ with one sub-folder of images per class. Or one sub-folder "
            "per class, or one npz file, of which some images are held out. Required, except with --list."
        ),
    ),
    READS_DATA,
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
Recipe = Annotated[
    list[str] | None,
    Option(
        "--recipe",
        help=(
            "sabour (Adam, rate falling exponentially) or tsai (SGD in steps, no average), or a field: "
            "schedule (one-cycle, exponential, multistep), pairs (none, overlap: MultiMNIST, diverse: "
            "DiverseMultiMNIST), average (decay of the moving average that is kept, 0.999; 0 for none), "
            "patience (epochs without gain until the end; half of all, 0 never)."
        ),
        metavar="NAME|FIELD=VALUE",
        panel="Recipe",
    ),
]
_ACCURACIES = {
    "test": "test accuracy",
    "validation": "validation accuracy",
    "training": "accuracy on the training images",
}


@grouped
def command(
    options: TrainOptions,
    data: Data = None,
    output: Output = None,
    recipe: Recipe = None,
    listed: Listed = False,
    as_json: _options.Json = False,
) -> None:
    """Train a capsule network on images.

    Writes model.safetensors, history.jsonl and the state that --resume continues from.
    """
    require_packages("torch", what="Training needs torch.", fix="pip install 'capsedge[export]'")
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
    options = _with_recipe(options, recipe or [])
    from capsedge.models.training.run import train

    lines: list[dict[str, Any]] = []

    def done(line: dict[str, Any]) -> None:
        lines.append(line)
        _log_epoch(line, options.epochs, len(lines))

    with _process.resumable("epochs"), bar() as progress:
        trained = train(data, output, options, log=log, progress=progress, epoch_done=done)
    checkpoint = trained.checkpoint
    if as_json:
        document: dict[str, Any] = {"checkpoint": str(checkpoint), "epochs": lines}
        if trained.test_accuracy is not None:
            document["test_accuracy"] = trained.test_accuracy
            document["test_images"] = trained.test_images
            document["test_data"] = trained.test_data
        if trained.test_dice is not None:
            document |= {"test_dice": trained.test_dice, "test_images": trained.test_images}
        print_json(document)
    else:
        say(checkpoint)
        source, target = shlex.quote(str(checkpoint)), shlex.quote(str(output / "model.onnx"))
        log_next(f"capsedge export --checkpoint {source} -o {target}")


def _with_recipe(options: TrainOptions, texts: list[str]) -> TrainOptions:
    """The options with what ``--recipe`` sets; ``--lr`` comes before the rate of a recipe."""
    fields: dict[str, Any] = {}
    for text in texts:
        named = RECIPES.get(text)
        fields |= (
            assigned(TrainOptions, RECIPE_FIELDS, [text], "--recipe") if named is None else named
        )
    if options.learning_rate is not None:
        fields.pop("learning_rate", None)
    return replace(options, **fields)


def _list(as_json: bool) -> None:
    """List the models of the registry with their inputs and sizes."""
    from capsedge.models.find import model_sizes

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
        if f"{which}_dice" in line:
            accuracy = f", mean Dice on the {which} images {line[f'{which}_dice']:.4f}"
    left = (epochs - line["epoch"]) * line["seconds"] / done
    remaining = f", about {left:.0f} s left" if left else ""
    log(
        f"epoch {line['epoch']}/{epochs}: loss {line['loss']:.5f}{accuracy}, {line['seconds']} s{remaining}"
    )
