"""Describe values of a weight that are not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.files.text import printable

DIVERGED = (
    "Training diverged: take an earlier checkpoint, or train again with a lower learning rate and an "
    "epsilon below the square root of squash."
)
_LISTED = 5


def not_finite(name: str, values: NDArray[Any], infinite: bool = False) -> str:
    """The name of a weight, how many of its values are not finite, and the first; empty if all are.

    Args:
        infinite: whether its values may be infinite, as those of a mask.
    """
    bad = np.isnan(values) if infinite else ~np.isfinite(values)
    count = int(np.count_nonzero(bad))
    if not count:
        return ""
    first = [int(k) for k in np.unravel_index(int(bad.argmax()), bad.shape)]
    return (
        f"{printable(name)} {list(values.shape)}: {count} of {bad.size}, "
        f"the first is {float(values[tuple(first)]):g} at {first}"
    )


def listed(lines: Sequence[str]) -> list[str]:
    """The first lines, and the number of others."""
    more = len(lines) - _LISTED
    return [*lines[:_LISTED], *([f"and {more} more"] if more > 0 else [])]
