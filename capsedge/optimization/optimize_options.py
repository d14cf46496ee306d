"""Declare the options of ``optimize``, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from capsedge.errors import UsageError
from capsedge.options import LONGEST_SECONDS, Options, option, parse_whole

LARGEST_BATCH = 4096
Batch = int | Literal["free", "keep"]


def _batch(text: str) -> int | str:
    try:
        return parse_whole(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class OptimizeOptions(Options):
    """How `capsedge.optimize` treats a file."""

    measure: float = option(
        1.0,
        "Seconds of timing for the file before and after; 0 skips it.",
        min=0,
        max=LONGEST_SECONDS,
    )
    batch: Batch = option(
        "free",
        "free: make a fixed batch free if the results stay the same; keep: leave it; N: fix it at N images.",
        metavar="free|keep|N",
        parse=_batch,
        complete=("free", "keep"),
    )

    def __post_init__(self) -> None:
        """Check the batch, too.

        Raises:
            UsageError: a value is wrong.
        """
        super().__post_init__()
        number = isinstance(self.batch, int) and 1 <= self.batch <= LARGEST_BATCH
        if self.batch not in ("free", "keep") and not number:
            raise UsageError(
                f"Invalid batch {self.batch!r:.40}.",
                f"It must be 'free', 'keep' or a number of images from 1 to {LARGEST_BATCH}.",
                "Leave it out: the batch becomes free if the results stay the same.",
            )
