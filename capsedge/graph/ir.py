"""Who produces and who uses each value of an ONNX graph, the graphs inside nodes included.

The nodes stay ONNX's own messages, since everything that runs, checks or infers a graph takes nothing else
(decision 0012). No other file builds a map from values to nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

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
