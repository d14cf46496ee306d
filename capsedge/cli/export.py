"""``capsedge export``: exports a trained network to one ONNX file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from capsedge.cli import _options
from capsedge.cli._options import MetadataOptions, Typical, UserModuleOptions, grouped
from capsedge.cli._output import (
    log,
    log_next,
    print_report,
    require_packages,
    stage_reporter,
    warn,
)
from capsedge.cli._paths import READS, READS_ARRAYS, WRITES
from capsedge.errors import UsageError
from capsedge.exporters.export_options import ExportOptions
from capsedge.options import LARGEST_COUNT, Option, Options, option
from capsedge.spec.vocabularies import ZOO_ROUTINGS

if TYPE_CHECKING:
    from capsedge.exporters.export_report import ExportReport
    from capsedge.models.user.module import UserModuleSpec
    from capsedge.runtime.user_metadata import Description

Routing = Annotated[
    str | None,
    Option(
        "--routing",
        help="Which of the zoo's models: dynamic (the default), em or attention.",
        panel="Network",
        complete=ZOO_ROUTINGS,
    ),
]
Output = Annotated[
    Path | None,
    Option("-o", "--output", help="The ONNX file; MODEL.onnx by default."),
    WRITES,
]
Example = Annotated[
    list[str] | None,
    Option(
        "--example",
        help=(
            "Input of --module without the batch, such as 1x28x28; several separated by commas or each "
            "with its own --example, with names and types as in hist:*50:int64,user:int64 (* before an "
            "axis that stays free); or an .npy or .npz file. By default that of --inputs."
        ),
        panel="Your own network",
    ),
    READS_ARRAYS,
]
DryRun = Annotated[bool, Option("--dry-run", help="Do everything except write the file.")]


CheckInputs = Annotated[
    Path | None,
    Option(
        "--inputs",
        help=(
            "Your own inputs, .npy or .npz, batch first. They are compared too, and for hard "
            "cases outside their range, a difference is only a warning."
        ),
        panel="Limits",
    ),
    READS,
]


@dataclass(frozen=True)
class FrozenOptions(Options):
    """Frozen couplings, an approximation."""

    freeze_couplings: bool = option(
        False,
        "Replace the routing by couplings averaged over --calib-data: an approximation, whose error is "
        "measured.",
        panel="Frozen couplings",
    )
    calib_data: Path | None = option(
        None,
        "Data set folder, npz, idx or images for --freeze-couplings.",
        path="data",
        panel="Frozen couplings",
    )
    calib_images: int = option(
        512,
        "Number of images drawn from --calib-data.",
        min=2,
        max=LARGEST_COUNT,
        panel="Frozen couplings",
    )

    def check(self, converted: bool) -> None:
        """Refuse options that do not go together.

        Args:
            converted: whether the file is written for another runtime, in another form, or not at all.
        """
        if self.freeze_couplings != (self.calib_data is not None):
            raise UsageError(
                "--freeze-couplings and --calib-data must be used together.",
                "Couplings are averaged over the images of --calib-data.",
                "Pass both, or neither.",
            )
        if self.freeze_couplings and converted:
            raise UsageError(
                "Frozen couplings need a file with capsule operators.",
                "--dry-run does not write it, and --ops portable, --ops fused and --target convert it.",
                "Leave out --dry-run, --ops and --target.",
            )


@grouped
def command(
    user_module: UserModuleOptions,
    options: ExportOptions,
    frozen: FrozenOptions,
    described: MetadataOptions,
    checkpoint: _options.Checkpoint = None,
    routing: Routing = None,
    typical_data: Typical = None,
    example: Example = None,
    check_inputs: CheckInputs = None,
    output: Output = None,
    dry_run: DryRun = False,
    as_json: _options.Json = False,
) -> None:
    """Export a trained network to one ONNX file.

    The file is compared with PyTorch before it is written. If a difference exceeds the tolerance, nothing
    is written and the exit code is 4.
    """
    frozen.check(dry_run or options.target is not None or options.ops != "auto")
    own = user_module.spec(
        checkpoint=checkpoint, routing=routing, iters=options.iterations,
        **{"freeze-couplings": frozen.freeze_couplings},
    )  # fmt: skip
    shapes = _example(own, example or [], check_inputs)
    require_packages(
        "onnx", "onnxruntime", "onnxscript", "torch",
        what="Export needs PyTorch and ONNX.", fix="pip install 'capsedge[export]'",
    )  # fmt: skip
    description = described.description(typical_data)
    job = _ExportArguments(options, description, check_inputs, output, dry_run, as_json)
    if own is not None:
        _export_user_module(own, shapes, job)
    else:
        _export_known(checkpoint, routing, frozen, job)


class _ExportArguments(NamedTuple):
    """The settings shared by exports of the user's own networks and of the package's."""

    options: ExportOptions
    description: Description
    check_inputs: Path | None
    output: Path | None
    dry_run: bool
    as_json: bool


def _export_user_module(subject: UserModuleSpec, example: str, job: _ExportArguments) -> None:
    from capsedge.exporters.export import export
    from capsedge.models.user.example_inputs import read_example
    from capsedge.models.user.module import load_user_module
    from capsedge.runtime.files.writing import check_apart, sha256

    own = load_user_module(subject)
    inputs = read_example(example, own.module)
    unchecked = own.check_saved(inputs.tensors, job.options.batch or 0)
    for note in own.notes:
        log(f"note: {note}")
    if own.weights is None:
        warn(
            f"no --weights: exporting {own.name} with its initial weights (random weights "
            "are drawn with seed 0)."
        )
    target = job.output or Path(f"{own.name.lower()}.onnx")
    if own.code is not None and not job.dry_run:
        check_apart([target], [own.code])
    checksum = sha256(own.weights) if own.weights else ""
    report = export(
        own.module,
        None if job.dry_run else target,
        replace(job.options, checkpoint_sha256=checksum),
        example=inputs.tensors,
        free_axes=inputs.free_axes,
        check_inputs=job.check_inputs,
        description=job.description,
        progress=stage_reporter(job.as_json),
    )
    report = replace(report, notes=(*report.notes, *unchecked))
    arrays = job.check_inputs or (Path(example) if example.endswith((".npy", ".npz")) else None)
    pictures = job.description.preprocessing is not None
    exported = ExportedNetwork(own.name, own.weights, subject, pictures, arrays)
    _show(report, exported, job.as_json, {"weights_sha256": checksum})


def _export_known(
    checkpoint: Path | None,
    routing: str | None,
    frozen: FrozenOptions,
    job: _ExportArguments,
) -> None:
    from capsedge.exporters.export import export
    from capsedge.exporters.frozen_couplings import export_frozen
    from capsedge.models.find import find_model
    from capsedge.runtime.files.writing import sha256

    found = find_model(checkpoint, routing)
    target = job.output or Path(f"{found.name}.onnx")
    default = checkpoint is None
    if default:
        log(
            f"exporting {found.name}, the default, because neither --module nor "
            "--checkpoint is given"
        )
    if not found.trained:
        warn(
            f"{found.name} has no trained weights in this package: exporting random "
            "initial weights. Use the file only to measure speed; its predictions are meaningless."
        )
    if found.model.config.fixed_batch is not None:
        log(
            f"note: the batch is fixed at {found.model.config.fixed_batch}, because the author's code "
            "averages over the batch"
        )
    checksum = sha256(found.checkpoint) if found.checkpoint else ""
    options = replace(job.options, checkpoint_sha256=checksum)
    subject = ExportedNetwork(found.name, found.checkpoint, default=default)
    if frozen.calib_data is None:
        report = export(
            found.model,
            None if job.dry_run else target,
            options,
            check_inputs=job.check_inputs,
            description=job.description,
        )
        _show(report, subject, job.as_json)
        return
    made = export_frozen(
        found.model, target, frozen.calib_data, frozen.calib_images, options,
        check_inputs=job.check_inputs, description=job.description,
    )  # fmt: skip
    warn(*made.warnings)
    _show(made.report, subject, job.as_json, {"frozen_couplings": made.measured})


def _example(subject: UserModuleSpec | None, example: list[str], inputs: Path | None) -> str:
    """The given example; without one, the user's own inputs."""
    if len(example) > 1 and any(each.endswith((".npy", ".npz")) for each in example):
        raise UsageError(
            "--example takes one file.",
            "An .npz file holds an array for each input.",
            "Pass a single .npz file, or the shape of each input.",
        )
    if subject is not None and not example:
        if inputs is not None:
            return str(inputs)
        raise UsageError(
            "--module needs --example.",
            "The input shape is otherwise unknown.",
            "Add the shape of one image, channels first: --example 1x28x28",
        )
    if subject is None and example:
        raise UsageError(
            "--example needs --module.",
            "The input shape of the package's models is known.",
            "Leave it out.",
        )
    return ",".join(example)


@dataclass(frozen=True)
class ExportedNetwork:
    """The exported network: its name, its weight file, and the user's code if it is the user's own.

    Attributes:
        pictures: whether the file states how images are preprocessed.
        inputs: the file of the user's own inputs; None if only shapes were given.
        default: whether it was chosen because the user named none.
    """

    name: str
    weights: Path | None
    is_user_module: UserModuleSpec | None = None
    pictures: bool = True
    inputs: Path | None = None
    default: bool = False

    @property
    def words(self) -> str:
        """The name, the weights, and whether it was chosen by default."""
        default = ", the default: --module or --checkpoint names another" if self.default else ""
        return f"{self.name} ({self.weights or 'untrained weights'}){default}"

    def following(self, report: ExportReport) -> list[str]:
        """The commands to run next; untrained weights can be neither verified nor used to infer."""
        file = shlex.quote(str(report.path))
        if report.dry_run:
            return []
        if self.is_user_module is not None:
            options = {
                "module": self.is_user_module.module,
                "weights": self.is_user_module.weights,
                "args": self.is_user_module.args,
            }
            given = "".join(f" --{k} {shlex.quote(v)}" for k, v in options.items() if v)
            given += f" --inputs {shlex.quote(str(self.inputs))}" if self.inputs else ""
            pictures = [f"capsedge infer --model {file} image.png"] if self.pictures else []
            return [
                f"capsedge verify {file}{given}",
                *pictures,
                f"capsedge profile {file} --compare torch{given}",
            ]
        if self.weights is None:
            return [f"capsedge inspect {file}"]
        return [
            f"capsedge verify {file} --checkpoint {shlex.quote(str(self.weights))}",
            f"capsedge infer --model {file} image.png",
        ]


def _show(
    report: ExportReport,
    subject: ExportedNetwork,
    as_json: bool,
    more: dict[str, Any] | None = None,
) -> None:
    following = subject.following(report)
    frozen = (more or {}).get("frozen_couplings")
    if frozen and not as_json:
        log(
            f"APPROXIMATION: the couplings are frozen at their mean over {frozen['averaged_images']} "
            "images; the file no longer routes."
        )
    print_report(
        report,
        as_json,
        *([] if frozen is None else _frozen_rows(frozen)),
        ("model", subject.words),
        more={
            "model": subject.name,
            "default_model": subject.default,
            "checkpoint": str(subject.weights) if subject.weights else None,
            "trained": subject.weights is not None,
            **(more or {}),
            "next": following,
        },
    )
    if following and not as_json:
        log_next(*following)


def _frozen_rows(frozen: dict[str, Any]) -> list[tuple[str, str]]:
    """The cost of frozen couplings."""
    accuracy = ""
    if frozen["accuracy"] is not None:  # it is None for a multi-label model
        after, routed = 100 * frozen["accuracy"], 100 * frozen["accuracy_fp32"]
        accuracy = f", accuracy {after:.2f} %, {routed:.2f} % routed"
    rows = [
        (
            "frozen",
            f"approximation: agreement {100 * frozen['agreement']:.2f} % with routing on "
            f"{frozen['images']} other images{accuracy} ({frozen['measured_on']})",
        )
    ]
    for name, layer in frozen["layers"].items():
        varied = f"{name}: couplings vary by {layer['deviation']:.4f} between images"
        rows.append(("", f"{varied} (equal couplings would be {layer['uniform']:.4f})"))
    return rows
