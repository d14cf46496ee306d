"""Declare the options of ``cascade``, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass

from capsedge.options import LARGEST_COUNT, LARGEST_SEED, Options, option


@dataclass(frozen=True)
class CascadeOptions(Options):
    """The requirements of `capsedge.cascade`."""

    min_agreement: float = option(
        0.9995,
        "Minimum share of held-out images with the large network's decision.",
        min=0,
        max=1,
        panel="Limits",
    )
    max_share: float = option(
        0.5,
        "Maximum share of images that may be escalated.",
        min=0,
        max=1,
        panel="Limits",
    )
    limit: int = option(
        10_000,
        "Use only N images of --data, chosen at random: half for thresholds, half for measurement.",
        min=4,
        max=LARGEST_COUNT,
    )
    seed: int = option(0, "Seed for choosing images at random.", min=0, max=LARGEST_SEED)
