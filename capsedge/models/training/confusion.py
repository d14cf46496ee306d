"""Show which classes a network confuses: counts, lines of text, and a picture."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.files.text import printable
from capsedge.runtime.result_summary import caption, check_chart, new_figure, save_figure

_LINES = 25  # how many classes, the least accurate, have a line of text
_WRITTEN = 25  # more classes than this make the cells too small for counts
_INCHES = (4.0, 0.36, 16.0)  # of the picture's side: without classes, for each class, at most
_LONGEST = 24  # characters of a name in the picture


def confusion(
    classes: NDArray[np.int64], found: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """How often each class was predicted for each true class ``[J, J]``; rows are true classes.

    Args:
        classes, found: the true and the predicted class of each image ``[N]``.
        count: J, the number of classes.
    """
    matrix = np.zeros((count, count), np.int64)
    np.add.at(matrix, (classes, found), 1)
    return matrix


def by_class(names: Sequence[str], matrix: NDArray[np.int64]) -> list[str]:
    """One line per class: images classified correctly, and the commonest error.

    The least accurate class comes first; if there are many classes, the most accurate have no line.
    """
    rows = []
    for label, name in enumerate(names):
        row = matrix[label]
        total, right = int(row.sum()), int(row[label])
        if not total:
            rows.append((math.inf, f"  {printable(name)}: not tested"))
            continue
        line = f"  {printable(name)}: {right} of {total}"
        wrong = row.copy()
        wrong[label] = 0
        if most := int(wrong.max()):
            line += f"; {most} taken for {printable(names[int(wrong.argmax())])}"
        rows.append((right / total, line))
    lines = ["right, by class:", *(line for _, line in sorted(rows)[:_LINES])]
    if len(rows) > _LINES:
        lines.append(f"  and {len(rows) - _LINES} more classes, none less accurate")
    return lines


def draw(names: Sequence[str], matrix: NDArray[np.int64], path: Path) -> None:
    """Write the confusion matrix as a picture; the shade of a cell is its share of the true class.

    Raises:
        EnvironmentProblem: matplotlib is not installed, or the disk is full.
        UsageError: the path cannot be written.
    """
    check_chart(path)
    least, each, most = _INCHES
    side = min(least + each * len(names), most)
    figure = new_figure(side, side)
    axes = figure.add_subplot()
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    size = min(9.0, 60 * side / len(names))
    short = [caption(n if len(n) <= _LONGEST else f"{n[: _LONGEST - 1]}…") for n in names]
    ticks = range(len(names))
    axes.set_xticks(ticks, short, rotation=90, fontsize=size)
    axes.set_yticks(ticks, short, fontsize=size)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if len(names) <= _WRITTEN:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if share[row, column] > 0.5 else "black"
                axes.text(
                    column, row, str(count), ha="center", va="center", color=colour, fontsize=8
                )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # letters that the font lacks
        save_figure(figure, path)
