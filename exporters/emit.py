"""From the translation's nodes to those of the file: ``capsedge``, or standard with couplings."""

from __future__ import annotations

import onnx
from onnx import helper, inliner

from capsedge.exporters.translation import TORCH_DOMAIN
from capsedge.graph.bodies import function_body
from capsedge.graph.cleaning import fold_fills, remove_unused_tensors, strip_notes
from capsedge.graph.proto import attributes_of, operator_nodes, opset_of, set_opset
from capsedge.graph.rewrites import Rewrites
from capsedge.graph.shapes import inferred, input_shapes, keep_signature, shapes_of
from capsedge.graph.simplify import simplify
from capsedge.schema.names import DOMAIN, VERSION
from capsedge.schema.operators import OPERATORS

_EXPANDED = "capsedge.expanded"


def lower(model: onnx.ModelProto, rewrites: Rewrites) -> onnx.ModelProto:
    """Replace every translated node.

    A node whose couplings are not used becomes a ``capsedge`` node. One whose couplings are used becomes
    standard operators that compute both outputs, since the ONNX operators do not output couplings.

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
        if spec.couplings and node.output[-1] in read:
            expanded += 1
            body = function_body(
                node.op_type,
                known,
                attributes_of(node),
                rewrites,
                opset=opset_of(model),
                domain=_EXPANDED,
                couplings=True,
            )
            node.domain = _EXPANDED
            node.op_type = body.name = f"{body.name}_{expanded}"
            model.functions.append(body)
        else:
            node.domain = DOMAIN
            del node.output[len(spec.outputs) :]
    set_opset(model, TORCH_DOMAIN, None)
    set_opset(model, DOMAIN, VERSION)
    if expanded:
        model.opset_import.append(helper.make_opsetid(_EXPANDED, 1))
        inlined = inliner.inline_local_functions(model)
        set_opset(inlined, _EXPANDED, None)
        folded = simplify(inferred(inlined))
        keep_signature(folded, model)
        model = folded
    remove_unused_tensors(model)
    return model
