"""``EMRouting`` in the place of what was found."""

from __future__ import annotations

import math
from dataclasses import replace

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
from capsedge.graph.recognize.values import Values
from capsedge.graph.recognize.windows import (
    Windows,
    coordinates_added,
    matrices,
    shared_grids,
    windows_of,
)


def write_em(graph: Values, found: FoundEM, tag: str) -> tuple[Edit, Children]:
    """The nodes.

    Raises:
        NotRecognized: no operator computes the same.
    """
    _, j, _, p = found.roles.sizes
    source = linear_source(graph, found.votes, found.roles, p, lambda w: matrices(w) is not None)
    matrix = matrices(source.weight)
    assert matrix is not None
    windows, shared, coordinates = _arrangement(source, matrix[1])
    children = children_of(source, windows, matrix, shared)
    acting = _acting(graph, found)
    if not agree(acting, children):
        raise NotRecognized("EM routing whose activations are of other cells than its poses")
    kind = found.kind
    edit = Edit(graph, tag)
    pose = read_poses(edit, children)
    a = read_activations(edit, acting, children)
    if kind.normalized:
        small = edit.constant(np.float32(kind.epsilon), "epsilon")
        a = edit.describe(
            edit.op("Div", [a, edit.op("Add", [a, small])]), (graph.batch, *windows.grid)
        )
    outputs = edit.capsule(
        "EMRouting",
        [
            pose,
            a,
            edit.constant(children.weight, "weight"),
            edit.constant(kind.beta_u, "beta_u"),
            edit.constant(kind.beta_a, "beta_a"),
        ],
        iterations=len(kind.temperatures),
        strides=[1, 1] if shared else list(windows.strides),
        inverse_temperatures=list(kind.temperatures),
        coordinate_addition=int(coordinates),
        shared=int(shared),
        epsilon=float(kind.epsilon),
    )
    write_parents(edit, outputs[0], found.pose_layout, found.pose, children, j, p)
    edit.describe(outputs[1], (graph.batch, *windows.places, j))
    edit.write(outputs[1], found.result_layout, found.result)
    return edit, children


def _arrangement(source: Source, transposed: bool) -> tuple[Windows, bool, bool]:
    """Windows, whether weights are shared over the whole grid, and whether coordinates are added."""
    constant = source.constant
    for windows in sorted(shared_grids(source), key=lambda w: -math.prod(w.grid[:2])):
        if math.prod(windows.grid[:2]) == 1:
            continue
        if constant is None or coordinates_added(constant, windows, transposed):
            return windows, True, constant is not None
    windows = windows_of(source)
    if constant is not None and not (
        windows.axes and coordinates_added(constant, windows, transposed)
    ):
        raise NotRecognized(
            "EM routing whose votes have a constant part (coordinates in another form): no operator has that"
        )
    return windows, False, constant is not None


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
