"""``capsedge optimize``: fuses the routing of any ONNX file, cleans up the rest, verifies the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsedge.cli import _options
from capsedge.cli._options import MetadataOptions, Typical, grouped
from capsedge.cli._output import (
    log,
    print_json,
    print_table,
    require,
    say,
    say_rows,
    stage_reporter,
)
from capsedge.cli._parameters import Argument, Option
from capsedge.cli._paths import READS_MODEL, WRITES
from capsedge.graph.fusion import by_reason
from capsedge.optimization.optimize_options import OptimizeOptions
from capsedge.runtime.files.text import format_bytes

if TYPE_CHECKING:
    from capsedge.optimization.optimize import OptimizationReport

Model = Annotated[Path, Argument(help="ONNX file from any tool, opset 8 or later."), READS_MODEL]
Output = Annotated[
    Path | None,
    Option("-o", "--output", help="The new file; MODEL.fused.onnx by default."),
    WRITES,
]


@grouped
def command(
    options: OptimizeOptions,
    described: MetadataOptions,
    model: Model,
    output: Output = None,
    typical_data: Typical = None,
    as_json: _options.Json = False,
) -> None:
    """Speed up the capsule routing in an ONNX file from any tool.

    Routing that is recognized becomes a single operator per layer, and the result is compared with the
    original file.
    """
    require(
        "onnx", "onnxscript", "onnxruntime",
        what="Optimizing needs onnx, onnxscript and ONNX Runtime.",
        fix="pip install 'capsedge[build]'",
    )  # fmt: skip
    from capsedge.optimization.optimize import optimize
    from capsedge.runtime.user_metadata import Description

    done = optimize(
        model,
        output or model.parent / f"{model.stem}.fused.onnx",
        options,
        description=Description(**described.keywords(), typical=typical_data),
        progress=stage_reporter(as_json),
    )
    if as_json:
        print_json(done.to_dict())
    else:
        _print(done)


def _print(done: OptimizationReport) -> None:
    if done.fused:
        rows = [
            [f["operator"], f["tensor"], ", ".join(f"{k} {v}" for k, v in f["parameters"].items())]
            for f in done.fused
        ]
        print_table("fused", ["operator", "makes", "read off"], rows)
    if done.not_fused:
        print_table(
            "left as it was",
            ["softmax", "why"],
            [*by_reason((e["tensor"], e["reason"]) for e in done.not_fused)],
        )
    if not done.fused and not done.not_fused:
        say("no capsule routing was found")
    notes = dict.fromkeys((*done.notes, *(n for f in done.fused for n in f["notes"])))
    say_rows(
        *(("note", note) for note in notes),
        ("nodes", f"{done.nodes_before} before, {done.nodes} now"),
        ("opset", f"{done.opset_before} before, {done.opset} now"),
        ("batch", done.batch),
        ("size", f"{format_bytes(done.source_size)} before, {format_bytes(done.size)} now"),
    )
    if done.comparisons:
        worst = f"largest difference {done.largest_difference:.2g}"
        say_rows(("verified", f"{done.comparisons} comparisons with the original, {worst}"))
    if done.before_ms is not None and done.after_ms is not None and done.gain is not None:
        times = f"{done.before_ms:.3g} ms before, {done.after_ms:.3g} ms now"
        say_rows(("time", f"{times}: {done.gain:.2f} times as fast (one thread, in turns)"))
    log(f"wrote {done.output}")
