"""``capsedge sweep``: finds the Pareto front of accuracy (or Dice), latency and size over many files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from capsedge.cli import _options
from capsedge.cli._options import grouped
from capsedge.cli._output import log, print_report, require_packages, say
from capsedge.cli._paths import READS_DATA, READS_OR_NAME, WRITES
from capsedge.optimization.sweep_options import SweepOptions
from capsedge.options import Option
from capsedge.runtime.zoo import DEFAULT

Data = Annotated[
    Path,
    Option(
        "--data",
        help=(
            "Data set folder: the training split for calibration and search, the test split for "
            "the report. For a segmentation, with images/ and masks/."
        ),
    ),
    READS_DATA,
]
Checkpoints = Annotated[
    list[Path] | None,
    Option(
        "--checkpoint",
        metavar="NAME|FILE",
        help="Checkpoint, .safetensors or .pt, or a name from the zoo (digits-em); the zoo's digit model by "
        "default. Repeatable, for example for a network and its pruned versions.",
        complete="trained",
    ),
    READS_OR_NAME,
]
Output = Annotated[Path | None, Option("-o", "--output", help="Write the points as JSON."), WRITES]
Picture = Annotated[
    Path | None,
    Option("--picture", help="Draw the points and the front: .png or .svg."),
    WRITES,
]


@grouped
def command(
    data: Data,
    options: SweepOptions,
    checkpoint: Checkpoints = None,
    output: Output = None,
    picture: Picture = None,
    as_json: _options.Json = False,
) -> None:
    """Search for the best trade-off of accuracy, latency and size.

    The candidates combine routing iterations, couplings, precisions and checkpoints. Files of a segmentation
    are compared by the mean Dice of their masks.
    """
    require_packages(
        "onnx", "onnxruntime", "torch",
        what="A sweep exports the model, which needs PyTorch and ONNX.",
        fix="pip install 'capsedge[export]'",
    )  # fmt: skip
    from capsedge.optimization.sweep import draw, sweep
    from capsedge.runtime.files.writing import check_writable, write_text
    from capsedge.runtime.result_summary import check_picture

    if output is not None:
        check_writable(output)
    if picture is not None:
        check_picture(picture)
    models = [str(each) for each in checkpoint] if checkpoint else [DEFAULT]
    swept = sweep(models, data, options, progress=log)
    if output is not None:
        write_text(output, json.dumps(swept.to_dict(), indent=2) + "\n")
    if picture is not None:
        draw(swept, picture)
    print_report(swept, as_json)
    if options.keep is not None and not as_json:
        say(*(f"{options.keep / point.file}" for point in swept.front))
