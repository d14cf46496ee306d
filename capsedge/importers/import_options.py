"""Declare the options of ``import``, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from capsedge.options import LARGEST_COUNT, Options, option
from capsedge.spec import limits


@dataclass(frozen=True)
class ImportOptions(Options):
    """What `capsedge.import_checkpoint` cannot read from a file of weights, and how it checks the network."""

    family: str | None = option(
        None,
        "The family, where the file does not identify it; see --list.",
        panel="Details that the file does not record",
        complete="families",
    )
    iterations: int | None = option(
        None,
        "Routing iterations, as the author's code counts them.",
        "--iters",
        min=0,
        max=limits.ITERATIONS,
        panel="Details that the file does not record",
    )
    variant: str | None = option(
        None,
        "The family's variant, where the file fits several.",
        panel="Details that the file does not record",
        complete="variants",
    )
    inverse_temperature: float | None = option(
        None,
        "λ of EM routing, if the author's code takes it as an argument.",
        min=0,
        max=1e6,
        panel="Details that the file does not record",
    )
    key_map: Path | None = option(
        None,
        "TOML file that renames and transposes the tensors of other networks.",
        "--map",
        path="reads",
        panel="Details that the file does not record",
    )
    reference_code: str | None = option(
        None,
        "Compare with the author's own module, author.py:build. This runs the code.",
        path="code",
        panel="Comparison with the author's code",
    )
    data: Path | None = option(
        None,
        "Labelled images, or images with values to estimate: measures accuracy or errors, also of the "
        "alternatives.",
        path="data",
        panel="Comparison with the author's code",
    )
    limit: int = option(
        1000,
        "Use only the first N images.",
        min=1,
        max=LARGEST_COUNT,
        panel="Comparison with the author's code",
    )
