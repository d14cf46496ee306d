"""``capsedge export``: exports a trained network to one ONNX file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsedge.cli import _options
from capsedge.cli._common import log, print_json, require, say
from capsedge.cli._describing import describing
from capsedge.cli._places import READS, WRITES
from capsedge.errors import UsageError

if TYPE_CHECKING:
    from capsedge.exporters.export_report import ExportReport
    from capsedge.pipelines.find import FoundModel

REWRITES = {
    "first-pass": "first_pass_uniform",
    "light-cone": "light_cone",
    "dead-update": "dead_update",
    "logit-free": "logit_free",
}
Routing = Annotated[
    str | None,
    typer.Option(
        "--routing", help="Which of the zoo's models: dynamic (the default), em or attention."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="The ONNX file; MODEL.onnx by default."),
    WRITES,
]
Runtime = Annotated[
    str | None,
    typer.Option(
        "--for",
        help="Write the file for another runtime, openvino, litert or mnn: sets --ops, --batch and "
        "--opset.",
    ),
]
Opset = Annotated[int | None, typer.Option("--opset", help="ONNX opset, 18 to 21; 20 by default.")]
FileOps = Annotated[
    str | None,
    typer.Option(
        "--ops",
        help="auto (the default): capsule operators with function bodies; fused: without bodies; "
        "portable: standard operators only.",
    ),
]
FixedBatch = Annotated[
    int | None, typer.Option("--batch", min=1, help="Fixed batch, instead of a free one.")
]
DynamicBatch = Annotated[bool, typer.Option("--dynamic-batch", help="Free batch (the default).")]
Extra = Annotated[
    str,
    typer.Option("--with", help="More outputs: reconstruction, couplings (separated by commas)."),
]
NoRewrite = Annotated[
    list[str] | None,
    typer.Option("--no-rewrite", help=f"Leave out an exact rewrite: {', '.join(REWRITES)}."),
]
Atol = Annotated[float, typer.Option("--atol", help="Absolute tolerance of the comparison.")]
Rtol = Annotated[float, typer.Option("--rtol", help="Tolerance relative to the size of a pose.")]
FreezeCouplings = Annotated[
    bool,
    typer.Option(
        "--freeze-couplings",
        help="Approximation, with a measured error: replace routing by couplings averaged over "
        "--calib-data.",
    ),
]
CalibData = Annotated[
    Path | None,
    typer.Option(
        "--calib-data", help="Data set folder, npz, idx or images for --freeze-couplings."
    ),
    READS,
]
CalibImages = Annotated[
    int, typer.Option("--calib-images", min=2, help="Number of images drawn from --calib-data.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Do everything except write the file.")]


@describing
def command(
    model: _options.Model = None,
    checkpoint: _options.Checkpoint = None,
    routing: Routing = None,
    iters: _options.Iterations = None,
    output: Output = None,
    runtime: Runtime = None,
    opset: Opset = None,
    ops: FileOps = None,
    batch: FixedBatch = None,
    dynamic_batch: DynamicBatch = False,
    extra: Extra = "",
    no_rewrite: NoRewrite = None,
    atol: Atol = 1e-5,
    rtol: Rtol = 1e-4,
    freeze_couplings: FreezeCouplings = False,
    calib_data: CalibData = None,
    calib_images: CalibImages = 512,
    dry_run: DryRun = False,
    as_json: _options.Json = False,
    *,
    described: dict[str, Any],
) -> None:
    """Export a trained network to one ONNX file, compared with PyTorch before it is written."""
    _options.exclude(dynamic_batch=dynamic_batch, batch=batch)
    _check(iters, freeze_couplings, calib_data, dry_run or runtime is not None, ops)
    require(
        "onnx", "onnxruntime", "onnxscript", "torch",
        what="Export needs PyTorch and ONNX.", fix="pip install 'capsedge[export]'",
    )  # fmt: skip
    from capsedge.exporters.to_onnx import export
    from capsedge.graph.targets import resolve
    from capsedge.pipelines.find import find_model
    from capsedge.pipelines.frozen_export import export_frozen
    from capsedge.runtime.files.writing import sha256

    ops, opset, batch = resolve(runtime, ops, opset, batch, dynamic_batch)
    found = find_model(model, checkpoint, routing)
    target = output or Path(f"{found.name}.onnx")
    if not found.trained:
        log(
            f"warning: {found.name} has no trained weights in this package: exporting its random "
            "initial weights. The file is for measuring speed; it classifies nothing."
        )
    options: dict[str, Any] = {
        **described,
        "iterations": iters,
        "opset": opset,
        "ops": ops,
        "batch": batch,
        "extra_outputs": _options.words(extra),
        "rewrites": _rewrites(no_rewrite or []),
        "atol": atol,
        "rtol": rtol,
        "checkpoint_sha256": sha256(found.checkpoint) if found.checkpoint else "",
    }
    if calib_data is None:
        report, measured = export(found.model, target, **options, dry_run=dry_run), None
    else:
        frozen = export_frozen(found.model, target, calib_data, calib_images, **options)
        report, measured = frozen.report, frozen.measured
        for warning in frozen.warnings:
            log(f"warning: {warning}")
    (_print_json if as_json else _print)(report, found, measured)


def _check(
    iters: int | None, frozen: bool, calib_data: Path | None, elsewhere: bool, ops: str | None
) -> None:
    if iters is not None and iters < 1:
        raise UsageError(
            f"Routing cannot run {iters} iterations.", "", "Give --iters a number of 1 or more."
        )
    if frozen != (calib_data is not None):
        raise UsageError(
            "--freeze-couplings and --calib-data need each other.",
            "Couplings are averaged over the images of --calib-data.",
            "Give both, or neither.",
        )
    if frozen and (elsewhere or ops not in (None, "auto")):
        raise UsageError(
            "Frozen couplings need a file with capsule operators.",
            "--dry-run does not write it, and --ops portable, --ops fused and --for convert it.",
            "Leave out --dry-run, --ops and --for.",
        )


def _rewrites(left_out: list[str]) -> Any:
    """The exact rewrites except those left out."""
    from capsedge.graph.rewrites import Rewrites

    unknown = [name for name in left_out if name not in REWRITES]
    if unknown:
        raise UsageError(
            f"There is no rewrite '{unknown[0]}'.", "", f"Known: {', '.join(REWRITES)}."
        )
    return Rewrites(**{REWRITES[name]: False for name in left_out})


def _next_commands(report: ExportReport, checkpoint: Path | None) -> list[str]:
    """The commands to run next; a file with untrained weights can be neither verified nor used to infer."""
    file = shlex.quote(str(report.path))
    if report.dry_run:
        return []
    if checkpoint is None:
        return [f"capsedge inspect {file}"]
    return [
        f"capsedge verify {file} --checkpoint {shlex.quote(str(checkpoint))}",
        f"capsedge infer --model {file} image.png",
    ]


def _print_json(report: ExportReport, found: FoundModel, frozen: dict[str, Any] | None) -> None:
    print_json(
        {
            **report.to_dict(),
            "model": found.name,
            "checkpoint": str(found.checkpoint) if found.checkpoint else None,
            "trained": found.trained,
            **({"frozen_couplings": frozen} if frozen is not None else {}),
            "next": _next_commands(report, found.checkpoint),
        }
    )


def _print(report: ExportReport, found: FoundModel, frozen: dict[str, Any] | None) -> None:
    def shapes(values: dict[str, list[int | str]]) -> str:
        return ", ".join(f"{k} {v}".replace("'", "") for k, v in values.items())

    if frozen is not None:
        _print_frozen(frozen)
    worst = max(report.parity, key=lambda p: p.excess)
    lines: dict[str, Any] = {
        "model": f"{found.name} ({found.checkpoint or 'untrained weights'})",
        "file": f"{report.path}{' (not written: dry run)' if report.dry_run else ''}",
        "size": f"{report.size / 1e6:.2f} MB, opset {report.opset}, IR {report.ir_version}, ops {report.ops}",
        "inputs": shapes(report.inputs),
        "outputs": shapes(report.outputs),
        "operators": ", ".join(f"{n} {k}" for k, n in report.operators.items())
        + f"; function bodies: {report.functions}",
        "rewrites": "; ".join(f"{k} {report.rewrites[v]}" for k, v in REWRITES.items()),
        "parity": f"{len(report.parity)} comparisons with PyTorch; the worst ({worst.output}, {worst.case}) "
        f"at {100 * worst.excess:.0f} % of its tolerance (atol {report.atol:g}, rtol {report.rtol:g})",
    }
    for key, value in lines.items():
        say(f"{key:<10} {value}")
    following = _next_commands(report, found.checkpoint)
    if following:
        log("next:", *(f"  {line}" for line in following))


def _print_frozen(frozen: dict[str, Any]) -> None:
    log(
        "APPROXIMATION: couplings are frozen to their mean over "
        f"{frozen['averaged_images']} images; the file no longer routes."
    )
    accuracy = ""
    if frozen["accuracy"] is not None:  # it is None for a multi-label model
        after, routed = 100 * frozen["accuracy"], 100 * frozen["accuracy_fp32"]
        accuracy = f", accuracy {after:.2f} %, {routed:.2f} % routed"
    say(
        f"{'frozen':<10} approximation: agreement {100 * frozen['agreement']:.2f} % with routing on "
        f"{frozen['images']} other images{accuracy}"
    )
    for name, layer in frozen["layers"].items():
        say(
            f"{'':<10} {name}: couplings vary by {layer['deviation']:.4f} between images "
            f"(equal couplings would be {layer['uniform']:.4f})"
        )
