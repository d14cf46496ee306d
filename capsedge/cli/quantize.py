"""``capsedge quantize``: converts an FP32 file to INT8, FP16 or both, subject to an accuracy gate."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsedge.calibration.quantize_options import QuantizeOptions
from capsedge.cli import _options
from capsedge.cli._options import Argument, grouped
from capsedge.cli._output import log_next, print_report, require_packages, stages, warn
from capsedge.cli._paths import READS_DATA, READS_MODEL, WRITES, PathRole, default_output
from capsedge.errors import ParityError, UsageError
from capsedge.options import Option
from capsedge.runtime.files.writing import REJECTED, with_suffix_appended

if TYPE_CHECKING:
    from capsedge.calibration.quantization_report import QuantizationReport

Model = Annotated[
    Path,
    Argument(help="The FP32 ONNX file, or a name from the zoo (digits-em).", complete="zoo"),
    READS_MODEL,
]
CalibData = Annotated[
    Path,
    Option(
        "--calib-data",
        help=(
            "Calibration images: data set folder (its training split), npz, npy, idx or images; "
            "prepared arrays for a file without preprocessing."
        ),
        panel="Calibration",
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
        panel="Images to evaluate on",
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
    Option(
        "--picture",
        help="For mixed precision: draw the search, as .png or .svg.",
        panel="Mixed precision",
    ),
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
    require_packages(
        "onnx", "onnxruntime", "onnxscript",
        what="Quantizing needs onnx, onnxscript and ONNX Runtime.",
        fix="pip install 'capsedge[build]'",
    )  # fmt: skip
    if picture is not None:
        _check_picture(picture, options.precision == "mixed" and not sensitivity)
    if sensitivity:
        _rank(model, options, calib_data, data, as_json)
        return
    output = output or default_output(model, f"{model.stem}.{options.precision}.onnx")
    report = _quantized(model, output, options, calib_data, data)
    if picture is not None and report.search is not None:
        from capsedge.calibration.mixed_precision import draw

        draw(report.search, report.gate, picture)
    print_report(report, as_json)
    if not as_json:
        _log_next(report, model, data or calib_data)


def _rank(
    model: Path, options: QuantizeOptions, calib_data: Path, data: Path | None, as_json: bool
) -> None:
    from capsedge.calibration import quantize

    with stages() as progress:
        ranked = quantize.sensitivity(
            model, options, calib_data=calib_data, data=data, progress=progress
        )
    print_report(ranked, as_json, more={"model": str(model)})


def _quantized(
    model: Path, output: Path, options: QuantizeOptions, calib_data: Path, data: Path | None
) -> QuantizationReport:
    from capsedge.calibration import quantize

    try:
        with stages() as progress:
            return quantize.quantize(
                model, output, options, calib_data=calib_data, data=data, progress=progress
            )
    except ParityError as error:
        warn(*error.report.warnings)
        raise


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
