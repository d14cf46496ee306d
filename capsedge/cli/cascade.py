"""``capsedge cascade``: joins a small network with a large one, which decides escalated images."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from capsedge.cli import _options
from capsedge.cli._options import Argument, grouped
from capsedge.cli._output import log_next, print_report, require_packages, stages
from capsedge.cli._paths import READS_DATA, READS_MODEL, WRITES, default_output
from capsedge.errors import ParityError
from capsedge.optimization.cascade_options import CascadeOptions
from capsedge.options import Option

Small = Annotated[
    Path,
    Argument(
        help="The ONNX file that runs first, on every image; or a name from the zoo.",
        complete="zoo",
    ),
    READS_MODEL,
]
Large = Annotated[
    Path,
    Argument(
        help="The ONNX file that decides the escalated images; or a name from the zoo.",
        complete="zoo",
    ),
    READS_MODEL,
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
Output = Annotated[
    Path | None,
    Option("-o", "--output", help="The ONNX file; LARGE.cascade.onnx by default."),
    WRITES,
]


@grouped
def command(
    small: Small,
    large: Large,
    data: Data,
    options: CascadeOptions,
    output: Output = None,
    as_json: _options.Json = False,
) -> None:
    """Join a small and a large network in one file.

    The small network decides, and passes on the images that it is unsure of to the large one.

    If the agreement is not reached, or too many images are escalated, no file is written and the exit
    code is 4.
    """
    require_packages(
        "onnx", "onnxruntime",
        what="Joining two networks needs onnx and ONNX Runtime.",
        fix="pip install 'capsedge[build]'",
    )  # fmt: skip
    from capsedge.optimization.cascade import cascade

    try:
        with stages() as progress:
            report = cascade(
                small,
                large,
                output or default_output(large, f"{large.stem}.cascade.onnx"),
                options,
                data=data,
                progress=progress,
            )
    except ParityError as error:
        if not as_json:  # the error then becomes the document
            print_report(error.report, as_json)
        raise
    print_report(report, as_json)
    if not as_json:
        from capsedge.runtime.load import load
        from capsedge.runtime.metadata.metadata import Provenance, provenance_of, reference_options
        from capsedge.runtime.zoo import checkpoint_option

        # A cascade is compared with the large network's source.
        if provenance_of(load(large).metadata) is Provenance.CHECKPOINT:
            reference = checkpoint_option(large, report.cascade.large.checkpoint_sha256)
        else:
            reference = f" {reference_options(load(large).metadata)}"
        file, images = shlex.quote(str(report.output)), shlex.quote(str(data))
        log_next(f"capsedge verify {file}{reference} --data {images}")
