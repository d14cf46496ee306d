"""Capsule operators written out as standard operators, where more of them is wanted than kernels output."""

from __future__ import annotations

import onnx
from onnx import helper, inliner

from capsedge.graph.bodies import Shape, function_body
from capsedge.graph.proto import attributes_of, opset_of, set_opset
from capsedge.graph.rewrites import Rewrites
from capsedge.graph.shapes import inferred, keep_signature
from capsedge.graph.simplify import simplify
from capsedge.schema.names import operator_of

_EXPANDED = "capsedge.expanded"  # domain of the bodies until `inline`; never in a file


def expand(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    shapes: list[Shape],
    rewrites: Rewrites,
    number: int,
    *,
    couplings: bool,
    traced: bool = False,
) -> None:
    """Give a node a body of its own, which `inline` puts in its place.

    Args:
        shapes: of its inputs.
        number: of the body among those of the model.
        couplings, traced: as for ``function_body``; the node has the outputs.
    """
    body = function_body(
        operator_of(node.op_type),
        shapes,
        attributes_of(node),
        rewrites,
        opset=opset_of(model),
        domain=_EXPANDED,
        couplings=couplings,
        traced=traced,
    )
    node.domain = _EXPANDED
    node.op_type = body.name = f"{body.name}_{number}"
    model.functions.append(body)


def inline(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the bodies of `expand` inlined and constants folded."""
    model.opset_import.append(helper.make_opsetid(_EXPANDED, 1))
    inlined = inliner.inline_local_functions(model)
    set_opset(inlined, _EXPANDED, None)
    folded = simplify(inferred(inlined))
    keep_signature(folded, model)
    return folded
