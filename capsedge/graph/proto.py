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


def captured_by(node: onnx.NodeProto) -> set[str]:
    """Tensors of the enclosing graphs that a node's subgraphs (If, Loop, Scan) read."""
    found: set[str] = set()
    for attribute in node.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
            own |= {o for inner in graph.node for o in inner.output}
            read = {i for inner in graph.node for i in inner.input if i}
            read |= {o.name for o in graph.output}
            for inner in graph.node:
                read |= captured_by(inner)
            found |= read - own
    return found


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


# --- Producers and consumers of tensors, and replacing nodes ---


class Graph:
    """A model with the producers and users of its tensors.

    Attributes:
        model: the model as given.
        nodes: the graph's nodes, with capsule operators under the operator's name instead of their body's.
        captured: tensors that subgraphs read.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes = [_without_body(node) for node in model.graph.node]
        self.initializers = {t.name: t for t in model.graph.initializer}
        self.outputs = {o.name for o in model.graph.output}
        self.producers = {o: n for n in self.nodes for o in n.output}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        self.captured: set[str] = set()
        for node in self.nodes:
            inner = captured_by(node)
            self.captured |= inner
            for name in (*node.input, *inner):
                self.consumers.setdefault(name, []).append(node)

    def array(self, name: str) -> NDArray[Any]:
        """Value of an initializer."""
        return numpy_helper.to_array(self.initializers[name])

    def relu_after(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The ReLU that is the only user of a node's output."""
        users = self.consumers.get(node.output[0], [])
        if len(users) == 1 and users[0].op_type == "Relu" and node.output[0] not in self.outputs:
            return users[0]
        return None

    def result(self, node: onnx.NodeProto) -> str:
        """The tensor that leaves a convolution: after its ReLU, if it has one."""
        relu = self.relu_after(node)
        return str(relu.output[0] if relu is not None else node.output[0])

    @property
    def fused(self) -> bool:
        """Whether the model uses the operators of the domain ``capsedge``."""
        return any(n.domain == DOMAIN for n in self.nodes)


def _without_body(node: onnx.NodeProto) -> onnx.NodeProto:
    """A node that names its operator, not a function body."""
    if node.domain != DOMAIN:
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.op_type, copy.overload = operator_of(node.op_type), ""
    return copy


def replace_graph(
    model: onnx.ModelProto,
    nodes: Iterable[onnx.NodeProto],
    more: Mapping[str, onnx.TensorProto],
    like: Mapping[str, tuple[str, int]],
) -> onnx.ModelProto:
    """A copy with new nodes and additional initializers, without unused parts.

    Its functions of the domain ``capsedge`` are dropped, since they belong to the old shapes and types.

    Args:
        nodes: nodes from a ``Graph`` of the model, or new ones.
        like: for each new tensor, the old tensor with the same shape, and its own element type.
    """
    copy, nodes = copy_of(model), list(nodes)
    replace(copy.graph.node, nodes)
    replace(copy.functions, [f for f in copy.functions if f.domain != DOMAIN])
    used = {i for n in nodes for i in (*n.input, *captured_by(n))}
    used |= {o.name for o in copy.graph.output}
    tensors = {t.name: t for t in model.graph.initializer} | dict(more)
    replace(copy.graph.initializer, (t for name, t in tensors.items() if name in used))
    known = values_of(model)
    for t in model.graph.initializer:
        known.setdefault(t.name, helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    for name, (old, element) in like.items():
        if old in known:
            value = onnx.ValueInfoProto()
            value.CopyFrom(known[old])
            value.name = name
            value.type.tensor_type.elem_type = element
            known[name] = value
    ends = {v.name for v in (*copy.graph.input, *copy.graph.output)}
    made = {o for n in nodes for o in n.output} - ends
    replace(copy.graph.value_info, (v for name, v in known.items() if name in made))
    return copy
