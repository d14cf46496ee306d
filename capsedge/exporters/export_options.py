"""Declare the options of ``export``, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from capsedge.options import Options, option, parse_tolerance
from capsedge.spec import limits
from capsedge.spec.vocabularies import ExtraOutput, Ops, StandardRuntime

ATOL, RTOL = 1e-5, 1e-4
LARGEST_BATCH = 4096
Rewrite = Literal["first-pass", "light-cone", "dead-update", "logit-free"]
# By the fields of `capsedge.graph.Rewrites`.
REWRITES: dict[Rewrite, str] = {
    "first-pass": "first_pass_uniform",
    "light-cone": "light_cone",
    "dead-update": "dead_update",
    "logit-free": "logit_free",
}


@dataclass(frozen=True)
class ExportOptions(Options):
    """How `capsedge.export` writes a file."""

    iterations: int | None = option(
        None,
        "Routing iterations; by default the model's own.",
        "--iters",
        min=1,
        max=limits.ITERATIONS,
        panel="Network",
    )
    ops: Ops = option(
        "auto",
        "auto: capsule operators with function bodies; fused: without bodies; portable: standard "
        "operators only.",
    )
    opset: int = option(20, "ONNX opset.", min=18, max=21)
    batch: int | None = option(
        None, "Fixed batch size, instead of a free one.", min=1, max=LARGEST_BATCH
    )
    target: StandardRuntime | None = option(
        None, "Write the file for another runtime: openvino, litert or mnn. Sets --ops and --batch."
    )
    extra_outputs: tuple[ExtraOutput, ...] = option(
        (),
        "Additional outputs: reconstruction, couplings, trace; of your own network only trace.",
        "--with",
    )
    no_rewrite: tuple[Rewrite, ...] = option((), "Leave out exact rewrites.", python_only=True)
    output_names: tuple[str, ...] = option(
        (),
        "Names of the outputs of your own network, instead of those of its dict or named tuple.",
        python_only=True,
    )
    tolerance: tuple[float, float] = option(
        (ATOL, RTOL),
        "Tolerance of the comparison: absolute, and relative to the length of a pose.",
        metavar="ATOL,RTOL",
        parse=parse_tolerance,
        panel="Limits",
    )
    checkpoint_sha256: str = option(
        "",
        "Checksum of the checkpoint of the weights, by which `verify` finds it.",
        python_only=True,
    )
