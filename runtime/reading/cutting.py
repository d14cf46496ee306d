"""A part of an ONNX file as a file of its own: what lies between a value and an output of the graph.

Like `onnx_file`, it needs only the standard library; bytes are copied, nothing is computed. ``cutting.cpp``
of libcapsedge cuts in the same way.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from capsedge.runtime.reading.wire import BYTES, Malformed, Wire, length_delimited

# Field numbers of onnx.proto3.
_MODEL_GRAPH, _MODEL_METADATA = 7, 14
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_TENSOR = 1, 2, 5
_GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_VALUE = 11, 12, 13
_NODE_INPUT, _NODE_OUTPUT, _NODE_TYPE, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 4, 5, 7
_TENSOR_NAME, _VALUE_NAME, _VALUE_TYPE = 8, 1, 2
_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 6, 11

# They leave the elements and their order alone.
_VIEWS = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")

_MOST_VIEWS = 8  # from the output back

_Span = tuple[int, int]


class Uncuttable(ValueError):
    """The output cannot be computed from the value alone; the message says why."""


@dataclass
class _Node:
    span: _Span
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    type: str = ""
    domain: str = ""
    holds_graphs: bool = False


class _Graph(Wire):
    """The main graph of a file that `onnx_file.summarize` has accepted."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.name: _Span = (0, 0)
        self.nodes: list[_Node] = []
        self.tensors: dict[str, _Span] = {}
        self.values: dict[str, _Span] = {}
        self.makers: dict[str, _Node] = {}
        for number, a, b in self.messages(0, len(data)):
            if number == _MODEL_GRAPH:
                self._read(a, b)

    def _read(self, start: int, end: int) -> None:
        for number, a, b in self.messages(start, end):
            if number == _GRAPH_NAME:
                self.name = a, b
            elif number == _GRAPH_NODE:
                self._node(a, b)
            elif number == _GRAPH_TENSOR:
                self.tensors[self._named(_TENSOR_NAME, a, b)] = a, b
            elif number in (_GRAPH_OUTPUT, _GRAPH_VALUE):
                self.values[self._named(_VALUE_NAME, a, b)] = a, b

    def _node(self, start: int, end: int) -> None:
        node = _Node((start, end))
        for number, a, b in self.messages(start, end):
            if number == _NODE_INPUT:
                node.inputs.append(self.text(a, b))
            elif number == _NODE_OUTPUT:
                node.outputs.append(self.text(a, b))
            elif number == _NODE_TYPE:
                node.type = self.text(a, b)
            elif number == _NODE_DOMAIN:
                node.domain = self.text(a, b)
            elif number == _NODE_ATTRIBUTE:
                inner = {of for of, _, _ in self.messages(a, b)}
                node.holds_graphs |= bool(inner & {_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS})
        self.nodes.append(node)
        self.makers.update(dict.fromkeys(filter(None, node.outputs), node))

    def _named(self, number: int, start: int, end: int) -> str:
        return next((self.text(a, b) for of, a, b in self.messages(start, end) if of == number), "")

    def same_elements(self, name: str) -> list[str]:
        """The value, and those that it only shows in another shape or type, nearest first."""
        chain = [name]
        for _ in range(_MOST_VIEWS):
            maker = self.makers.get(chain[-1])
            if maker is None or maker.type not in _VIEWS or maker.domain or not maker.inputs:
                break
            chain.append(maker.inputs[0])
        return chain

    def between(self, start: str, end: str) -> tuple[list[_Node], set[str]]:
        """The nodes that compute ``end`` from ``start``, in their order, and the names of what they read.

        Raises:
            Uncuttable: they read something else too.
        """
        wanted, seen, nodes = [end], {start, ""}, set[int]()
        while wanted:
            name = wanted.pop()
            if name in seen:
                continue
            seen.add(name)
            maker = self.makers.get(name)
            if maker is not None and maker.holds_graphs:
                raise Uncuttable(f"its {maker.type} node holds a graph")
            if maker is not None:
                nodes.add(id(maker))
                wanted += maker.inputs
            elif name not in self.tensors:
                raise Uncuttable(f"it also depends on '{name}'")
        return [node for node in self.nodes if id(node) in nodes], seen

    def description(self, name: str, start: str, nodes: list[_Node]) -> bytes:
        """The ``ValueInfoProto`` of a value; empty if the file has none and the nodes need its shape.

        Nodes that only reshape it take it in the shape of ``start``.
        """
        if name in self.values:
            return self.data[slice(*self.values[name])]
        readers = [node for node in nodes if name in node.inputs]
        reshaped = all(n.type == "Reshape" and n.inputs.index(name) == 0 for n in readers)
        types = [self.makers[v].type for v in self.same_elements(start) if v in self.makers]
        if not reshaped or "Cast" in types[: self.same_elements(start).index(name)]:
            return b""
        a, b = self.values[start]
        return length_delimited(_VALUE_NAME, name.encode()) + b"".join(
            length_delimited(_VALUE_TYPE, self.data[c:d])
            for number, c, d in self.messages(a, b)
            if number == _VALUE_TYPE
        )


def cut(data: bytes, start: str, end: str) -> bytes:
    """The part of a file that computes the output ``end`` from ``start``, which is its only input.

    Where that reads the value behind ``start``, of the same elements in another shape or type, this is the
    input.

    Args:
        data: an ONNX file that `onnx_file.summarize` has accepted.

    Raises:
        Uncuttable: ``end`` depends on more than ``start``, or the file does not describe the input.
    """
    try:
        return _cut(_Graph(data), start, end)
    except Malformed as error:
        raise Uncuttable(str(error)) from error


def _cut(graph: _Graph, start: str, end: str) -> bytes:
    refused: list[Uncuttable] = []
    for name in graph.same_elements(start):
        try:
            nodes, read = graph.between(name, end)
        except Uncuttable as error:
            refused.append(error)
            continue
        described = graph.description(name, start, nodes)
        if described:
            return _assembled(graph, nodes, read, described, end)
        refused.append(Uncuttable(f"the file does not state the shape of '{name}'"))
    raise refused[-1]


def _assembled(
    graph: _Graph, nodes: list[_Node], read: Collection[str], described: bytes, end: str
) -> bytes:
    data = graph.data
    parts = [(_GRAPH_NODE, node.span) for node in nodes]
    parts.append((_GRAPH_NAME, graph.name))
    parts += [(_GRAPH_TENSOR, span) for name, span in graph.tensors.items() if name in read]
    parts.append((_GRAPH_OUTPUT, graph.values[end]))
    content = b"".join(length_delimited(number, data[a:b]) for number, (a, b) in parts)
    content += length_delimited(_GRAPH_INPUT, described)
    model, at = [], 0
    for number, kind, _, b in graph.fields(0, len(data)):
        after = b if kind == BYTES else graph.end_of_number(at)
        if number == _MODEL_GRAPH:
            model.append(length_delimited(number, content))
        elif number != _MODEL_METADATA:
            model.append(data[at:after])
        at = after
    return b"".join(model)
