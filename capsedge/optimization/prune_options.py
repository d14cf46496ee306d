"""Declare the options of ``prune``, for Python and the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass

from capsedge.errors import UsageError
from capsedge.options import Options, option

CRITERIA = ("taylor", "look-ahead")


@dataclass(frozen=True)
class PruneOptions(Options):
    """How `capsedge.prune` shrinks a network, and how much accuracy it may lose."""

    limit: int | None = option(
        None, "Use only N images of each split, chosen at random.", min=1, metavar="N"
    )
    target_speedup: float | None = option(
        None,
        "Factor by which multiply-adds are reduced; by default as far as --max-drop allows on held-out "
        "training images.",
    )
    max_drop: float = option(0.1, "Allowed loss of accuracy in percentage points.", min=0)
    criterion: str = option(
        "taylor",
        "taylor (change of the loss, first order) or look-ahead (norms of the weights).",
        choices=CRITERIA,
    )
    epochs: int = option(
        6, "Epochs of fine-tuning in the last round; earlier rounds have a tenth.", min=1
    )
    learning_rate: float | None = option(
        None, "Peak learning rate; by default 0.3 times the checkpoint's own.", "--lr"
    )
    fast: bool = option(
        False, "Fine-tune with the fast arithmetic of `capsedge train --fast`.", "--fast"
    )
    seed: int = option(1, "Seed of the held-out images and of fine-tuning.")
    resume: bool = option(False, "Continue the rounds in OUTPUT.pruning.", "--resume")

    def __post_init__(self) -> None:
        """Check the values, including the speedup.

        Raises:
            UsageError: a value is wrong.
        """
        super().__post_init__()
        if self.target_speedup is not None and not 1 < self.target_speedup < math.inf:
            raise UsageError(
                f"The target speedup is {self.target_speedup:g}.", "It must be above 1.", "Use 4."
            )
