"""``EMRouting`` in the place of what was found."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capsedge.graph.recognize.edit import Edit
from capsedge.graph.recognize.fit_em import FoundEM
from capsedge.graph.recognize.grids import (
    Children,
    agree,
    children_of,
    read_activations,
    read_poses,
    write_parents,
)
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.source import Source, linear_source
from capsedge.graph.recognize.values import Array, Values
from capsedge.graph.recognize.windows import (
    Windows,
    coordinates_of,
    matrices,
    of_the_paper,
    shared_grids,
    unfolded,
    windows_of,
)


@dataclass(frozen=True)
class Written:
    """The nodes, and what they are.

    Attributes:
        edit: the nodes.
        children: over the grid.
        coordinates: added to the votes ``[H, W, P]``; None for none.
    """

    edit: Edit
    children: Children
    coordinates: Array | None


def write_em(graph: Values, found: FoundEM, tag: str) -> Written:
    """The nodes.

    Raises:
        NotRecognized: no operator computes the same.
    """
    _, j, _, p = found.roles.sizes
    source = linear_source(graph, found.votes, found.roles, p, lambda w: matrices(w) is not None)
    matrix = matrices(source.weight)
    assert matrix is not None
    windows, coordinates, shared = _arrangement(source, matrix[1])
    children = children_of(source, windows, matrix, shared)
    acting = _acting(graph, found)
    if not agree(acting, children):
        raise NotRecognized("EM routing whose activations are of other cells than its poses")
    edit = Edit(graph, tag)
    inputs = [read_poses(edit, children), read_activations(edit, acting, children)]
    kind = found.kind
    stored = {"weight": children.weight, "beta_u": kind.beta_u, "beta_a": kind.beta_a}
    paper = coordinates is not None and of_the_paper(coordinates)
    attributes: dict[str, Any] = {
        "iterations": len(kind.temperatures),
        "strides": [1, 1] if shared else list(windows.strides),
        "inverse_temperatures": list(kind.temperatures),
        "coordinate_addition": int(paper),
        "shared": int(shared),
        "normalize_activations": int(kind.normalized),
        "ones_first": int(kind.ones_first),
        "epsilon": float(kind.epsilon),
    }
    if coordinates is not None and not paper:
        stored["coordinates"] = coordinates
    inputs += [edit.constant(value, name) for name, value in stored.items()]
    outputs = edit.capsule("EMRouting", inputs, **attributes)
    write_parents(edit, outputs[0], found.pose_layout, found.pose, children, j, p)
    edit.describe(outputs[1], (graph.batch, *windows.places, j))
    edit.write(outputs[1], found.result_layout, found.result)
    return Written(edit, children, coordinates)


def _arrangement(source: Source, transposed: bool) -> tuple[Windows, Array | None, bool]:
    """Windows, the coordinates added, and whether weights are shared over the whole grid."""
    constant = source.constant
    for windows in sorted(shared_grids(source), key=lambda w: -math.prod(w.grid[:2])):
        if math.prod(windows.grid[:2]) == 1:
            continue
        if constant is None:
            return windows, None, True
        coordinates = coordinates_of(constant, windows, transposed)
        if coordinates is not None:
            return (*unfolded(windows, coordinates), True)
    windows = windows_of(source)
    if constant is None:
        return windows, None, False
    coordinates = coordinates_of(constant, windows, transposed)
    if coordinates is None:
        raise NotRecognized(
            "EM routing whose votes have a constant part that is not one for each place: no operator has that"
        )
    return windows, coordinates, False


def _acting(graph: Values, found: FoundEM) -> Source:
    """Where the activations of the children come from."""
    try:
        return linear_source(
            graph,
            found.activations,
            found.children,
            1,
            lambda w: bool((np.abs(w - 1) < 1e-6).all()),
        )
    except NotRecognized:
        n, _, i, _ = found.children.sizes
        if n != graph.batch:
            raise NotRecognized("EM routing whose activations are no cells of a layer") from None
        g = found.children.groups
        layout = replace(found.children, groups=(g[0], g[2], 0))
        return Source(found.activations, layout, np.arange(i)[None], np.ones((1, i, 1, 1)), None)
