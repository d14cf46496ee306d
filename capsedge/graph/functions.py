"""Attach, inline or expand the function bodies of capsule operators."""

from __future__ import annotations

from collections import Counter

import onnx
from onnx import helper, inliner

from capsedge.graph import Rewrites
from capsedge.graph.bodies import Shape, function_body
from capsedge.graph.cleanup import remove_dead_nodes, simplify
from capsedge.graph.proto import (
    attributes_of,
    inferred,
    input_shapes,
    keep_signature,
    operator_nodes,
    opset_of,
    set_opset,
    shapes_of,
)
from capsedge.spec.operators import DOMAIN, VERSION, instance_name, operator_of


def attach_functions(
    model: onnx.ModelProto,
    rewrites: Rewrites | None = None,
    *,
    compute: int = onnx.TensorProto.FLOAT,
) -> None:
    """Give every capsule operator its function body, and each distinct body a name of its own.

    The nodes take the name of their body: ``DynamicRouting``, ``DynamicRouting_2``, ... (``spec.operators``).
    Attributes and input shapes that make the same body share it.

    Raises:
        UnknownShapeError: the shape of an input is not known.
    """
    shapes = shapes_of(model)
    names: dict[bytes, str] = {}
    counts: Counter[str] = Counter()
    for node in operator_nodes(model):
        operator = operator_of(node.op_type)
        body = function_body(
            operator,
            input_shapes(node, shapes),
            attributes_of(node),
            rewrites,
            opset=opset_of(model),
            compute=compute,
        )
        content = body.SerializeToString(deterministic=True)
        if content not in names:
            counts[operator] += 1
            names[content] = body.name = instance_name(operator, counts[operator])
            model.functions.append(body)
        node.op_type, node.overload = names[content], ""
    if names:
        set_opset(model, DOMAIN, VERSION)


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in standard operators only: function bodies inlined, constants folded.

    Raises:
        ValueError: a capsule operator has no function body.
    """
    copy = inliner.inline_local_functions(model)
    left = sorted({operator_of(n.op_type) for n in operator_nodes(copy)})
    if left:
        raise ValueError(f"no function body for {', '.join(left)}")
    set_opset(copy, DOMAIN, None)
    folded = simplify(inferred(copy))
    keep_signature(folded, model)
    remove_dead_nodes(folded)
    return folded


# --- Expansion, where more of an operator is wanted than kernels output ---

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
