"""``AttentionRouting`` and ``UniformRouting`` in the place of what was found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from capsedge.graph.recognize.edit import Edit
from capsedge.graph.recognize.fit_attention import FoundAttention
from capsedge.graph.recognize.grids import (
    Children,
    children_of,
    read_parents,
    read_poses,
    write_parents,
)
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.source import Probe, Source, linear_source
from capsedge.graph.recognize.values import Array, Values
from capsedge.graph.recognize.windows import matrices, windows_of


def write_attention(graph: Values, found: FoundAttention, tag: str) -> tuple[Edit, Children]:
    """The nodes.

    Raises:
        NotRecognized: no operator computes the same.
    """
    _, j, _, p = found.roles.sizes
    source = _source(graph, found)
    if source.constant is not None:
        raise NotRecognized("attention over votes with a constant part: no operator has that")
    children = children_of(source, windows_of(source), matrices(source.weight))
    edit = Edit(graph, tag)
    inputs = [read_poses(edit, children)]
    attributes: dict[str, Any] = {
        "strides": list(children.windows.strides),
        "matrix_pose": int(children.matrix),
        "epsilon": float(found.kind.epsilon),
    }
    if found.parent_layout is not None:
        inputs.append(read_parents(edit, found.parent, found.parent_layout, children, j, p))
        attributes["agreement_scale"] = float(found.kind.agreement_scale)
    inputs.append(edit.constant(children.weight, "weight"))
    for name, value in (("scale", found.kind.scale), ("bias", found.kind.bias)):
        inputs.append(edit.constant(_turned(value, children.transposed), name))
    operator = "AttentionRouting" if found.parent_layout is not None else "UniformRouting"
    (pose,) = edit.capsule(operator, inputs, **attributes)
    write_parents(edit, pose, found.layout, found.result, children, j, p)
    return edit, children


def _source(graph: Values, found: FoundAttention) -> Source:
    """Matrix poses if they are that, else vectors."""
    p = found.roles.sizes[3]
    votes, probes = (graph, found.votes, found.roles), dict[str, Probe]()
    try:
        return linear_source(*votes, p, lambda w: matrices(w) is not None, probes)
    except NotRecognized:
        return linear_source(*votes, probes=probes)


def _turned(vector: Array, transposed: bool) -> Array:
    if not transposed:
        return vector
    side = math.isqrt(len(vector))
    return np.ascontiguousarray(vector.reshape(side, side).T).reshape(-1)
