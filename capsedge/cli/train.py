"""``capsedge train``: train a model of the registry on a data set."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from capsedge.cli import _signals
from capsedge.cli._common import Json, log, print_json, say
from capsedge.cli._places import READS, Role
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.training.run_files import MODEL, files


def command(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="Name of a model, such as digits-em; an unknown one is answered with all of them.",
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            help="Data set folder: MNIST-like idx files, CIFAR-10 python batches, train.npz and "
            "test.npz, or train/ and test/ with one sub-folder of images a class; or one npz file.",
        ),
        READS,
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="Folder of the run: checkpoint, history, state."),
        Role(written=files),
    ],
    iters: Annotated[
        int | None, typer.Option("--iters", help="Routing iterations; the model's own by default.")
    ] = None,
    epochs: Annotated[
        int, typer.Option("--epochs", min=1, help="Passes over the training images.")
    ] = 10,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images of one step.")] = 128,
    learning_rate: Annotated[float, typer.Option("--lr", help="Peak learning rate.")] = 3e-3,
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            help="one-cycle (Adam), exponential (Adam, Sabour et al.) or multistep (SGD, Tsai et al.).",
        ),
    ] = "one-cycle",
    shift: Annotated[int, typer.Option("--shift", min=0, help="Random shift in pixels.")] = 2,
    rotate: Annotated[
        float, typer.Option("--rotate", min=0, max=180, help="Random rotation in degrees.")
    ] = 0.0,
    zoom: Annotated[
        float, typer.Option("--zoom", min=0, max=0.9, help="Random change of size, a fraction.")
    ] = 0.0,
    flip: Annotated[bool, typer.Option("--flip", help="Random mirroring.")] = False,
    pairs: Annotated[
        str,
        typer.Option("--pairs", help="none, overlap (MultiMNIST) or diverse (DiverseMultiMNIST)."),
    ] = "none",
    average: Annotated[
        float,
        typer.Option("--average", min=0.0, max=0.99999, help="Decay of the weights' average."),
    ] = 0.999,
    seed: Annotated[int, typer.Option("--seed", help="Of weights, order and augmentation.")] = 1,
    init: Annotated[
        Path | None, typer.Option("--init", help="Go on from this checkpoint's weights."), READS
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Only the first N images of each split."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="Threads of torch; its own choice by default."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that the folder holds.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a model; the folder gets model.safetensors, history.jsonl and the state to resume."""
    try:
        import torch
    except ImportError as error:
        raise EnvironmentProblem(
            "Training needs torch.", str(error), "pip install 'capsedge[export]'"
        ) from error
    from capsedge.checkpoint import load_checkpoint
    from capsedge.datasets import ImageSet, read_split
    from capsedge.models import get_config
    from capsedge.training.loop import Recipe, train

    config = get_config(model)
    if iters is not None:
        config = config.replace(iterations=iters)
    recipe = Recipe(
        epochs=epochs,
        batch=batch,
        schedule=schedule,
        learning_rate=learning_rate,
        shift=shift,
        rotate=rotate,
        zoom=zoom,
        flip=flip,
        pairs=pairs,
        average=average,
        seed=seed,
    )
    initial = load_checkpoint(init) if init else None
    if threads:
        torch.set_num_threads(threads)

    training = read_split(data, "train", config.preprocessing, limit)
    try:
        test: ImageSet | None = read_split(data, "test", config.preprocessing, limit)
    except UsageError as error:
        log(f"no test images: {error.what}")
        test = None
    log(f"{model}: {len(training)} training images, {len(test) if test else 0} test images")

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        bar: Any = Progress(console=Console(stderr=True))
    else:
        bar = None
    lines: list[dict[str, Any]] = []

    def done(line: dict[str, Any]) -> None:
        lines.append(line)
        accuracy = f", test accuracy {line['test_accuracy']:.4f}" if "test_accuracy" in line else ""
        log(
            f"epoch {line['epoch']}/{epochs}: loss {line['loss']:.5f}{accuracy}, {line['seconds']} s"
        )

    def run(progress: Any = None) -> None:
        train(
            config,
            recipe,
            training,
            test,
            output,
            initial=initial,
            resume=resume,
            progress=progress,
            epoch_done=done,
        )

    try:
        if bar is None:
            run()
        else:
            with bar:
                task = bar.add_task("training")
                run(
                    lambda epoch, step, steps, loss: bar.update(
                        task, total=steps * epochs, completed=epoch * steps + step + 1
                    )
                )
    except KeyboardInterrupt:
        log("interrupted: epochs that ended are kept; the same command with --resume goes on")
        raise SystemExit(_signals.exit_code() or _signals.INTERRUPTED) from None
    checkpoint = output / MODEL
    if as_json:
        print_json({"checkpoint": str(checkpoint), "epochs": lines})
    else:
        say(checkpoint)
        source, target = shlex.quote(str(checkpoint)), shlex.quote(str(output / "model.onnx"))
        log("next:", f"  capsedge export --checkpoint {source} -o {target}")
