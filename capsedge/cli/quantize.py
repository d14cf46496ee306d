"""``capsedge quantize``: converts an FP32 file to INT8, FP16 or both, subject to an accuracy gate."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsedge.calibration.quantize_options import QuantizeOptions
from capsedge.cli import _options
from capsedge.cli._options import grouped
from capsedge.cli._output import log_next, print_json, print_table, require, say, stages, warn
from capsedge.cli._parameters import Argument, Option
from capsedge.cli._paths import READS_DATA, READS_MODEL, WRITES, PathRole
from capsedge.errors import ParityError, UsageError
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.files.writing import REJECTED, with_suffix_appended

if TYPE_CHECKING:
    from capsedge.calibration.mixed_precision import Damage, PrecisionSearch
    from capsedge.calibration.quantization_report import QuantizationReport

LISTED = 12  # kept nodes printed; --json lists all
Model = Annotated[Path, Argument(help="The FP32 ONNX file."), READS_MODEL]
CalibData = Annotated[
    Path,
    Option(
        "--calib-data",
        help=(
            "Calibration images: data set folder (its training split), npz, npy, idx or images; "
            "prepared arrays for a file without preprocessing."
        ),
    ),
    READS_DATA,
]
Data = Annotated[
    Path | None,
    Option(
        "--data",
        help=(
            "Images for the comparison with FP32, labelled to measure accuracy; by default the "
            "test split of --calib-data, or its remaining images."
        ),
    ),
    READS_DATA,
]
Sensitivity = Annotated[
    bool,
    Option(
        "--sensitivity",
        help="Rank layers and routing iterations by the error that 8 bits cause; write no file.",
    ),
]
Picture = Annotated[
    Path | None,
    Option("--picture", help="For mixed precision: draw the search, as .png or .svg."),
    WRITES,
]
Output = Annotated[
    Path | None,
    Option("-o", "--output", help="The ONNX file; MODEL.PRECISION.onnx by default."),
    PathRole(written=lambda path: [path, with_suffix_appended(path, REJECTED)]),
]


@grouped
def command(
    model: Model,
    calib_data: CalibData,
    options: QuantizeOptions,
    data: Data = None,
    sensitivity: Sensitivity = False,
    picture: Picture = None,
    output: Output = None,
    as_json: _options.Json = False,
) -> None:
    """Convert an FP32 file to INT8, FP16 or mixed precision.

    If the new file loses too much accuracy, it is named .rejected and the exit code is 4.
    """
    require(
        "onnx", "onnxruntime", "onnxscript",
        what="Quantizing needs onnx, onnxscript and ONNX Runtime.",
        fix="pip install 'capsedge[build]'",
    )  # fmt: skip
    if picture is not None:
        _check_picture(picture, options.precision == "mixed" and not sensitivity)
    if sensitivity:
        _rank(model, options, calib_data, data, as_json)
        return
    output = output or model.with_name(f"{model.stem}.{options.precision}.onnx")
    report = _quantized(model, output, options, calib_data, data)
    if picture is not None and report.search is not None:
        from capsedge.calibration.mixed_precision import draw

        draw(report.search, report.gate, picture)
    if as_json:
        print_json(report.to_dict())
    else:
        show(report)
        _log_next(report, model, data or calib_data)


def _rank(
    model: Path, options: QuantizeOptions, calib_data: Path, data: Path | None, as_json: bool
) -> None:
    from capsedge.calibration import quantize

    with stages() as progress:
        ranked = quantize.sensitivity(
            model, options, calib_data=calib_data, data=data, progress=progress
        )
    warn(*ranked.warnings)
    if as_json:
        print_json({"model": str(model), "damage": [d.to_dict() for d in ranked.damage]})
    else:
        _show_damage(ranked.damage)


def _quantized(
    model: Path, output: Path, options: QuantizeOptions, calib_data: Path, data: Path | None
) -> QuantizationReport:
    from capsedge.calibration import quantize

    try:
        with stages() as progress:
            report = quantize.quantize(
                model, output, options, calib_data=calib_data, data=data, progress=progress
            )
    except ParityError as error:
        warn(*error.report.warnings)
        raise
    warn(*report.warnings)
    return report


def _check_picture(picture: Path, searched: bool) -> None:
    from capsedge.runtime.result_summary import check_picture

    if not searched:
        raise UsageError(
            "--picture needs --precision mixed.",
            "It draws the mixed-precision search.",
            "Add --precision mixed.",
        )
    check_picture(picture)


def _log_next(report: QuantizationReport, model: Path, data: Path) -> None:
    """Print the next command."""
    from capsedge.runtime.zoo import checkpoint_option

    if report.foreign:
        log_next(f"capsedge profile {shlex.quote(str(model))} {shlex.quote(str(report.output))}")
        return
    file, images = shlex.quote(str(report.output)), shlex.quote(str(data))
    if report.user_module:
        reference = f" --module CODE.py:{shlex.quote(report.user_module)} --weights WEIGHTS"
    else:
        reference = checkpoint_option(model, report.checkpoint_sha256)
    log_next(f"capsedge verify {file}{reference} --data {images}")


def _show_damage(found: Sequence[Damage]) -> None:
    print_table(
        "Damage of each alone in 8 bits, largest first",
        ("", "kind", "score error", "agreement", "accuracy", "saved"),
        [
            (
                d.name,
                d.kind,
                f"{d.outcome.error:.2e}",
                f"{100 * d.outcome.agreement:.2f} %",
                d.outcome.change,
                format_bytes(d.saved) if d.saved > 0 else "-",
            )
            for d in found
        ],
    )


def show(report: QuantizationReport) -> None:
    """Print a report as text."""
    rows = [
        ("file", str(report.output)),
        ("precision", f"{report.precision} for {report.target}"),
        (
            "size",
            f"{format_bytes(report.size)}, {report.size / report.source_size:.3f} of FP32 "
            f"({report.source_size / report.size:.2f} times smaller)",
        ),
        ("calibration", f"{report.images['calibration']} {report.noun}, {report.method}"),
        ("judged by", report.criterion),
        ("judged on", report.images["evaluated_on"]),
        *_verdict(report),
    ]
    print_table("Quantized", ("", ""), rows)
    print_table(
        "Executed by ONNX Runtime on this machine (read back from its optimized graph)",
        ("operator", "precision", "nodes"),
        [(e.op, e.precision, str(e.count)) for e in report.executed_precision],
    )
    if report.kept:
        print_table(
            "Kept in FP32",
            ("node", "operator", "rule", "numbers"),
            [(k.node, k.op, k.rule, k.numbers) for k in report.kept[:LISTED]],
        )
        if len(report.kept) > LISTED:
            say(f"and {len(report.kept) - LISTED} more (--json lists all)", "")
    if report.search is not None:
        show_search(report.search)


def _verdict(report: QuantizationReport) -> list[tuple[str, str]]:
    """The loss, and the allowed loss."""
    o, allowed = report.outcome, f"allowed {report.max_drop:g}"
    if o.outputs:
        most = f"allowed {report.gate.max_error:g}"
        return [
            (
                e.name,
                f"mean error {e.mean:.4g}, {100 * e.mean_share:.3f} % of its range ({allowed}); largest "
                f"{e.largest:.4g}, {100 * e.largest_share:.2f} % ({most}); {o.images} {report.noun}"
                + (
                    ""
                    if e.cosine is None
                    else f"; mean cosine of its vectors {e.cosine:.5f} (at least {report.gate.min_cosine:g})"
                ),
            )
            for e in o.outputs
        ]
    agreement = f"{100 * o.agreement:.2f} % of {o.images} {report.noun}"
    if o.accuracy is None or o.reference is None:
        agreement += f": {o.drop:.2f} points of answers changed ({allowed})"
        margins = f"changed answers up to {o.largest_changed_margin:.3g}, median of all {o.median_margin:.3g}"
        return [("agreement", agreement), ("FP32's margins", margins)]
    accuracy = f"{100 * o.accuracy:.2f} %, FP32 {100 * o.reference:.2f} %: {o.change} ({allowed})"
    return [("agreement", agreement), ("accuracy", accuracy)]


def show_search(search: PrecisionSearch) -> None:
    """Print the Pareto table."""
    from capsedge.calibration.mixed_precision import levels

    whole = max(c.bytes for c in search.candidates)
    print_table(
        f"Pareto front of {len(search.candidates)} candidates (size, time per image, score error)",
        ("size", "smaller", "ms", "accuracy", "agreement", "", "assignment"),
        [
            (
                format_bytes(c.bytes),
                f"{whole / c.bytes:.2f}x",
                f"{c.milliseconds:.2f}",
                c.outcome.change,
                f"{100 * c.outcome.agreement:.2f} %",
                "ok" if c.fits else "over",
                levels(c.assignment),
            )
            for c in search.pareto()
        ],
    )
