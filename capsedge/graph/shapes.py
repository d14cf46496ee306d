"""Shapes and types of the tensors of a graph."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from capsedge.graph.bodies import Shape
from capsedge.graph.proto import replace
from capsedge.schema.names import operator_of


class UnknownShapeError(ValueError):
    """The shape of an input of a capsule operator is not known."""


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with shapes inferred, strictly: a contradiction is an error."""
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


def values_of(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Type and shape of every tensor of the graph, as far as inference finds them."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    return {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}


def shapes_of(model: onnx.ModelProto) -> dict[str, Shape]:
    """Shape of every tensor of the graph that has one; None for a dimension without a number."""
    graph = model.graph
    shapes: dict[str, Shape] = {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            shapes[value.name] = tuple(
                d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim
            )
    for tensor in graph.initializer:
        shapes[tensor.name] = tuple(tensor.dims)
    return shapes


def input_shapes(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> list[Shape]:
    """Shapes of the inputs of a capsule operator, in order.

    Args:
        shapes: of ``shapes_of``.

    Raises:
        UnknownShapeError: one is not among them.
    """
    for name in node.input:
        if name not in shapes:
            operator = operator_of(node.op_type)
            raise UnknownShapeError(f"no shape for the input '{name}' of {operator} '{node.name}'")
    return [shapes[name] for name in node.input]


def keep_signature(model: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Give the outputs the shapes of the original: inlining renames their free dimensions."""
    replace(model.graph.output, list(original.graph.output))
