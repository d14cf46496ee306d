"""``capsedge sweep``: finds the Pareto front of accuracy, latency and size over many files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsedge.cli import _options
from capsedge.cli._output import log, print_json, print_table, require, say
from capsedge.cli._parameters import Option
from capsedge.cli._paths import READS, READS_DATA, WRITES, PathRole
from capsedge.errors import UsageError
from capsedge.options import words
from capsedge.runtime.files.text import format_bytes

if TYPE_CHECKING:
    from capsedge.optimization.sweep import Point, Sweep

Data = Annotated[
    Path,
    Option(
        "--data",
        help=(
            "Data set folder: the training split for calibration and search, the test split for "
            "the report."
        ),
    ),
    READS_DATA,
]
Model = Annotated[
    str | None,
    Option("--model", help="Name of a trained zoo model, such as digits-em."),
]
Checkpoints = Annotated[
    list[Path] | None,
    Option(
        "--checkpoint",
        help="Checkpoint, .safetensors or .pt; repeatable, for example a network and its pruned versions.",
    ),
    READS,
]
Iterations = Annotated[str, Option("--iters", help="Routing iterations, for example 1..5 or 1,3.")]
Couplings = Annotated[
    str, Option("--couplings", help="routed, frozen (at their mean), or both: routed,frozen.")
]
Precisions = Annotated[
    str, Option("--precision", help="Any of fp32, fp16, int8, for example fp32,int8.")
]
Threads = Annotated[int, Option("--threads", min=1, help="Threads of one inference.")]
Keep = Annotated[
    Path | None,
    Option("--keep", help="Folder for the files; an interrupted sweep continues there."),
    PathRole(written=lambda folder: [folder / "sweep-state.json"], creates=True),
]
Output = Annotated[Path | None, Option("-o", "--output", help="Write the points as JSON."), WRITES]
Picture = Annotated[
    Path | None,
    Option("--picture", help="Draw the points and the front: .png or .svg."),
    WRITES,
]


def command(
    data: Data,
    model: Model = None,
    checkpoint: Checkpoints = None,
    iters: Iterations = "1..5",
    couplings: Couplings = "routed",
    precision: Precisions = "fp32,fp16,int8",
    limit: _options.Limit = None,
    threads: Threads = 2,
    keep: Keep = None,
    output: Output = None,
    picture: Picture = None,
    as_json: _options.Json = False,
) -> None:
    """Search for the best trade-off of accuracy, latency and size.

    The candidates combine routing iterations, couplings, precisions and checkpoints.
    """
    iterations = _options.iteration_counts(iters)
    require(
        "onnx", "onnxruntime", "torch",
        what="A sweep exports the model, which needs PyTorch and ONNX.",
        fix="pip install 'capsedge[export]'",
    )  # fmt: skip
    from capsedge.models.find import find_model
    from capsedge.optimization.sweep import Grid, draw, sweep
    from capsedge.optimization.sweep_candidates import COUPLINGS
    from capsedge.runtime.files.writing import check_writable, write_text
    from capsedge.runtime.result_summary import check_chart
    from capsedge.spec.vocabularies import SWEEP_PRECISIONS as PRECISIONS

    grid = Grid(
        iterations,
        _words("--couplings", couplings, COUPLINGS),
        _words("--precision", precision, PRECISIONS),
    )
    if output is not None:
        check_writable(output)
    if picture is not None:
        _check_picture(picture)
        check_chart(picture)
    given: list[Path | None] = [*checkpoint] if checkpoint else [None]
    found = [find_model(model, each) for each in given]
    swept = sweep(found, data, grid, limit=limit, threads=threads, keep=keep, progress=log)
    for warning in swept.warnings:
        log(f"warning: {warning}")
    if output is not None:
        write_text(output, json.dumps(swept.to_dict(), indent=2) + "\n")
    if picture is not None:
        draw(swept, picture)
    if as_json:
        print_json(swept.to_dict())
    else:
        _show(swept, keep)


def _check_picture(path: Path) -> None:
    if path.suffix not in (".png", ".svg"):
        raise UsageError(
            f"{path} is neither a .png nor an .svg file.", "", "For example: --picture front.svg."
        )


def _words(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    found = list(dict.fromkeys(words(text)))
    if not found or not set(found) <= set(known):
        raise UsageError(f"Invalid {option} {text}.", "", f"Choose one of: {', '.join(known)}.")
    return found


def _show(swept: Sweep, keep: Path | None) -> None:
    front = swept.front
    columns = ["front", "model", "iters", "couplings", "precision", "ms", "size", "search", "test"]
    print_table(
        f"{len(swept.points)} files, the fastest first; {len(front)} on the Pareto front",
        columns,
        [_row(point) for point in sorted(swept.points, key=lambda p: p.milliseconds)],
    )
    say(
        f"search: accuracy on {swept.searched} training images; test: on {swept.images} images "
        f"({swept.data}), of the front only"
    )
    if keep is not None:
        say(*(f"{keep / point.file}" for point in front))


def _row(point: Point) -> list[str]:
    tested = "-" if point.test_accuracy is None else f"{100 * point.test_accuracy:.2f} %"
    return [
        "*" if point.front else "",
        point.model,
        str(point.iterations),
        point.couplings,
        point.precision,
        f"{point.milliseconds:.2f}",
        format_bytes(point.bytes),
        f"{100 * point.accuracy:.2f} %",
        tested,
    ]
