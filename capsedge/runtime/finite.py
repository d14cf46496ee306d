"""Describe values of a weight that are not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.files.text import printable

DIVERGED = (
    "Training diverged: take an earlier checkpoint, or train again with a lower learning rate and an "
    "epsilon below the square root of squash."
)
_LISTED = 5


@dataclass(frozen=True)
class NotFinite:
    """A stored tensor with values that are not finite.

    Attributes:
        name, shape: of the tensor.
        count: how many of its values are not finite.
        first: the position of the first of these.
        value: the first: ``nan``, ``inf`` or ``-inf``.
    """

    name: str
    shape: tuple[int, ...]
    count: int
    first: tuple[int, ...]
    value: str

    def __str__(self) -> str:
        return (
            f"{printable(self.name)} {list(self.shape)}: {self.count} of {math.prod(self.shape)}, "
            f"the first is {self.value} at {list(self.first)}"
        )


def not_finite(name: str, values: NDArray[Any], infinite: bool = False) -> NotFinite | None:
    """The values of a tensor that are not finite; None if all are.

    Args:
        infinite: whether its values may be infinite, as those of a mask.
    """
    if not np.issubdtype(values.dtype, np.floating):
        return None
    bad = np.isnan(values) if infinite else ~np.isfinite(values)
    count = int(np.count_nonzero(bad))
    if not count:
        return None
    first = tuple(int(k) for k in np.unravel_index(int(bad.argmax()), bad.shape))
    return NotFinite(name, values.shape, count, first, f"{float(values[first]):g}")


def listed(lines: Sequence[object]) -> list[str]:
    """The first lines, and the number of others."""
    more = len(lines) - _LISTED
    return [*map(str, lines[:_LISTED]), *([f"and {more} more"] if more > 0 else [])]
