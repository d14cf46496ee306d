"""Prepare a trace for pictures: couplings as arrays, and positions on the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, CapsedgeError, UsageError
from capsedge.runtime.metadata.metadata import how_to_export_again
from capsedge.runtime.onnx_file.structure import Node, read_structure
from capsedge.runtime.session.routing_trace import Trace, TracedLayer
from capsedge.runtime.session.session import Session
from capsedge.viz.examples import check_drawable

# --- Couplings of one image, and the positions of the parents' parts ---

Floats = NDArray[np.floating[Any]]
_ONE = 1e-2  # tolerance for couplings that add up to one, at any precision


def read_trace(session: Session, inputs: NDArray[np.float32]) -> Trace:
    """The trace of the prepared images ``[N, C, H, W]`` of a picture."""
    trace = session.trace(inputs, prepared=True)
    for layer in trace:
        shape, grid = layer.couplings.shape, () if layer.grid == (1, 1) else layer.grid
        whole = (*shape[:1], layer.iterations, *grid, *shape[-2:])
        parents = (*whole[:-2], shape[-1])
        others = [(value, whole) for value in (layer.agreement, layer.distances)]
        others += [(layer.couplings, whole), (layer.activations, parents)]
        others += [(layer.children, whole[:-1])]
        if layer.poses.shape[:-1] != parents or any(
            value is not None and value.shape != wanted for value, wanted in others
        ):
            raise ArtefactError(
                f"The trace of {session.path} does not fit its graph.",
                f"The values of its layer '{layer.name}' have other shapes than its metadata states.",
                how_to_export_again(session.metadata, "--with trace"),
            )
        for value, _ in [(layer.poses, ()), *others]:
            if value is not None:
                check_drawable(session, "traces", value)
    return trace


def check_parents_are_classes(session: Session, layer: TracedLayer, classes: int) -> None:
    """Raise a UsageError if the parents of a layer are not the classes."""
    if layer.couplings.shape[-1] != classes or layer.grid != (1, 1):
        raise UsageError(
            f"The last routed layer of {session.path} does not contain its classes.",
            f"Its layer '{layer.name}' has {layer.couplings.shape[-1]} kinds of capsules on "
            f"{layer.grid[0]} x {layer.grid[1]} positions, the model {classes} classes.",
            "Choose the picture 'couplings', which shows any layer.",
        )


def table(values: Floats, image: int) -> Floats:
    """A trace's values for one image as ``[T, I, J]``; positions in a grid of parents are merged into I."""
    own = values[image]
    joined: Floats = own.reshape(len(own), -1, own.shape[-1])
    return joined


def strengths(layer: TracedLayer, image: int) -> tuple[Floats, str]:
    """The strength of each parent after each iteration ``[T, J]``, and what it measures.

    EM routing has activations, and squashed poses have lengths. For attention, it is the children's agreement
    weighted by their couplings.
    """
    if layer.activations is not None:
        return layer.activations[image].reshape(layer.iterations, -1), "activation"
    if layer.routing == "dynamic":
        poses = layer.poses[image].astype(np.float64)
        norms = np.sqrt((poses**2).sum(axis=-1))
        return norms.reshape(layer.iterations, -1), "length of the pose"
    couplings, agreement = table(layer.couplings, image), table(layer.agreement, image)
    weights = couplings / np.maximum(couplings.sum(axis=1, keepdims=True), 1e-12)
    return (weights * agreement).sum(axis=1), "mean agreement"


def over_parents(couplings: Floats) -> Floats:
    """Couplings ``[..., I, J]`` as distributions along the last axis.

    If the network's softmax is over the children, the result is transposed: ``[..., J, I]``. Any remainder to
    one, the share of "none of the above" in leaky routing, becomes a last column.
    """
    rest = 1.0 - couplings.sum(axis=-1)
    if np.abs(rest).max() <= _ONE:
        return couplings
    if np.abs(1.0 - couplings.sum(axis=-2)).max() <= _ONE:
        return np.swapaxes(couplings, -1, -2)
    return np.concatenate([couplings, np.clip(rest, 0.0, 1.0)[..., None]], axis=-1)


def entropy(shares: Floats) -> NDArray[np.float64]:
    """Entropy of distributions along the last axis, from 0 (a single value) to 1 (uniform)."""
    if shares.shape[-1] < 2:
        return np.zeros(shares.shape[:-1])
    p = np.clip(shares.astype(np.float64), 1e-12, 1.0)
    entropies: NDArray[np.float64] = -(p * np.log(p)).sum(axis=-1) / np.log(shares.shape[-1])
    return entropies


def layer_named(trace: Trace, name: str) -> TracedLayer:
    """A layer of a trace; by default the last, that of the classes."""
    layers = {layer.name: layer for layer in trace}
    if not name:
        return trace.layers[-1]
    if name not in layers:
        raise UsageError(
            f"The trace has no layer '{name}'.", "", f"Choose one of: {', '.join(layers)}."
        )
    return layers[name]


@dataclass(frozen=True, eq=False)
class Shares:
    """The positions of a parent's parts.

    Attributes:
        shares: ``[H, W]`` over the children's map; they add up to one.
        layer: name of the layer whose children they are.
    """

    shares: Floats
    layer: str


def shares_of_class(layers: Sequence[TracedLayer], image: int, index: int) -> Shares:
    """The positions of a class's parts in the lowest map that its couplings lead to."""
    last = layers[-1]
    weights: Floats = np.zeros((*last.grid, last.couplings.shape[-1]))
    weights[..., index] = 1.0 / (last.grid[0] * last.grid[1])
    below: Floats | None = None
    reached = last
    for layer in reversed(layers):
        if below is not None:
            if below.shape != (*layer.grid, layer.couplings.shape[-1]):
                break  # a layer between the two maps moves capsules
            weights = below
        shares = _to_children(layer, image, weights)
        if shares is None:
            break
        below, reached = shares, layer
    if below is None:
        raise UsageError(
            "The positions of the children of the classes are unknown.",
            "They are not on a grid, or their order in the network is unknown.",
            "Choose another picture; responsibilities need convolutional primary capsules.",
        )
    return Shares(below.sum(axis=-1), reached.name)


def _to_children(layer: TracedLayer, image: int, weights: Floats) -> Floats | None:
    """Distribute the weights of the parents ``[H', W', M]`` among their children ``[H, W, C]``.

    A child's share of a parent is relative to those of all children. In EM routing it is the weight of its
    vote in the parent's mean, responsibility times activation (Hinton et al. 2018, procedure 1, M-step).
    Otherwise it is its coupling times its agreement; in dynamic routing these products add up to the squared
    length of the parent's pose before the squash. None if the children have no geometry.
    """
    if layer.child_grid is None:
        return None
    kernel = layer.kernel or layer.child_grid
    strides = layer.strides or (1, 1)
    (rows, columns), (high, wide) = layer.grid, kernel
    couplings = layer.couplings[image, -1].reshape(rows, columns, -1, weights.shape[-1])
    parts = couplings.astype(np.float64)
    if layer.routing == "em":
        if layer.children is None:
            raise UsageError(
                f"The trace does not record which children of '{layer.name}' are active.",
                "The file was written by an earlier version of capsedge.",
                "Export the model again with `capsedge export --with trace`.",
            )
        factor = layer.children[image, -1].reshape((*parts.shape[:-1], 1))
    else:
        factor = np.maximum(layer.agreement[image, -1].reshape(parts.shape), 0.0)
    weighted = parts * factor
    parts = np.where(weighted.sum(axis=2, keepdims=True) <= 0, parts, weighted)
    ends = ((rows - 1) * strides[0] + high, (columns - 1) * strides[1] + wide)
    if (
        parts.shape[2] % (high * wide)
        or ends[0] > layer.child_grid[0]
        or ends[1] > layer.child_grid[1]
    ):
        return None
    shares = parts / np.maximum(parts.sum(axis=2, keepdims=True), 1e-30)
    mass = (shares * weights[:, :, None]).sum(axis=3)
    if layer.types_first:
        mass = np.moveaxis(mass.reshape(rows, columns, -1, high, wide), 2, 4)
    mass = mass.reshape(rows, columns, high, wide, -1)
    below = np.zeros((*layer.child_grid, mass.shape[-1]))
    for dy, dx in np.ndindex(high, wide):
        y = slice(dy, dy + rows * strides[0], strides[0])
        x = slice(dx, dx + columns * strides[1], strides[1])
        below[y, x] += mass[:, :, dy, dx]
    return below


# --- Positions on the input, by the strides and paddings of the convolutions before a map ---

Cells = tuple[int, int]


@dataclass(frozen=True)
class Grid:
    """A map of cells over the input, in pixels, counted from the centre of the first; rows, then columns.

    Attributes:
        cells: number of cells.
        start: position of the first cell's centre.
        step: distance between neighbours.
    """

    cells: Cells
    start: tuple[float, float]
    step: tuple[float, float]

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top edges, as matplotlib's ``imshow`` expects them."""
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
    grids = [grid for grid in known.values() if grid.cells == cells]
    for node in graph.nodes:
        before = next((known[name] for name in node.inputs if name in known), None)
        if before is None:
            continue
        after = _behind(node, before)
        known.update(dict.fromkeys(node.outputs, after))
        if after is not before and after.cells == cells:
            grids.append(after)
    return (grids[-1], True) if grids else (even(size, cells), False)


def even(size: Cells, cells: Cells) -> Grid:
    """A grid that covers an input evenly."""
    down, right = size[0] / cells[0], size[1] / cells[1]
    return Grid(cells, (down / 2 - 0.5, right / 2 - 0.5), (down, right))


def _behind(node: Node, before: Grid) -> Grid:
    """The grid of a node's output: that of its input, except after a convolution or pooling over two axes."""
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
    """Padding before both axes, then after both."""
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
