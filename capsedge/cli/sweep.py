"""``capsedge sweep``: accuracy against latency and size over iterations and precisions."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from capsedge.cli._common import Json, log, print_json
from capsedge.cli._places import READS, WRITES
from capsedge.cli._tables import print_table
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.units import size

PRECISIONS = ("fp32", "fp16", "int8")


@dataclass(frozen=True)
class Point:
    """One file of the sweep.

    Attributes:
        iterations, precision: what it is.
        accuracy: share of right decisions.
        milliseconds: median time of one image.
        bytes: of the file.
    """

    iterations: int
    precision: str
    accuracy: float
    milliseconds: float
    bytes: int


def command(
    calib_data: Annotated[
        Path,
        typer.Option(
            "--data",
            help="Data set folder: calibrated on its training split, judged on its test split.",
        ),
        READS,
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", help="Name of a trained model of the zoo, such as digits-em."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            help="Checkpoint, .safetensors or .pt; the zoo's digit model by default.",
        ),
        READS,
    ] = None,
    iters: Annotated[
        str, typer.Option("--iters", help="Routing iterations, as in 1..5 or 1,3.")
    ] = "1..5",
    precision: Annotated[
        str, typer.Option("--precision", help="Of fp32, fp16, int8, as in fp32,int8.")
    ] = "fp32,fp16,int8",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only N test images, drawn.")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of one inference.")] = 2,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the table as JSON."), WRITES
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write accuracy against time as a PNG."), WRITES
    ] = None,
    as_json: Json = False,
) -> None:
    """Export and quantize a model at several iterations; measure accuracy, time and size of each."""
    counts, precisions = _iterations(iters), _precisions(precision)
    try:
        import onnx  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise EnvironmentProblem(
            "A sweep exports the model, which needs PyTorch and ONNX.",
            f"{error}.",
            "pip install 'capsedge[export]'",
        ) from error
    from capsedge.calibration.evaluate import latency
    from capsedge.calibration.quantize import split
    from capsedge.calibration.source import MADE, Source, uniform
    from capsedge.cli.export import find_source
    from capsedge.exporters.to_onnx import export
    from capsedge.runtime.charts import check_chart
    from capsedge.runtime.files.writing import check_writable, temporary_folder, write_text
    from capsedge.runtime.session import load_bytes

    if output is not None:
        check_writable(output)
    if plot is not None:
        check_chart(plot)
    trained, _, name, known = find_source(model, checkpoint, None)
    if not known:
        raise UsageError(
            f"{name} has no trained weights in this package.",
            "Accuracy of random weights says nothing.",
            "Name a checkpoint with --checkpoint.",
        )
    if trained.config.task == "multi-label":
        raise UsageError(
            f"{name} finds several classes in an image.",
            "Its accuracy is not that of one label an image, which data sets have.",
            "Compare its files with `capsedge quantize` and `capsedge verify`.",
        )
    points: list[Point] = []
    splits = None
    with temporary_folder() as folder:
        for count in counts:
            path = folder / f"{count}.onnx"
            export(trained, path, iterations=count)
            source = Source(path)
            if splits is None:
                splits = split(source, calib_data, None, 512, limit=limit)
                for warning in splits.warnings:
                    log(f"warning: {warning}")
            for kind in precisions:
                if kind == "fp32":
                    made = source.model
                elif kind == "fp16":
                    made, _ = source.half(splits.calibration)
                else:
                    table = source.calibrate(splits.calibration, "mse", None)
                    made, _ = source.emit(uniform(source.units, "int8"), table, "ort-cpu")
                outcome = source.outcome(made, splits.evaluation)
                content = made.SerializeToString()
                milliseconds = latency(load_bytes(content, MADE, threads=threads))
                accuracy = float(outcome.accuracy or 0)
                point = Point(count, kind, accuracy, milliseconds, len(content))
                points.append(point)
                log(
                    f"{count} iterations, {kind}: {100 * point.accuracy:.2f} %, "
                    f"{point.milliseconds:.2f} ms, {size(point.bytes)}"
                )
    assert splits is not None
    document: dict[str, Any] = {
        "schema": 1,
        "model": name,
        "trained_iterations": trained.config.iterations,
        "images": len(splits.evaluation),
        "data": splits.evaluation.source,
        "threads": threads,
        "points": [dataclasses.asdict(p) for p in points],
    }
    if output is not None:
        write_text(output, json.dumps(document, indent=2) + "\n")
    if plot is not None:
        _plot(points, name, plot)
    if as_json:
        print_json(document)
    else:
        print_table(
            f"{name} (trained with {trained.config.iterations} iterations), {len(splits.evaluation)} images",
            ("iterations", "precision", "accuracy", "ms", "size"),
            [
                (
                    str(p.iterations),
                    p.precision,
                    f"{100 * p.accuracy:.2f} %",
                    f"{p.milliseconds:.2f}",
                    size(p.bytes),
                )
                for p in points
            ],
        )


def _iterations(text: str) -> list[int]:
    """``1..5`` or ``1,3,5``.

    Raises:
        UsageError: it is neither, or a number is below 1.
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
        raise UsageError(f"--iters {text}.", "Wanted numbers from 1 on.", "Use 1..5 or 1,3.")
    return found


def _precisions(text: str) -> list[str]:
    found = [p.strip() for p in text.split(",") if p.strip()]
    unknown = [p for p in found if p not in PRECISIONS]
    if unknown or not found:
        raise UsageError(f"--precision {text}.", "", f"Known: {', '.join(PRECISIONS)}.")
    return found


def _plot(points: list[Point], name: str, path: Path) -> None:
    """Accuracy against time, one line a precision, the iterations written beside the points."""
    from capsedge.runtime.charts import caption, new_figure, save_figure

    figure = new_figure(7, 4)
    axis = figure.subplots()
    largest = max(p.bytes for p in points)
    for precision in dict.fromkeys(p.precision for p in points):
        mine = [p for p in points if p.precision == precision]
        xs, ys = [p.milliseconds for p in mine], [100 * p.accuracy for p in mine]
        axis.plot(xs, ys, "-", linewidth=0.8)
        axis.scatter(xs, ys, [200 * p.bytes / largest + 10 for p in mine], label=precision)
        for p in mine:
            axis.annotate(str(p.iterations), (p.milliseconds, 100 * p.accuracy), fontsize=8)
    axis.set_xlabel("milliseconds an image (area: size of the file; numbers: iterations)")
    axis.set_ylabel("accuracy, %")
    axis.set_title(caption(name))
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path, 110)
