"""Read and change an ONNX ModelProto: nodes, shapes, wiring. Does not need torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from capsedge.graph.bodies import Shape
from capsedge.spec.operators import DOMAIN, OPERATORS, operator_of

# --- Nodes, attributes, constants, opsets ---


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that shares nothing with the model."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def replace(field: Any, items: Iterable[object]) -> None:
    """Replace the items of a repeated field of a message."""
    items = list(items)
    del field[:]
    field.extend(items)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes as Python values."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def initializer(name: str, value: NDArray[Any] | np.generic) -> onnx.TensorProto:
    """An initializer of a numpy array or number."""
    return numpy_helper.from_array(np.asarray(value, order="C"), name)


def constants_of(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """The graph's initializers and Constant nodes, by name."""
    found = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = node.attribute[0].t
    return found


def operator_nodes(model: onnx.ModelProto, domain: str = DOMAIN) -> list[onnx.NodeProto]:
    """The capsule operators of the graph, in order."""
    return [n for n in model.graph.node if n.domain == domain]


def operator_counts(model: onnx.ModelProto) -> dict[str, int]:
    """How many nodes of each type the graph has; capsule operators as ``capsedge::Type``."""
    return dict(
        sorted(
            Counter(
                f"{n.domain}::{operator_of(n.op_type)}" if n.domain else n.op_type
                for n in model.graph.node
            ).items()
        )
    )


def detach_functions(model: onnx.ModelProto) -> None:
    """Remove the bodies of capsule operators, and restore the operators' own names in the nodes."""
    replace(model.functions, [f for f in model.functions if f.domain != DOMAIN])
    for node in operator_nodes(model):
        node.op_type, node.overload = operator_of(node.op_type), ""


def set_opset(model: onnx.ModelProto, domain: str, version: int | None) -> None:
    """Import a domain at a version, or remove the import (None). The default domain stays first."""
    versions = {e.domain: e.version for e in model.opset_import if e.domain != domain}
    if version is not None:
        versions[domain] = version
    replace(model.opset_import, [helper.make_opsetid(d, versions[d]) for d in sorted(versions)])


def opset_of(model: onnx.ModelProto) -> int:
    """Opset of the standard operators."""
    return next(int(e.version) for e in model.opset_import if e.domain in ("", "ai.onnx"))


def check_operators(model: onnx.ModelProto) -> list[str]:
    """The errors in a model's capsule operators: unknown types, missing attributes."""
    problems = []
    for node in operator_nodes(model):
        spec = OPERATORS.get(operator_of(node.op_type))
        if spec is None:
            problems.append(f"unknown operator {node.op_type}")
        elif set(attributes_of(node)) != set(spec.attribute_names):
            problems.append(
                f"{node.op_type} '{node.name}': attributes {sorted(attributes_of(node))}"
            )
        elif not spec.takes(len(node.input)) or not all(node.input):
            problems.append(f"{node.op_type} '{node.name}': {len(node.input)} inputs")
    return problems


# --- Shapes and types of tensors ---


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
    """Shape of every tensor of the graph that has one; None for free dimensions."""
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
        shapes: result of ``shapes_of``.

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
