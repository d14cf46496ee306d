"""Declare the options of ``profile``, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass

from capsedge.errors import UsageError
from capsedge.options import LARGEST_BATCH, LARGEST_COUNT, LONGEST_SECONDS, Options, option


@dataclass(frozen=True)
class ProfileOptions(Options):
    """What `capsedge.profile` measures, and for how long."""

    batch: tuple[int, ...] = option((1,), "Batch sizes, for example 1,8.", min=1, max=LARGEST_BATCH)
    warmup: float = option(
        0.5,
        "Seconds of untimed runs beforehand.",
        min=0,
        max=LONGEST_SECONDS,
        panel="Measurement",
    )
    duration: float = option(
        3.0,
        "Seconds of timed runs.",
        min=0,
        max=LONGEST_SECONDS,
        panel="Measurement",
    )
    iterations: int = option(
        10,
        "Minimum number of timed runs.",
        min=1,
        max=LARGEST_COUNT,
        panel="Measurement",
    )
    operators: bool = option(
        True,
        "Time every operator.",
        "--operators/--no-operators",
        panel="Measurement",
    )
    startup: bool = option(
        True, "Start a separate process for cold start and memory.", python_only=True
    )

    def __post_init__(self) -> None:
        """Take the batch sizes in ascending order, each once.

        Raises:
            UsageError: a value is wrong.
        """
        super().__post_init__()
        if not self.batch:
            raise UsageError("No batch size was given.", "", "For example: 1,8.")
        object.__setattr__(self, "batch", tuple(sorted(set(self.batch))))
