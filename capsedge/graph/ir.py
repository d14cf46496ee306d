"""An ONNX graph: who produces and who uses each value, inner graphs included; nodes, constants, shapes.

The nodes stay ONNX's own messages, since everything that runs, checks or infers a graph takes nothing else
(decision 0012). No other file builds a map from values to nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from capsedge.graph.bodies import Shape
from capsedge.spec.operators import DOMAIN, operator_of

Reads = Callable[[onnx.NodeProto], Iterable[str]]

# --- Inner graphs: the bodies of If, Loop and Scan ---


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs inside a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def has_inner_graphs(node: onnx.NodeProto) -> bool:
    """Whether there is a graph inside a node."""
    return next(inner_graphs(node), None) is not None


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and every graph inside its nodes, outer ones first."""
    yield graph
    for node in graph.node:
        for inner in inner_graphs(node):
            yield from all_graphs(inner)


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes and those of every graph inside them, outer ones first."""
    for node in nodes:
        yield node
        for inner in inner_graphs(node):
            yield from all_nodes(inner.node)


def captured_by(node: onnx.NodeProto) -> set[str]:
    """The values of the enclosing graphs that the graphs inside a node read."""
    captured: set[str] = set()
    for graph in inner_graphs(node):
        own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
        read = {o.name for o in graph.output}
        for inner in graph.node:
            own.update(inner.output)
            read.update(inner.input)
            read |= captured_by(inner)
        captured |= read - own
    return captured - {""}


def reads(node: onnx.NodeProto) -> list[str]:
    """The values that a node reads, each once: its inputs, then what the graphs inside it read."""
    names = [*node.input, *sorted(captured_by(node))]
    return [name for name in dict.fromkeys(names) if name]


# --- The graph ---


class Graph:
    """The nodes of a graph, with the producer and the users of each value.

    It describes the nodes as they were when it was made: make a new one after changing them.

    Args:
        nodes: nodes of a graph or a function, in order.
        outputs: names of its outputs.
        initializers: its stored values.

    Attributes:
        nodes, outputs: as given.
        initializers: by name.
    """

    def __init__(
        self,
        nodes: Iterable[onnx.NodeProto],
        outputs: Iterable[str] = (),
        initializers: Iterable[onnx.TensorProto] = (),
    ) -> None:
        self.nodes = list(nodes)
        self.outputs = set(outputs)
        self.initializers = {t.name: t for t in initializers}
        self._reads = [reads(node) for node in self.nodes]
        self._producers = {o: k for k, node in enumerate(self.nodes) for o in node.output if o}
        self._users: dict[str, list[int]] = {}
        for k, names in enumerate(self._reads):
            for name in names:
                self._users.setdefault(name, []).append(k)

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> Graph:
        """The graph of a model, or one inside a node."""
        return cls(graph.node, (o.name for o in graph.output), graph.initializer)

    @property
    def produced(self) -> KeysView[str]:
        """The values that nodes produce, in order."""
        return self._producers.keys()

    @property
    def used(self) -> KeysView[str]:
        """The values that nodes use."""
        return self._users.keys()

    @property
    def captured(self) -> set[str]:
        """The values that graphs inside nodes use."""
        return set().union(*map(captured_by, self.nodes))

    @property
    def needed(self) -> set[str]:
        """The values that nodes use, and the outputs."""
        return self.outputs | self.used

    def position(self, name: str) -> int | None:
        """The position of the node that produces a value; None for an input, a stored or an unknown value."""
        return self._producers.get(name)

    def producer(self, name: str) -> onnx.NodeProto | None:
        """The node that produces a value; None for an input, a stored or an unknown value."""
        k = self._producers.get(name)
        return None if k is None else self.nodes[k]

    def user_positions(self, name: str) -> Sequence[int]:
        """The positions of the nodes that use a value, in order."""
        return self._users.get(name, ())

    def users(self, name: str) -> list[onnx.NodeProto]:
        """The nodes that use a value, each once, in order."""
        return [self.nodes[k] for k in self._users.get(name, ())]

    def read_by(self, position: int) -> Sequence[str]:
        """The values that a node reads, as by `reads`."""
        return self._reads[position]

    def needs(self, position: int) -> list[int]:
        """The positions of the nodes whose values a node reads, in order."""
        made = {self._producers.get(name) for name in self._reads[position]}
        return sorted(k for k in made if k is not None)

    def array(self, name: str) -> NDArray[Any]:
        """A stored value."""
        return numpy_helper.to_array(self.initializers[name])

    def before(self, names: Iterable[str], follow: Reads | None = None) -> list[int]:
        """The positions of the nodes that values are computed with, in order.

        Args:
            follow: the values to go on from at a node; by default all that it reads.
        """
        waiting, met = list(names), set[int]()
        while waiting:
            k = self._producers.get(waiting.pop())
            if k is not None and k not in met:
                met.add(k)
                waiting += self._reads[k] if follow is None else follow(self.nodes[k])
        return sorted(met)


# --- Changes in place ---


def rewire(
    node: onnx.NodeProto, inputs: Mapping[str, str], outputs: Mapping[str, str] | None = None
) -> None:
    """Let a node read other values, and produce its own under other names; graphs inside stay as they are."""
    for field, names in ((node.input, inputs), (node.output, outputs or {})):
        for k, name in enumerate(field):
            if name in names:
                field[k] = names[name]


def rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename values of a graph and of every graph inside it."""
    for each in all_graphs(graph):
        for value in (*each.input, *each.output, *each.value_info, *each.initializer):
            value.name = names.get(value.name, value.name)
        for sparse in each.sparse_initializer:
            sparse.values.name = names.get(sparse.values.name, sparse.values.name)
        for annotation in each.quantization_annotation:
            annotation.tensor_name = names.get(annotation.tensor_name, annotation.tensor_name)
            for entry in annotation.quant_parameter_tensor_names:
                entry.value = names.get(entry.value, entry.value)
        for node in each.node:
            rewire(node, names, names)


def value_names(graph: onnx.GraphProto) -> list[str]:
    """The names of all values, including those of graphs inside, each once."""
    names: dict[str, None] = {}
    for each in all_graphs(graph):
        names |= dict.fromkeys(v.name for v in (*each.input, *each.initializer, *each.output))
        names |= dict.fromkeys(s.values.name for s in each.sparse_initializer)
        names |= dict.fromkeys(name for node in each.node for name in node.output)
    return [name for name in names if name]


# --- Nodes, attributes, constants, opsets ---


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that shares nothing with the model."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def replace_repeated(field: Any, items: Iterable[object]) -> None:
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
    replace_repeated(model.functions, [f for f in model.functions if f.domain != DOMAIN])
    for node in operator_nodes(model):
        node.op_type, node.overload = operator_of(node.op_type), ""


def set_opset(model: onnx.ModelProto, domain: str, version: int | None) -> None:
    """Import a domain at a version, or remove the import (None). The default domain stays first."""
    versions = {e.domain: e.version for e in model.opset_import if e.domain != domain}
    if version is not None:
        versions[domain] = version
    replace_repeated(
        model.opset_import, [helper.make_opsetid(d, versions[d]) for d in sorted(versions)]
    )


def opset_of(model: onnx.ModelProto) -> int:
    """Opset of the standard operators."""
    return next(int(e.version) for e in model.opset_import if e.domain in ("", "ai.onnx"))


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
    replace_repeated(model.graph.output, list(original.graph.output))
