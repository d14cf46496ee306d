"""Write EMRouting."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.edit import Edit
from capsedge.graph.fusion.em import EMMatch
from capsedge.graph.fusion.formulas import EM
from capsedge.graph.fusion.grids import (
    Children,
    Windows,
    activations_agree,
    cell_coordinates,
    children_of,
    is_coordinate_addition,
    matrices,
    read_activations,
    read_poses,
    shared_grids,
    unfolded,
    windows_of,
    write_parents,
)
from capsedge.graph.fusion.values import Array, Values
from capsedge.graph.fusion.votes import VoteSource, linear_vote_source
from capsedge.spec.operators import EM_EPSILONS


@dataclass(frozen=True)
class EMSources:
    """EM routing in a graph, and the sources of its votes and of its children's activations."""

    match: EMMatch
    votes: VoteSource
    acting: VoteSource
    transposed: bool  # whether the file's poses are the transposes of the operator's


class EMEdit(Edit):
    """The nodes of EM routing.

    Attributes:
        routing: what they compute; of several parts of a file, the first.
        children: the children on their grid.
        coordinates: coordinates ``[H, W, P]`` added to the votes, or None.
    """

    routing: EMSources
    children: Children
    coordinates: Array | None


def em_sources(graph: Values, match: EMMatch) -> EMSources:
    """The sources of EM routing.

    Raises:
        NoMatch: its votes are not products of matrices and capsules.
    """
    p = match.roles.sizes[3]
    votes = linear_vote_source(
        graph, match.votes, match.roles, p, lambda w: matrices(w) is not None
    )
    matrix = matrices(votes.weight)
    assert matrix is not None
    return EMSources(match, votes, _acting(graph, match), matrix[1])


def emit_em(graph: Values, routing: EMSources, tag: str) -> EMEdit:
    """The nodes.

    Raises:
        NoMatch: no operator computes the same.
    """
    match, acting = routing.match, routing.acting
    _, j, _, p = match.roles.sizes
    windows, coordinates, shared = _arrangement(routing.votes, routing.transposed)
    children = children_of(routing.votes, windows, matrices(routing.votes.weight), shared)
    if not activations_agree(acting, children):
        raise NoMatch("EM routing whose activations belong to other cells than its poses")
    edit = EMEdit(graph, tag)
    edit.routing = routing
    inputs = read_poses(edit, children), read_activations(edit, acting, children)
    outputs = write_em(edit, match.kind, inputs, children, coordinates, shared)
    write_parents(edit, outputs[0], match.pose_layout, match.pose, children, j, p)
    edit.write(outputs[1], match.result_layout, match.result)
    return edit


def write_em(
    edit: EMEdit,
    kind: EM,
    maps: tuple[str, str],
    children: Children,
    coordinates: Array | None,
    shared: bool = False,
) -> list[str]:
    """The operator: the parents' poses and activations.

    Args:
        maps: poses and activations of the children, on the grid of their windows.
        coordinates: as in `EMEdit`.
        shared: whether all positions use the weights of the first.
    """
    edit.children, edit.coordinates = children, coordinates
    windows = children.windows
    stored = {"weight": children.weight, "beta_u": kind.beta_u, "beta_a": kind.beta_a}
    paper = coordinates is not None and is_coordinate_addition(coordinates)
    attributes: dict[str, Any] = {
        "iterations": len(kind.temperatures),
        "strides": [1, 1] if shared else list(windows.strides),
        "inverse_temperatures": list(kind.temperatures),
        "coordinate_addition": int(paper),
        "shared": int(shared),
        "normalize_activations": int(kind.normalized),
        "ones_first": int(kind.ones_first),
        **{name: float(getattr(kind, name)) for name in ("epsilon", *EM_EPSILONS)},
    }
    if coordinates is not None and not paper:
        stored["coordinates"] = coordinates
    inputs = [*maps, *(edit.constant(value, name) for name, value in stored.items())]
    outputs = edit.capsule("EMRouting", inputs, **attributes)
    edit.describe(outputs[1], (edit.graph.batch, *windows.positions, children.weight.shape[3]))
    return outputs


def _arrangement(vote_source: VoteSource, transposed: bool) -> tuple[Windows, Array | None, bool]:
    """Windows, the coordinates that are added, and whether weights are shared over the whole grid."""
    constant = vote_source.constant
    for windows in sorted(shared_grids(vote_source), key=lambda w: -math.prod(w.grid[:2])):
        if math.prod(windows.grid[:2]) == 1:
            continue
        if constant is None:
            return windows, None, True
        coordinates = cell_coordinates(constant, windows, transposed)
        if coordinates is not None:
            return (*unfolded(windows, coordinates), True)
    windows = windows_of(vote_source)
    if constant is None:
        return windows, None, False
    coordinates = cell_coordinates(constant, windows, transposed)
    if coordinates is None:
        raise NoMatch(
            "EM routing whose votes have a constant part that differs between positions: no "
            "operator supports this"
        )
    return windows, coordinates, False


def _acting(graph: Values, match: EMMatch) -> VoteSource:
    """The source of the children's activations."""
    try:
        return linear_vote_source(
            graph,
            match.activations,
            match.children,
            1,
            lambda w: bool((np.abs(w - 1) < 1e-6).all()),
        )
    except NoMatch:
        n, _, i, _ = match.children.sizes
        if n != graph.batch:
            raise NoMatch("EM routing whose activations are not the cells of a layer") from None
        g = match.children.groups
        layout = replace(match.children, groups=(g[0], g[2], 0))
        return VoteSource(
            match.activations, layout, np.arange(i)[None], np.ones((1, i, 1, 1)), None
        )
