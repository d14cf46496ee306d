"""Declare the options of ``prune``, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass

from capsedge.options import (
    LARGEST_COUNT,
    LARGEST_RATE,
    LARGEST_SEED,
    LEAST_RATE,
    MOST_EPOCHS,
    Options,
    option,
)

CRITERIA = ("taylor", "look-ahead")


@dataclass(frozen=True)
class PruneOptions(Options):
    """How `capsedge.prune` shrinks a network, and how much accuracy it may lose."""

    limit: int | None = option(
        None,
        "Use only N images of each split, chosen at random.",
        min=1,
        max=LARGEST_COUNT,
    )
    target_speedup: float | None = option(
        None,
        "Factor by which multiply-adds are reduced; by default as far as --max-drop allows on held-out "
        "training images.",
        min=1.01,
        max=1000,
    )
    max_drop: float | None = option(
        None,
        "Allowed loss in percentage points: of accuracy, by default 0.1; for a segmentation of mean Dice, by "
        "default 0.5.",
        min=0,
        max=100,
        panel="Limits",
    )
    criterion: str = option(
        "taylor",
        "taylor (change of the loss, first order) or look-ahead (norms of the weights).",
        choices=CRITERIA,
        python_only=True,
    )
    epochs: int = option(
        6,
        "Epochs of fine-tuning in the last round; earlier rounds have a tenth.",
        min=1,
        max=MOST_EPOCHS,
        panel="Fine-tuning",
    )
    learning_rate: float | None = option(
        None,
        "Peak learning rate; by default 0.3 times the checkpoint's own.",
        "--lr",
        min=LEAST_RATE,
        max=LARGEST_RATE,
        panel="Fine-tuning",
    )
    fast: bool = option(
        False,
        "Fine-tune with the fast arithmetic of `capsedge train --fast`.",
        "--fast",
        panel="Fine-tuning",
    )
    seed: int = option(
        1, "Seed of the held-out images and of fine-tuning.", min=0, max=LARGEST_SEED
    )
    resume: bool = option(False, "Continue the rounds in OUTPUT.pruning.", "--resume")
