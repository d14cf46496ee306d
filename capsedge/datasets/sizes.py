"""Limits on the sizes that a file claims, checked before memory is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from capsedge.errors import UsageError
from capsedge.runtime.files import limits


def check_bytes(path: Path, shape: Sequence[int], width: int = 1, stored: int | None = None) -> int:
    """Size in bytes of an array to read.

    Args:
        shape: the shape that the file claims.
        width: bytes per element.
        stored: size of the file in bytes, if it is compressed.

    Raises:
        UsageError: the array is too large.
    """
    most = limits.ARRAY_BYTES
    if stored is not None:
        most = min(most, max(limits.UNPACKED_BYTES, limits.UNPACKED_RATIO * stored))
    # A size of zero counts as one: numpy checks the other sizes of such an array, too.
    claimed = math.prod(max(1, size) for size in shape) * width
    if claimed > most:
        packed = "" if stored is None else f" of its {stored:,}"
        raise UsageError(
            f"{path} is too large.",
            f"It claims {claimed:,} bytes, and {most:,}{packed} are read.",
            "Read fewer images with `limit=`, or store fewer in one file.",
            command="Read fewer images with --limit, or store fewer in one file.",
        )
    return math.prod(shape) * width
