"""Names for the nodes given to TensorRT, by the layers of the model; an engine's layers report them."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from capsedge.runtime.reading.attribution import places
from capsedge.runtime.reading.node_names import node_name
from capsedge.runtime.reading.onnx_structure import Graph, Node, read_structure


def name_nodes(model: onnx.ModelProto, source: Path) -> None:
    """Name the nodes of a lowered model after the layers of the file that it was made from.

    Nodes of files that do not name their layers keep their names.
    """
    running = Graph(nodes=[_node(node) for node in model.graph.node])
    found = places(read_structure(source), running)
    for number, (node, place) in enumerate(zip(model.graph.node, found, strict=True)):
        if place.group:
            node.name = node_name(place, node.op_type, number)


def _node(node: onnx.NodeProto) -> Node:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return Node(
        op=node.op_type,
        domain=node.domain,
        overload=node.overload,
        name=node.name,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes=attributes,
        bodies=(),
    )
