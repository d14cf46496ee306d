"""What a graph does not need: dead nodes, unused tensors, constant fills, notes of where it was made."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from capsedge.graph.proto import constants_of, replace
from capsedge.graph.simplify import FOLD_LIMIT


def captured(graph: onnx.GraphProto) -> set[str]:
    """The tensors that graphs inside nodes (If, Loop) may use."""
    inner = [
        each
        for node in graph.node
        for a in node.attribute
        for each in ([a.g] if a.HasField("g") else a.graphs)
    ]
    names = {i for g in inner for n in g.node for i in n.input} | {
        o.name for g in inner for o in g.output
    }
    return names.union(*(captured(g) for g in inner))


def remove_dead_nodes(model: onnx.ModelProto, keep_domain: str | None = None) -> int:
    """Remove the nodes and initializers that reach no output; returns how many nodes.

    Args:
        keep_domain: nodes of this domain, and what they need, stay although they reach no output.
    """
    graph = model.graph
    live = {o.name for o in graph.output} | captured(graph)
    kept = []
    for node in reversed(graph.node):
        if node.domain == keep_domain or any(o in live for o in node.output):
            kept.append(node)
            live.update(node.input)
    removed = len(graph.node) - len(kept)
    replace(graph.node, reversed(kept))
    remove_unused_tensors(model)
    return removed


def remove_unused_tensors(model: onnx.ModelProto) -> None:
    """Remove the initializers and value descriptions that no node uses."""
    graph = model.graph
    used = {i for n in graph.node for i in n.input} | {o.name for o in graph.output}
    used |= captured(graph)
    made = {o for n in graph.node for o in n.output}
    replace(graph.initializer, [t for t in graph.initializer if t.name in used])
    replace(graph.value_info, [v for v in graph.value_info if v.name in used and v.name in made])


def fold_fills(model: onnx.ModelProto) -> None:
    """Turn ``ConstantOfShape`` of a constant shape into an initializer (zeros that stand for "none")."""
    constants = constants_of(model)
    kept = []
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in constants:
            shape = numpy_helper.to_array(constants[node.input[0]])
            fill = (
                numpy_helper.to_array(node.attribute[0].t) if node.attribute else np.zeros(1, "f4")
            )
            if int(np.prod(shape)) <= FOLD_LIMIT:
                value = np.full(shape, fill.reshape(-1)[0], fill.dtype)
                model.graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
                continue
        kept.append(node)
    replace(model.graph.node, kept)
    remove_unused_tensors(model)


def strip_notes(model: onnx.ModelProto) -> None:
    """Remove what the exporter wrote about the machine it ran on: stack traces, source paths."""
    graph = model.graph
    graph.name = "capsedge"
    for item in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del item.metadata_props[:]
        item.doc_string = ""
    del graph.metadata_props[:]
    del model.metadata_props[:]
    model.doc_string = ""
