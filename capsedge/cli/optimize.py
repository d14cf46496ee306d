"""``capsedge optimize``: fuses the routing of any ONNX file, cleans up the rest, verifies the result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from capsedge.cli import _options
from capsedge.cli._options import Argument, MetadataOptions, Typical, grouped
from capsedge.cli._output import print_report, require_packages, stage_reporter
from capsedge.cli._paths import READS_MODEL, WRITES, default_output
from capsedge.optimization.optimize_options import OptimizeOptions
from capsedge.options import Option

Model = Annotated[
    Path,
    Argument(help="ONNX file from any tool, opset 8 or later.", complete="zoo"),
    READS_MODEL,
]
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
    require_packages(
        "onnx", "onnxscript", "onnxruntime",
        what="Optimizing needs onnx, onnxscript and ONNX Runtime.",
        fix="pip install 'capsedge[build]'",
    )  # fmt: skip
    from capsedge.optimization.optimize import optimize

    done = optimize(
        model,
        output or default_output(model, f"{model.stem}.fused.onnx"),
        options,
        description=described.description(typical_data),
        progress=stage_reporter(as_json),
    )
    print_report(done, as_json)
