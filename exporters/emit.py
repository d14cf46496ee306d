"""From the translation's nodes to those of the file: ``capsedge``, or standard with couplings."""

from __future__ import annotations

import onnx
from onnx import helper, inliner

from capsedge.graph import proto
from capsedge.graph.bodies import Shape, function_body
from capsedge.graph.operators import OPERATORS, TORCH_DOMAIN, VERSION, attributes_of
from capsedge.graph.rewrites import Rewrites
from capsedge.graph.simplify import simplify
from capsedge.schema.names import DOMAIN

_EXPANDED = "capsedge.expanded"


def lower(model: onnx.ModelProto, rewrites: Rewrites) -> onnx.ModelProto:
    """Replace every translated node.

    A node whose couplings nobody reads becomes a ``capsedge`` node. One whose couplings are read
    becomes standard operators that give both, since the ONNX operators have no such output.

    Raises:
        ValueError: an input of a node has no shape.
    """
    proto.strip_notes(model)
    proto.fold_fills(model)
    shapes = proto.shapes_of(model)
    read = {i for n in model.graph.node for i in n.input} | {o.name for o in model.graph.output}
    expanded = 0
    for node in proto.operator_nodes(model, TORCH_DOMAIN):
        spec = OPERATORS[node.op_type]
        if spec.couplings and node.output[-1] in read:
            expanded += 1
            inputs: list[Shape] = [shapes[i] for i in node.input]
            body = function_body(
                node.op_type,
                inputs,
                attributes_of(node),
                rewrites,
                opset=proto.opset_of(model),
                domain=_EXPANDED,
                couplings=True,
            )
            node.domain = _EXPANDED
            node.op_type = body.name = f"{body.name}_{expanded}"
            model.functions.append(body)
        else:
            node.domain = DOMAIN
            del node.output[len(spec.outputs) :]
    proto.set_opset(model, TORCH_DOMAIN, None)
    proto.set_opset(model, DOMAIN, VERSION)
    if expanded:
        model.opset_import.append(helper.make_opsetid(_EXPANDED, 1))
        inlined = inliner.inline_local_functions(model)
        proto.set_opset(inlined, _EXPANDED, None)
        inlined = simplify(proto.inferred(inlined))
        proto.keep_signature(inlined, model)
        model = inlined
    proto.remove_unused_tensors(model)
    return model
