"""``capsedge cascade``: joins a small network and a large one, which decides what the small one escalates."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsedge.cli import _options
from capsedge.cli._output import log, print_json, print_table, require, say, stages
from capsedge.cli._parameters import Argument, Option
from capsedge.cli._paths import READS_DATA, READS_MODEL, WRITES
from capsedge.errors import ParityError

if TYPE_CHECKING:
    from capsedge.optimization.cascade import CascadeReport

Small = Annotated[
    Path, Argument(help="The ONNX file that runs first, on every image."), READS_MODEL
]
Large = Annotated[
    Path, Argument(help="The ONNX file that decides the escalated images."), READS_MODEL
]
Data = Annotated[
    Path,
    Option(
        "--data",
        help=(
            "Training images, labels not needed: data set folder (its training split), npz, npy, "
            "idx or images."
        ),
    ),
    READS_DATA,
]
MinAgreement = Annotated[
    float,
    Option(
        "--min-agreement",
        help="Minimum share of held-out images with the large network's decision.",
    ),
]
MaxShare = Annotated[
    float, Option("--max-share", help="Maximum share of images that may be escalated.")
]
Images = Annotated[
    int,
    Option(
        "--images",
        min=4,
        help="Number of images drawn from --data: half for the thresholds, half for the measurement.",
    ),
]
Output = Annotated[
    Path | None,
    Option("-o", "--output", help="The ONNX file; LARGE.cascade.onnx by default."),
    WRITES,
]
Seed = Annotated[int, Option("--seed", help="Seed for choosing images at random.")]


def command(
    small: Small,
    large: Large,
    data: Data,
    output: Output = None,
    min_agreement: MinAgreement = 0.9995,
    max_share: MaxShare = 0.5,
    images: Images = 10_000,
    seed: Seed = 0,
    as_json: _options.Json = False,
) -> None:
    """Join a small and a large network in one file.

    The small network decides, and passes on the images that it is unsure of to the large one.

    If the agreement is not reached, or too many images are escalated, no file is written and the exit
    code is 4.
    """
    require(
        "onnx", "onnxruntime",
        what="Joining two networks needs onnx and ONNX Runtime.",
        fix="pip install 'capsedge[build]'",
    )  # fmt: skip
    from capsedge.optimization.cascade import cascade

    try:
        with stages() as progress:
            report = cascade(
                small, large, output or large.with_name(f"{large.stem}.cascade.onnx"), data=data,
                min_agreement=min_agreement, max_share=max_share, images=images, seed=seed,
                progress=progress,
            )  # fmt: skip
    except ParityError as error:
        if not as_json:  # then the error is the document
            _show(error.report, as_json)
        raise
    _show(report, as_json)
    if not as_json:
        log(
            "next:",
            f"  capsedge verify {shlex.quote(str(report.output))} --data {shlex.quote(str(data))}",
        )


def _show(report: CascadeReport, as_json: bool) -> None:
    for warning in report.warnings:
        log(f"warning: {warning}")
    if as_json:
        print_json(report.to_dict())
        return
    print_table("Cascade", ("", ""), report.rows())
    say("PASSED" if report.passed else "FAILED")
