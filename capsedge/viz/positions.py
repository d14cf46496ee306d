"""Where on the input the cells of a map lie, by the strides and paddings of the convolutions before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capsedge.errors import CapsedgeError
from capsedge.runtime.reading.onnx_structure import Node, read_structure

Cells = tuple[int, int]


@dataclass(frozen=True)
class Grid:
    """A map of cells over the input, in pixels, counted from the centre of the first; rows, then columns.

    Attributes:
        cells: number of cells.
        start: position of the first cell's centre.
        step: distance of neighbours.
    """

    cells: Cells
    start: tuple[float, float]
    step: tuple[float, float]

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top edge, as matplotlib's ``imshow`` takes them."""
        (top, left), (down, right) = self.start, self.step
        rows, columns = self.cells
        return (
            left - right / 2,
            left + (columns - 0.5) * right,
            top + (rows - 0.5) * down,
            top - down / 2,
        )


def grid_over_input(path: Path, size: Cells, cells: Cells) -> tuple[Grid, bool]:
    """The grid of a map over an input.

    Args:
        path: the ONNX file.
        size: height and width of the input.
        cells: height and width of the map.

    Returns:
        The grid, and whether it follows from the file's convolutions; if not, it covers the input evenly.
    """
    try:
        graph = read_structure(path).graph
    except CapsedgeError:  # an engine
        return even(size, cells), False
    known = {value.name: Grid(size, (0.0, 0.0), (1.0, 1.0)) for value in graph.inputs[:1]}
    found = [grid for grid in known.values() if grid.cells == cells]
    for node in graph.nodes:
        before = next((known[name] for name in node.inputs if name in known), None)
        if before is None:
            continue
        after = _behind(node, before)
        known.update(dict.fromkeys(node.outputs, after))
        if after is not before and after.cells == cells:
            found.append(after)
    return (found[-1], True) if found else (even(size, cells), False)


def even(size: Cells, cells: Cells) -> Grid:
    """A grid that covers an input evenly."""
    down, right = size[0] / cells[0], size[1] / cells[1]
    return Grid(cells, (down / 2 - 0.5, right / 2 - 0.5), (down, right))


def _behind(node: Node, before: Grid) -> Grid:
    """The grid of a node's output: that of its input, unless it is a convolution or a pooling of two axes."""
    kernel = node.integers("kernel_shape")
    if len(kernel) != 2 or node.op == "ConvTranspose":
        return before
    strides = node.integers("strides") or [1, 1]
    dilations = node.integers("dilations") or [1, 1]
    windows = [dilation * (k - 1) + 1 for k, dilation in zip(kernel, dilations, strict=True)]
    pads = _pads(node, before.cells, windows, strides)
    cells, start, step = [], [], []
    for axis in range(2):
        first, last = pads[axis], pads[axis + 2]
        cells.append((before.cells[axis] + first + last - windows[axis]) // strides[axis] + 1)
        offset = (windows[axis] - 1) / 2 - first
        start.append(before.start[axis] + before.step[axis] * offset)
        step.append(before.step[axis] * strides[axis])
    return Grid((cells[0], cells[1]), (start[0], start[1]), (step[0], step[1]))


def _pads(
    node: Node, cells: Cells, windows: Sequence[int], strides: Sequence[int]
) -> tuple[int, ...]:
    """Padding before both axes, then behind both."""
    kind = node.attributes.get("auto_pad", "NOTSET")
    if not str(kind).startswith("SAME"):
        return tuple(node.integers("pads") or (0, 0, 0, 0))
    before, behind = [], []
    for count, window, stride in zip(cells, windows, strides, strict=True):
        total = max((-(-count // stride) - 1) * stride + window - count, 0)
        half = total // 2 if kind == "SAME_UPPER" else total - total // 2
        before.append(half)
        behind.append(total - half)
    return (*before, *behind)
