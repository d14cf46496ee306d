"""Resizing, specified to the last bit in docs/reference/runtime.md ("Resizing"): C++ runs the same steps.

The filter is a separable triangle. Where the image shrinks, the triangle is wider by the same factor, so that
every source pixel counts (antialiasing); where it grows, this is linear interpolation. Positions and weights
are integers up to a single division.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_ROWS = 32  # converted to float32 at once


def taps(source: int, target: int, index: int) -> tuple[int, NDArray[np.float32]]:
    """First source pixel and the weights of the following ones, for target pixel ``index``.

    With n source and m target pixels the centres are ``k + 1/2`` and ``(i + 1/2) n/m``. The
    triangle's half width is ``max(n, m)/m`` source pixels. Everything times ``2m`` is a whole number:

        w_ik = 2 max(n, m) - |(2k + 1) m - (2i + 1) n|        where positive

    and the weight is ``w_ik / sum_k w_ik``, one division of doubles, rounded to float32.
    """
    centre, half = (2 * index + 1) * source, 2 * max(source, target)
    # (2k + 1) m > centre - half  and  (2k + 1) m < centre + half
    first = max(0, ((centre - half) // target + 1) // 2)
    last = min(source - 1, ((centre + half) // target + 1) // 2)
    k = np.arange(first, last + 1, dtype=np.int64)
    w = half - np.abs((2 * k + 1) * target - centre)
    keep = np.flatnonzero(w > 0)
    w = w[keep[0] : keep[-1] + 1]
    return first + int(keep[0]), (w / w.sum()).astype(np.float32)


def resize_rows(
    source: int,
    target: int,
    rows: Callable[[int, int], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """Filter along the first axis.

    Args:
        source, target: number of rows before and after.
        rows: returns the source rows ``[first:last]`` as float32, so that a large photograph is
            never entirely in float32.

    Returns:
        ``[target, ...]``: for each target row ``sum_k weight_k * row_k`` in ascending k, every product and
        every sum rounded to float32.
    """
    result = []
    for index in range(target):
        first, weights = taps(source, target, index)
        total: NDArray[np.float32] | None = None
        for start in range(0, len(weights), _ROWS):
            some = weights[start : start + _ROWS]
            block = rows(first + start, first + start + len(some))
            for weight, row in zip(some, block, strict=True):
                total = weight * row if total is None else total + weight * row
        assert total is not None  # every target row has a source row
        result.append(total)
    return np.stack(result)


def resize(
    height: int,
    width: int,
    target_height: int,
    target_width: int,
    rows: Callable[[int, int], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """Resize an image ``[height, width, C]``, given by its rows, to ``[target_height, target_width, C]``.

    Rows first, then columns.
    """
    if (height, width) == (target_height, target_width):
        return rows(0, height)
    tall = resize_rows(height, target_height, rows)
    columns = np.ascontiguousarray(tall.transpose(1, 0, 2))
    wide = resize_rows(width, target_width, lambda first, last: columns[first:last])
    return np.ascontiguousarray(wide.transpose(1, 0, 2))
