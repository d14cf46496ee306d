"""Declare the options of ``sweep``, for Python and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from capsedge.errors import UsageError
from capsedge.options import LARGEST_COUNT, Options, bounds, iteration_counts, option, within
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
    )
    threads: int = option(
        2,
        "Threads of one inference.",
        min=1,
        max=limits.RUN_THREADS,
        panel="Execution",
    )
    keep: Path | None = option(
        None, "Folder for the files; an interrupted sweep continues there.", path="keeps"
    )

    def __post_init__(self) -> None:
        """Refuse an empty list; name each candidate once.

        Raises:
            UsageError: a value is wrong.
        """
        super().__post_init__()
        counts: Any = self.iterations
        if isinstance(counts, str) or not isinstance(counts, Iterable):
            raise UsageError(f"Invalid iterations {counts!r:.40}.", "It must be a tuple.")
        for count in counts:
            number = isinstance(count, Integral) and not isinstance(count, bool)
            if not (number and within(count, 1, limits.ITERATIONS)):
                raise UsageError(
                    f"Invalid iterations {count!r:.40}.",
                    f"They are whole numbers {bounds(1, limits.ITERATIONS)}.",
                )
        for name in ("iterations", "couplings", "precision"):
            values = tuple(dict.fromkeys(getattr(self, name)))
            if not values:
                raise UsageError(f"No {name} were given.", "", "Leave the option out.")
            object.__setattr__(self, name, values)

    @property
    def size(self) -> int:
        """Number of candidates per checkpoint."""
        return len(self.iterations) * len(self.couplings) * len(self.precision)
