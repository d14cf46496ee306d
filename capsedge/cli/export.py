"""``capsedge export``: a trained network to one ONNX file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsedge.cli._common import Json, log, print_json, say
from capsedge.cli._places import READS, WRITES
from capsedge.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from capsedge.exporters.export_report import ExportReport
    from capsedge.models import CapsuleModel

REWRITES = {
    "first-pass": "first_pass_uniform",
    "light-cone": "light_cone",
    "dead-update": "dead_update",
    "logit-free": "logit_free",
}


def command(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Name of a model, such as digits-em; an unknown one is answered with all of them.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            help="Checkpoint, .safetensors or .pt; the zoo's digit model by default.",
        ),
        READS,
    ] = None,
    routing: Annotated[
        str | None,
        typer.Option(
            "--routing", help="Which of the zoo's models: dynamic (the default), em or attention."
        ),
    ] = None,
    iters: Annotated[
        int | None, typer.Option("--iters", help="Routing iterations; the model's own by default.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The ONNX file; MODEL.onnx by default."),
        WRITES,
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="Another runtime to write the file for, openvino, litert or mnn: sets --ops, --batch "
            "and --opset.",
        ),
    ] = None,
    opset: Annotated[
        int | None, typer.Option("--opset", help="ONNX opset, 18 to 21; 20 by default.")
    ] = None,
    ops: Annotated[
        str | None,
        typer.Option(
            "--ops",
            help="auto (the default): capsule operators with function bodies; fused: without bodies; "
            "portable: standard operators only.",
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="A fixed batch, instead of one left free.")
    ] = None,
    dynamic_batch: Annotated[
        bool, typer.Option("--dynamic-batch", help="A batch left free (the default).")
    ] = False,
    extra: Annotated[
        str, typer.Option("--with", help="More outputs: reconstruction, couplings (comma between).")
    ] = "",
    no_rewrite: Annotated[
        list[str] | None,
        typer.Option("--no-rewrite", help=f"Leave out an exact rewrite: {', '.join(REWRITES)}."),
    ] = None,
    atol: Annotated[
        float, typer.Option("--atol", help="Absolute tolerance of the comparison.")
    ] = 1e-5,
    rtol: Annotated[
        float, typer.Option("--rtol", help="Relative tolerance, of a pose's size.")
    ] = 1e-4,
    freeze_couplings: Annotated[
        bool,
        typer.Option(
            "--freeze-couplings",
            help="Approximation: couplings averaged over --calib-data instead of routing; measured.",
        ),
    ] = False,
    calib_data: Annotated[
        Path | None,
        typer.Option(
            "--calib-data", help="Data set folder, npz, idx or images for --freeze-couplings."
        ),
        READS,
    ] = None,
    calib_images: Annotated[
        int, typer.Option("--calib-images", min=2, help="How many of --calib-data are drawn.")
    ] = 512,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do everything but write the file.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Export a trained network to one ONNX file, compared with PyTorch before it is written."""
    if dynamic_batch and batch is not None:
        raise UsageError("--dynamic-batch and --batch exclude each other.", "", "Give one of them.")
    if iters is not None and iters < 1:
        raise UsageError(
            f"Routing cannot run {iters} iterations.", "", "Give --iters a number of 1 or more."
        )
    if freeze_couplings != (calib_data is not None):
        raise UsageError(
            "--freeze-couplings and --calib-data go together.",
            "Couplings are averaged over images.",
            "Give both, or neither.",
        )
    if freeze_couplings and (dry_run or ops not in (None, "auto") or runtime is not None):
        raise UsageError(
            "Frozen couplings need a file with capsule operators.",
            "--dry-run writes none, and --ops portable and fused, and --for, are made from it.",
            "Leave out --dry-run, --ops and --for.",
        )
    unknown = [name for name in no_rewrite or [] if name not in REWRITES]
    if unknown:
        raise UsageError(
            f"There is no rewrite '{unknown[0]}'.", "", f"Known: {', '.join(REWRITES)}."
        )
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise EnvironmentProblem(
            "Export needs PyTorch and ONNX.", f"{error}.", "pip install 'capsedge[export]'"
        ) from error
    from capsedge.exporters.to_onnx import export
    from capsedge.graph.rewrites import Rewrites
    from capsedge.graph.targets import resolve
    from capsedge.runtime.files.writing import sha256

    form, version, size = resolve(runtime, ops, opset, batch, dynamic_batch)
    source, file, name, trained = find_source(model, checkpoint, routing)
    target = output or Path(f"{name}.onnx")
    if not trained:
        log(
            f"warning: {name} has no trained weights in this package: exporting its random initial "
            "weights. The file is for measuring speed; it classifies nothing."
        )

    def write(place: Path) -> ExportReport:
        return export(
            source,
            place,
            iterations=iters,
            opset=version,
            ops=form,
            batch=size,
            extra_outputs=[e.strip() for e in extra.split(",") if e.strip()],
            rewrites=Rewrites(**{REWRITES[n]: False for n in no_rewrite or []}),
            atol=atol,
            rtol=rtol,
            checkpoint_sha256=sha256(file) if file else "",
            dry_run=dry_run,
        )

    frozen: dict[str, Any] | None = None
    if calib_data is None:
        report = write(target)
    else:
        report, frozen = _frozen(write, target, calib_data, calib_images)
    following = _next_commands(report, file)
    if as_json:
        print_json(
            {
                **json.loads(json.dumps(report.to_dict())),
                "model": name,
                "checkpoint": str(file) if file else None,
                "trained": trained,
                **({"frozen_couplings": frozen} if frozen is not None else {}),
                "next": following,
            }
        )
    else:
        if frozen is not None:
            _print_frozen(frozen)
        _print(report, name, file, following)


def _frozen(
    write: Callable[[Path], ExportReport], target: Path, calib_data: Path, count: int
) -> tuple[ExportReport, dict[str, Any]]:
    """Export a file with frozen couplings, and measure what that costs; one that routes is never left."""
    import dataclasses

    import onnx

    from capsedge.calibration.frozen import freeze
    from capsedge.calibration.quantize import split
    from capsedge.calibration.source import Source, rounded
    from capsedge.graph.proto import operator_counts
    from capsedge.runtime.files.writing import check_writable, temporary_folder, write_bytes

    check_writable(target)
    with temporary_folder() as folder:
        routed = folder / target.name
        report = write(routed)
        source = Source(routed)
        splits = split(source, calib_data, None, count)
        for warning in splits.warnings:
            log(f"warning: {warning}")
        model = onnx.load(routed)
        layers = freeze(model, splits.calibration)
        outcome = source.outcome(model, splits.evaluation)
    measured = {
        "averaged_images": len(splits.calibration),
        "data_sha256": splits.calibration.digest(),
        "layers": layers,
        **rounded(outcome),
    }
    described = dataclasses.replace(source.metadata, calibration={"frozen_couplings": measured})
    onnx.helper.set_model_props(model, described.to_properties())
    data = model.SerializeToString()
    write_bytes(target, data)
    report = dataclasses.replace(
        report,
        path=target,
        size=len(data),
        operators=operator_counts(model),
        functions=len(model.functions),
    )
    return report, measured


def _print_frozen(frozen: dict[str, Any]) -> None:
    log(
        "APPROXIMATION: couplings are frozen to their mean over "
        f"{frozen['averaged_images']} images; the file does not route any more."
    )
    accuracy = ""
    if frozen["accuracy"] is not None:  # of a model for one label
        found, routed = 100 * frozen["accuracy"], 100 * frozen["accuracy_fp32"]
        accuracy = f", accuracy {found:.2f} %, {routed:.2f} % routed"
    say(
        f"{'frozen':<10} approximation: agreement {100 * frozen['agreement']:.2f} % with routing on "
        f"{frozen['images']} other images{accuracy}"
    )
    for name, layer in frozen["layers"].items():
        say(
            f"{'':<10} {name}: couplings vary by {layer['deviation']:.4f} between images "
            f"(equal ones are {layer['uniform']:.4f})"
        )


def find_source(
    name: str | None, checkpoint: Path | None, routing: str | None
) -> tuple[CapsuleModel, Path | None, str, bool]:
    """The model to export, its checkpoint, its name, and whether its weights are trained.

    Raises:
        UsageError: the options contradict each other, or name nothing.
    """
    from capsedge.checkpoint import load_checkpoint
    from capsedge.models import build, get_config
    from capsedge.zoo import ROUTINGS, zoo_checkpoint

    if name is not None and checkpoint is not None:
        raise UsageError("--model and --checkpoint exclude each other.", "", "Give one of them.")
    if name is None and checkpoint is None:
        checkpoint = zoo_checkpoint(routing or "dynamic")
        if not checkpoint.is_file():
            raise EnvironmentProblem(
                "The trained models are not in this installation.",
                f"{checkpoint} is missing.",
                "Install capsedge again, or name a checkpoint with --checkpoint.",
            )
    if name is not None:
        config = get_config(name)
        for zoo in ROUTINGS:
            if zoo_checkpoint(zoo).stem == name and zoo_checkpoint(zoo).is_file():
                checkpoint = zoo_checkpoint(zoo)
    if checkpoint is not None:
        source = load_checkpoint(checkpoint)
        config, title = source.config, name or checkpoint.stem
    else:
        import torch

        torch.manual_seed(0)
        source, title = build(config).eval(), str(name)
    if routing is not None and config.routing != routing:
        raise UsageError(
            f"{title} routes by {config.routing}, not by {routing}.",
            "The routing belongs to the trained weights.",
            "Leave --routing out, or name another model.",
        )
    return source, checkpoint, title, checkpoint is not None


def _next_commands(report: ExportReport, checkpoint: Path | None) -> list[str]:
    """What to run now; a file of untrained weights has nothing to verify or to infer."""
    file = shlex.quote(str(report.path))
    if report.dry_run:
        return []
    if checkpoint is None:
        return [f"capsedge inspect {file}"]
    return [
        f"capsedge verify {file} --checkpoint {shlex.quote(str(checkpoint))}",
        f"capsedge infer --model {file} image.png",
    ]


def _print(report: ExportReport, name: str, checkpoint: Path | None, following: list[str]) -> None:
    def shapes(values: dict[str, list[int | str]]) -> str:
        return ", ".join(f"{k} {v}".replace("'", "") for k, v in values.items())

    worst = max(report.parity, key=lambda p: p.excess)
    lines: dict[str, Any] = {
        "model": f"{name} ({checkpoint or 'untrained weights'})",
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
    if following:
        log("next:", *(f"  {line}" for line in following))
