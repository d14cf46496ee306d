"""Write convolutions of large windows as ``FastConv``, which has a kernel, and back as ``Conv``."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper

from capsedge.graph.bodies import Shape
from capsedge.graph.ir import (
    Graph,
    attributes_of,
    constants_of,
    operator_nodes,
    replace,
    set_opset,
    shapes_of,
)
from capsedge.spec.operators import DOMAIN, OPERATORS, VERSION, operator_of

OPERATOR = "FastConv"
# Where the kernel gains on ONNX Runtime's own (docs/explanation/kernels.md).
LEAST_WINDOW, MOST_STRIDE = 5, 2
LEAST_CHANNELS = 128  # of the input and of the output
LEAST_MAP = 3  # rows and columns of the output
# Rewritten together with a convolution before it by ONNX Runtime when it loads a file.
_FOLDED = ("BatchNormalization",)


def write_fast_convolutions(model: onnx.ModelProto) -> int:
    """Replace every ``Conv`` that is faster as ``FastConv``, in place; returns the number."""
    shapes, constants = shapes_of(model), constants_of(model)
    graph = Graph.of(model.graph)
    replaced = 0
    for node in model.graph.node:
        if node.op_type != "Conv" or node.domain or not all(node.input):
            continue
        given = attributes_of(node)
        weight = constants.get(node.input[1])
        if weight is None or weight.data_type != TensorProto.FLOAT or not _gains(weight.dims):
            continue
        kept = _kept_attributes(given, weight.dims)
        followed = {user.op_type for user in graph.users(node.output[0])}
        if kept is None or followed & {*_FOLDED} or not _large(shapes.get(node.output[0])):
            continue
        node.op_type, node.domain = OPERATOR, DOMAIN
        replace(node.attribute, [helper.make_attribute(k, v) for k, v in kept.items()])
        replaced += 1
    if replaced:
        set_opset(model, DOMAIN, VERSION)
    return replaced


def write_standard_convolutions(model: onnx.ModelProto) -> None:
    """Replace every ``FastConv`` with the ``Conv`` that is its body, in place."""
    spec = OPERATORS[OPERATOR]
    for node in operator_nodes(model):
        if operator_of(node.op_type) != OPERATOR:
            continue
        attributes = spec.complete(attributes_of(node))
        for function in list(model.functions):
            if (function.domain, function.name) == (DOMAIN, node.op_type):
                model.functions.remove(function)
        node.op_type, node.domain, node.overload = "Conv", "", ""
        replace(node.attribute, [helper.make_attribute(k, v) for k, v in attributes.items()])
    if not operator_nodes(model):
        set_opset(model, DOMAIN, None)


def _gains(weight: Any) -> bool:
    """Whether a convolution with a weight of this shape is one that the kernel is faster at."""
    return (
        len(weight) == 4 and min(weight[2:]) >= LEAST_WINDOW and min(weight[:2]) >= LEAST_CHANNELS
    )


def _kept_attributes(given: dict[str, Any], weight: Any) -> dict[str, list[int]] | None:
    """The attributes of the operator; None if it lacks what the convolution has."""
    strides, pads = list(given.get("strides", (1, 1))), list(given.get("pads", (0, 0, 0, 0)))
    plain = (
        given.get("group", 1) == 1
        and given.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID", "NOTSET", "VALID")
        and set(given.get("dilations", (1, 1))) == {1}
        and max(strides) <= MOST_STRIDE
        and min(pads) >= 0
        and all(pad < weight[2 + k % 2] for k, pad in enumerate(pads))
    )
    return {"strides": strides, "pads": pads} if plain else None


def _large(shape: Shape | None) -> bool:
    """Whether the map of an output is known and not too small."""
    return shape is not None and len(shape) == 4 and min(d or 0 for d in shape[2:]) >= LEAST_MAP
