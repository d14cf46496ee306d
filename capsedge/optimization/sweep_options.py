"""Declare the options of ``sweep``, for Python and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from capsedge.errors import UsageError
from capsedge.options import LARGEST_COUNT, Options, iteration_counts, option
from capsedge.spec import limits
from capsedge.spec.vocabularies import SWEEP_PRECISIONS


@dataclass(frozen=True)
class SweepOptions(Options):
    """The candidates that `capsedge.sweep` makes, and how it measures them."""

    iterations: Sequence[int] = option(
        (1, 2, 3, 4, 5),
        "Routing iterations, for example 1..5 or 1,3.",
        "--iters",
        metavar="COUNTS",
        parse=iteration_counts,
    )
    couplings: tuple[Literal["routed", "frozen"], ...] = option(
        ("routed",), "routed, frozen (at their mean), or both: routed,frozen."
    )
    precision: tuple[str, ...] = option(
        SWEEP_PRECISIONS,
        "Any of fp32, fp16, int8, for example fp32,int8.",
        choices=SWEEP_PRECISIONS,
    )
    limit: int | None = option(
        None,
        "Use only N evaluation images, chosen at random.",
        min=1,
        max=LARGEST_COUNT,
        metavar="N",
    )
    threads: int = option(2, "Threads of one inference.", min=1, max=limits.RUN_THREADS)
    keep: Path | None = option(
        None, "Folder for the files; an interrupted sweep continues there.", path="keeps"
    )

    def __post_init__(self) -> None:
        """Refuse an empty list; name each candidate once.

        Raises:
            UsageError: a value is wrong.
        """
        super().__post_init__()
        for name in ("iterations", "couplings", "precision"):
            found = tuple(dict.fromkeys(getattr(self, name)))
            if not found:
                raise UsageError(f"No {name} were given.", "", "Leave the option out.")
            object.__setattr__(self, name, found)

    @property
    def size(self) -> int:
        """Number of candidates per checkpoint."""
        return len(self.iterations) * len(self.couplings) * len(self.precision)
