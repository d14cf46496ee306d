"""``capsedge quantize``: an FP32 file to INT8, FP16 or mixed precision, behind a gate on accuracy."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsedge.cli._common import Json, log, print_json, say
from capsedge.cli._places import READS, UPDATES, WRITES, Role
from capsedge.cli._tables import print_table
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.files.writing import REJECTED, beside
from capsedge.runtime.units import size

if TYPE_CHECKING:
    from capsedge.calibration.mixed import Search
    from capsedge.calibration.quantize import Report
    from capsedge.calibration.sensitivity import Damage
    from capsedge.calibration.source import Source

LISTED = 12  # kept nodes printed; --json lists all


def command(
    model: Annotated[Path, typer.Argument(help="The FP32 ONNX file."), READS],
    calib_data: Annotated[
        Path,
        typer.Option(
            "--calib-data",
            help="Images to calibrate on: data set folder (its training split), npz, idx or images.",
        ),
        READS,
    ],
    precision: Annotated[str, typer.Option("--precision", help="int8, fp16 or mixed.")] = "int8",
    calib_images: Annotated[
        int, typer.Option("--calib-images", min=1, help="How many of --calib-data are drawn.")
    ] = 512,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Labelled images that accuracy is reported on; by default the test split of "
            "--calib-data, or what was not drawn.",
        ),
        READS,
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only N evaluation images, drawn.")
    ] = None,
    method: Annotated[
        str, typer.Option("--method", help="minmax, percentile, entropy or mse.")
    ] = "mse",
    target: Annotated[
        str, typer.Option("--target", help="ort-cpu, tensorrt, openvino or litert.")
    ] = "ort-cpu",
    ops: Annotated[
        str,
        typer.Option("--ops", help="auto, or fused: smaller, runs only with the operator library."),
    ] = "auto",
    max_drop: Annotated[
        float, typer.Option("--max-drop", help="Points of accuracy that may be lost.")
    ] = 0.1,
    table: Annotated[
        Path | None,
        typer.Option("--table", help="Calibration table: read if it is there, else written."),
        UPDATES,
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Rank layers and routing iterations by their damage; write no file.",
        ),
    ] = False,
    prefer: Annotated[
        str, typer.Option("--prefer", help="Mixed: write the smallest (size) or fastest (speed).")
    ] = "size",
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Mixed: PNG of the search."), WRITES
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The ONNX file; MODEL.PRECISION.onnx by default."),
        Role(written=lambda path: [path, beside(path, REJECTED)]),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of what is drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Quantize an exported file; exit code 4 and a .rejected file where it loses too much."""
    if not max_drop >= 0:
        raise UsageError(f"--max-drop is {max_drop:g}.", "It is 0 points or more.", "Use 0.1.")
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise EnvironmentProblem(
            "Quantizing needs onnx, onnxscript and ONNX Runtime.",
            f"{error}.",
            "pip install 'capsedge[build,cpu]'",
        ) from error
    from capsedge.calibration.observers import observer
    from capsedge.calibration.quantize import quantize, split
    from capsedge.calibration.source import Source
    from capsedge.graph.targets import TARGETS
    from capsedge.runtime.charts import check_chart

    if plot is not None:
        if precision != "mixed" or sensitivity:
            raise UsageError(
                "--plot without a search.",
                "It draws that of mixed precision.",
                "Add --precision mixed.",
            )
        check_chart(plot)
    observer(method)
    if ops not in ("auto", "fused"):
        raise UsageError(f"Unknown ops '{ops}'.", "", "Known: auto, fused.")
    runtime = target if target in TARGETS else None
    if runtime is not None and ops == "fused":
        raise UsageError(
            f"A file for {runtime} cannot have the form 'fused'.",
            f"{runtime} knows no operators of the domain capsedge.",
            "Leave --ops out.",
        )
    source = Source(model, ops == "auto", runtime)
    splits = split(source, calib_data, data, calib_images, seed, limit)
    for warning in splits.warnings:
        log(f"warning: {warning}")
    progress, close = _progress()
    try:
        if sensitivity:
            _sensitivity(source, splits, method, target, table, progress, as_json)
            return
        target_file = output or model.with_name(f"{model.stem}.{precision}.onnx")
        report = quantize(
            source,
            target_file,
            splits,
            precision=precision,
            method=method,
            target=target,
            max_drop=max_drop,
            table=table,
            prefer=prefer,
            progress=progress,
        )
    finally:
        close()
    if plot is not None and report.search is not None:
        from capsedge.calibration.mixed import plot as draw

        draw(report.search, max_drop, plot)
    if as_json:
        print_json(report.to_dict())
    else:
        show(report)
        file, images = shlex.quote(str(report.output)), shlex.quote(str(data or calib_data))
        checkpoint = "" if _of_the_zoo(source) else " --checkpoint CHECKPOINT"
        log("next:", f"  capsedge verify {file}{checkpoint} --data {images}")


def _of_the_zoo(source: Source) -> bool:
    """Whether ``verify`` finds the checkpoint by itself."""
    from capsedge.runtime.files.writing import sha256
    from capsedge.zoo import ROUTINGS, zoo_checkpoint

    wanted = source.metadata.checkpoint_sha256
    return any(p.is_file() and sha256(p) == wanted for p in map(zoo_checkpoint, ROUTINGS))


def _sensitivity(
    source: Any,
    splits: Any,
    method: str,
    target: str,
    table: Path | None,
    progress: Callable[[str, int, int], None],
    as_json: bool,
) -> None:
    from capsedge.calibration.sensitivity import sensitivity

    ranges = source.calibrate(splits.calibration, method, table, progress)
    found = sensitivity(source, ranges, splits.evaluation, splits.calibration, target)
    if as_json:
        print_json({"model": str(source.path), "damage": [d.to_dict() for d in found]})
    else:
        _show_damage(found)


def _show_damage(found: list[Damage]) -> None:
    print_table(
        "Damage of each alone in 8 bits, worst first",
        ("", "kind", "score error", "agreement", "points lost", "saved"),
        [
            (
                d.name,
                d.kind,
                f"{d.outcome.error:.2e}",
                f"{100 * d.outcome.agreement:.2f} %",
                f"{d.outcome.drop:.2f}",
                size(d.saved) if d.saved > 0 else "-",
            )
            for d in found
        ],
    )


def show(report: Report) -> None:
    """Print a report for a person."""
    o = report.outcome
    rows = [
        ("file", str(report.output)),
        ("precision", f"{report.precision} for {report.target}"),
        (
            "size",
            f"{size(report.size)}, {report.size / report.source_size:.3f} of FP32 "
            f"({report.source_size / report.size:.2f} times smaller)",
        ),
        ("calibration", f"{report.images['calibration']} images, {report.method}"),
        ("agreement", f"{100 * o.agreement:.2f} % of {o.images} images"),
    ]
    if o.accuracy is not None and o.reference is not None:
        rows.append(
            (
                "accuracy",
                f"{100 * o.accuracy:.2f} %, FP32 {100 * o.reference:.2f} %: "
                f"{o.drop:.2f} points lost (allowed {report.max_drop:g})",
            )
        )
    print_table("Quantized", ("", ""), rows)
    print_table(
        "Executed by ONNX Runtime on this machine (read back from its optimized graph)",
        ("operator", "precision", "nodes"),
        [(e.op, e.precision, str(e.count)) for e in report.executed],
    )
    if report.kept:
        print_table(
            "Kept in FP32",
            ("node", "operator", "rule", "numbers"),
            [(k.node, k.op, k.rule, k.numbers) for k in report.kept[:LISTED]],
        )
        if len(report.kept) > LISTED:
            say(f"and {len(report.kept) - LISTED} more, listed by --json", "")
    if report.search is not None:
        show_search(report.search)


def show_search(search: Search) -> None:
    """Print the Pareto table."""
    from capsedge.calibration.mixed import levels

    whole = max(c.bytes for c in search.candidates)
    print_table(
        f"Pareto front of {len(search.candidates)} candidates (size, time of one image, score error)",
        ("size", "smaller", "ms", "points lost", "agreement", "", "assignment"),
        [
            (
                size(c.bytes),
                f"{whole / c.bytes:.2f}x",
                f"{c.milliseconds:.2f}",
                f"{c.outcome.drop:.2f}",
                f"{100 * c.outcome.agreement:.2f} %",
                "ok" if c.fits else "over",
                levels(c.assignment),
            )
            for c in search.pareto()
        ],
    )


def _progress() -> tuple[Callable[[str, int, int], None], Callable[[], None]]:
    """A bar on a terminal, a line at the end of long stages elsewhere; and what ends it."""
    if not sys.stderr.isatty():

        def line(stage: str, done: int, total: int) -> None:
            if stage == "candidates" or (done == total and total >= 1000):
                log(f"{stage}: {done}" + ("" if stage == "candidates" else " images"))

        return line, lambda: None
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, Any] = {}
    bar.start()

    def update(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = bar.add_task(stage, total=total)
        bar.update(tasks[stage], completed=done, total=total)

    return update, bar.stop
