"""Find the inputs of a graph that are indices, and the sizes of the tables they index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from capsedge.graph.ir import Graph

# Operators that pass on the elements of their first input, unchanged or joined with others.
_PASSING = frozenset(
    ("Cast", "Concat", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "Identity", "Reshape",
     "Round", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)  # fmt: skip

_STORED = ("DequantizeLinear", "Identity", "Cast")  # between a stored table and its use


def table_sizes(
    graph: Graph,
    weights: Mapping[str, NDArray[np.generic]],
    inputs: Sequence[str],
) -> dict[str, int]:
    """The number of entries in the smallest table that each input indexes, by input.

    Covers ``OneHot``, and ``Gather`` and ``GatherElements`` from stored tables, quantized or not.
    """
    found: dict[str, int] = {}
    for node in graph.nodes:
        size = _size(node, weights, graph)
        if size is None:
            continue
        at = node.input[0 if node.op_type == "OneHot" else 1]
        for name in _origins(at, graph, inputs):
            found[name] = min(size, found.get(name, size))
    return found


def _size(
    node: onnx.NodeProto, weights: Mapping[str, NDArray[np.generic]], graph: Graph
) -> int | None:
    """The number of entries in the table that a node indexes; None without a table or stored size."""
    if node.op_type == "OneHot":
        depth = weights.get(node.input[1])
        return None if depth is None or depth.size != 1 else int(depth.reshape(-1)[0])
    if node.op_type not in ("Gather", "GatherElements"):
        return None
    name = node.input[0]
    while (maker := graph.producer(name)) is not None and maker.op_type in _STORED:
        name = maker.input[0]
    table = weights.get(name)
    if table is None or not table.ndim:
        return None
    axis = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "axis"), 0)
    return int(table.shape[axis]) or None


def _origins(name: str, graph: Graph, inputs: Sequence[str]) -> list[str]:
    """The inputs that a tensor's elements come from."""
    found, queue, seen = [], [name], {name}
    for each in queue:
        if each in inputs:
            found.append(each)
        node = graph.producer(each)
        if node is None:
            continue
        if node.op_type in _PASSING:
            sources = list(node.input) if node.op_type == "Concat" else list(node.input[:1])
        elif (
            node.op_type == "Where"
        ):  # exporters write indices that may count from the end this way
            sources = list(node.input[1:])
        else:
            continue
        queue += [s for s in sources if s and s not in seen]
        seen.update(sources)
    return found
