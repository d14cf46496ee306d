"""From the translation's nodes to those of the file: ``capsedge``, or standard with couplings."""

from __future__ import annotations

import onnx

from capsedge.exporters.translation import TORCH_DOMAIN
from capsedge.graph.cleaning import fold_fills, remove_unused_tensors, strip_notes
from capsedge.graph.expand import expand, inline
from capsedge.graph.proto import operator_nodes, set_opset
from capsedge.graph.rewrites import Rewrites
from capsedge.graph.shapes import input_shapes, shapes_of
from capsedge.schema.names import DOMAIN, VERSION
from capsedge.schema.operators import OPERATORS


def lower(model: onnx.ModelProto, rewrites: Rewrites, *, traced: bool = False) -> onnx.ModelProto:
    """Replace every translated node.

    A node whose couplings are not used becomes a ``capsedge`` node. One whose couplings are used becomes
    standard operators that compute both outputs, since the ONNX operators do not output couplings; with
    ``traced`` that is left to `graph.trace`.

    Raises:
        UnknownShapeError: an input of a node has no shape.
    """
    strip_notes(model)
    fold_fills(model)
    shapes = shapes_of(model)
    read = {i for n in model.graph.node for i in n.input} | {o.name for o in model.graph.output}
    expanded = 0
    for node in operator_nodes(model, TORCH_DOMAIN):
        spec, known = OPERATORS[node.op_type], input_shapes(node, shapes)
        wanted = spec.couplings and node.output[-1] in read
        if wanted and traced:
            node.domain = DOMAIN  # with its couplings, for `graph.trace`
        elif wanted:
            expanded += 1
            expand(model, node, known, rewrites, expanded, couplings=True)
        else:
            node.domain = DOMAIN
            del node.output[len(spec.outputs) :]
    set_opset(model, TORCH_DOMAIN, None)
    set_opset(model, DOMAIN, VERSION)
    if expanded:
        model = inline(model)
    remove_unused_tensors(model)
    return model
