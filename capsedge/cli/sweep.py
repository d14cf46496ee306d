"""``capsedge sweep``: accuracy against latency and size over iterations and precisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capsedge.cli import _options
from capsedge.cli._common import log, print_json, require
from capsedge.cli._places import READS, WRITES
from capsedge.cli._tables import print_table
from capsedge.errors import UsageError
from capsedge.runtime.quantities import size

if TYPE_CHECKING:
    from capsedge.pipelines.sweep import Point, Sweep

Data = Annotated[
    Path,
    typer.Option(
        "--data",
        help="Data set folder: calibrated on its training split, evaluated on its test split.",
    ),
    READS,
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="Name of a trained model of the zoo, such as digits-em."),
]
Iterations = Annotated[
    str, typer.Option("--iters", help="Routing iterations, for example 1..5 or 1,3.")
]
Precisions = Annotated[
    str, typer.Option("--precision", help="Any of fp32, fp16, int8, for example fp32,int8.")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads of one inference.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the table as JSON."), WRITES
]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Plot accuracy against time as a PNG."), WRITES
]


def command(
    data: Data,
    model: Model = None,
    checkpoint: _options.Checkpoint = None,
    iters: Iterations = "1..5",
    precision: Precisions = "fp32,fp16,int8",
    limit: _options.Limit = None,
    threads: Threads = 2,
    output: Output = None,
    plot: Plot = None,
    as_json: _options.Json = False,
) -> None:
    """Export and quantize a model for several iterations; measure accuracy, time and size of each."""
    iterations = _iterations(iters)
    require(
        "onnx", "onnxruntime", "torch",
        what="A sweep exports the model, which needs PyTorch and ONNX.",
        fix="pip install 'capsedge[export]'",
    )  # fmt: skip
    from capsedge.pipelines import sweep as sweeps
    from capsedge.pipelines.find import find_model
    from capsedge.runtime.charts import check_chart
    from capsedge.runtime.files.writing import check_writable, write_text

    precisions = _precisions(precision, sweeps.PRECISIONS)
    if output is not None:
        check_writable(output)
    if plot is not None:
        check_chart(plot)
    found = find_model(model, checkpoint)
    swept = sweeps.sweep(
        found, data, iterations, precisions, limit=limit, threads=threads, progress=_log
    )
    for warning in swept.warnings:
        log(f"warning: {warning}")
    if output is not None:
        write_text(output, json.dumps(swept.to_dict(), indent=2) + "\n")
    if plot is not None:
        sweeps.plot(swept, plot)
    if as_json:
        print_json(swept.to_dict())
    else:
        _show(swept)


def _iterations(text: str) -> list[int]:
    """The numbers of, for example, ``1..5`` or ``1,3,5``.

    Raises:
        UsageError: it has another form, or a number is below 1.
    """
    try:
        if ".." in text:
            first, last = (int(v) for v in text.split(".."))
            found = list(range(first, last + 1))
        else:
            found = [int(v) for v in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UsageError(
            f"Bad --iters {text}.",
            "It takes whole numbers from 1 on.",
            "Use for example 1..5 or 1,3.",
        )
    return found


def _precisions(text: str, known: tuple[str, ...]) -> list[str]:
    found = _options.words(text)
    if not found or not set(found) <= set(known):
        raise UsageError(f"Bad --precision {text}.", "", f"Known: {', '.join(known)}.")
    return found


def _log(point: Point) -> None:
    log(
        f"{point.iterations} iterations, {point.precision}: {100 * point.accuracy:.2f} %, "
        f"{point.milliseconds:.2f} ms, {size(point.bytes)}"
    )


def _show(swept: Sweep) -> None:
    print_table(
        f"{swept.model} (trained with {swept.trained_iterations} iterations), {swept.images} images",
        ("iterations", "precision", "accuracy", "ms", "size"),
        [
            (
                str(p.iterations),
                p.precision,
                f"{100 * p.accuracy:.2f} %",
                f"{p.milliseconds:.2f}",
                size(p.bytes),
            )
            for p in swept.points
        ],
    )
