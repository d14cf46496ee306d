"""Declare the options of ``verify``, for Python and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from capsedge.options import LARGEST_COUNT, Options, option, parse_tolerance
from capsedge.spec.vocabularies import OPS

# The name of an output, or "" for all others, with its absolute and its relative part.
OutputTolerance = tuple[str, float, float]


def parse_output_tolerance(text: str) -> OutputTolerance:
    """A tolerance of all outputs or of one, such as ``1e-5,1e-4`` or ``poses:1e-5,1e-4``.

    Raises:
        UsageError: the text has another form.
    """
    name, _, parts = text.rpartition(":")
    return (name, *parse_tolerance(parts))


def _listed(given: Any) -> Any:
    """What Python may pass, as the field holds it."""
    if isinstance(given, Mapping):
        return tuple((name, *parts) for name, parts in given.items())
    if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], tuple):
        return (("", *given),)
    return given


@dataclass(frozen=True)
class VerifyOptions(Options):
    """How `capsedge.verify` runs a file, and what it requires of it."""

    limit: int | None = option(
        None,
        "Only N samples: the first, or of class folders evenly spaced ones.",
        min=1,
        max=LARGEST_COUNT,
        panel="Images to evaluate on",
    )
    tolerance: (
        tuple[OutputTolerance, ...] | tuple[float, float] | Mapping[str, tuple[float, float]]
    ) = option(
        (),
        "Tolerance: absolute, and relative to the length of a pose, such as 1e-5,1e-4, or of one output: "
        "poses:1e-5,1e-4; repeatable.",
        metavar="[NAME:]ATOL,RTOL",
        parse=parse_output_tolerance,
        panel="Limits",
    )
    min_agreement: float | None = option(
        None,
        "Minimum share of equal decisions; 1 by default, less for quantized files.",
        min=0,
        max=1,
        panel="Limits",
    )
    ops: str = option(
        "auto",
        "auto, fused (operator library) or portable (function bodies).",
        choices=OPS,
        panel="Execution",
    )
    device: str | None = option(
        None,
        "cpu, cuda or cuda:1: the device that the file is compared on; by default the CPU, or the GPU for an "
        "engine.",
        panel="Execution",
        complete="devices",
    )
    made_from: Path | None = option(
        None,
        "The ONNX file that a folder of C was made from, which the C is compared with, unless --checkpoint "
        "or --module names its network in PyTorch.",
        "--reference",
        path="model",
    )

    def __post_init__(self) -> None:
        """Take one tolerance for all outputs, and a mapping of those of some.

        Raises:
            UsageError: a value is wrong.
        """
        object.__setattr__(self, "tolerance", _listed(self.tolerance))
        super().__post_init__()

    @property
    def tolerances(self) -> tuple[OutputTolerance, ...]:
        """The tolerances that are stated."""
        return cast(tuple[OutputTolerance, ...], self.tolerance)
