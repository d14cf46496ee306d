"""Read the nodes, shapes and sizes of an ONNX file without the ``onnx`` package.

This goes deeper than ``summary``, which every load needs: it is what ``inspect`` shows. Weights are
stepped over; nothing in the file is executed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

from capsedge.errors import ArtefactError
from capsedge.runtime.files.protobuf import BYTES, MalformedProtobuf, Wire
from capsedge.runtime.onnx_file.summary import read_model_bytes, summarize
from capsedge.spec import limits, onnx_wire
from capsedge.spec.operators import DOMAIN, operator_of

BITS = dict(onnx_wire.ELEMENT_TYPES.values())  # of an element, by the name of its type
DEEPEST = 64  # nesting of If and Loop bodies; deeper is an attack, not a model
LONGEST_LIST = 4096  # numbers kept of an attribute; tree ensembles have millions and need none here

Shape = tuple[int | str, ...]
Span = tuple[int, int]


@dataclass(frozen=True)
class ValueInfo:
    """A named tensor: a graph input or output, an intermediate value, or stored data."""

    name: str
    type: str
    shape: Shape | None

    @property
    def elements(self) -> int | None:
        """Number of elements; None unless all dimensions are known."""
        if self.shape is None or not all(isinstance(d, int) for d in self.shape):
            return None
        return math.prod(int(d) for d in self.shape)


@dataclass(frozen=True)
class Node:
    """One node, with those of its attributes that are numbers, strings or tensors."""

    op: str
    domain: str
    overload: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    bodies: tuple[GraphStructure, ...]

    def integer(self, name: str, default: int) -> int:
        """An attribute; the default if it is missing or not a whole number."""
        value = self.attributes.get(name)
        return value if isinstance(value, int) else default

    def integers(self, name: str) -> list[int]:
        """An attribute; empty if it is missing or not a list of whole numbers."""
        value = self.attributes.get(name)
        numbers = value if isinstance(value, list) else []
        return numbers if all(isinstance(v, int) for v in numbers) else []

    @property
    def operator(self) -> str:
        """The operator that the type names: for a capsule operator without the number of its body."""
        return operator_of(self.op) if self.domain == DOMAIN else self.op


@dataclass
class GraphStructure:
    """A graph, a subgraph, or the body of a function."""

    name: str = ""
    domain: str = ""
    overload: str = ""
    nodes: list[Node] = field(default_factory=list)
    inputs: list[ValueInfo] = field(default_factory=list)
    outputs: list[ValueInfo] = field(default_factory=list)
    values: list[ValueInfo] = field(default_factory=list)
    initializers: list[ValueInfo] = field(default_factory=list)

    def graphs(self) -> Iterator[GraphStructure]:
        """This graph and all nested bodies."""
        yield self
        for node in self.walk():
            yield from node.bodies

    def walk(self) -> Iterator[Node]:
        """All nodes, including those of nested bodies."""
        for node in self.nodes:
            yield node
            for body in node.bodies:
                yield from body.walk()


@dataclass
class Structure:
    """The structure of an ONNX file.

    Attributes:
        training: as in `OnnxSummary`.
    """

    ir_version: int
    producer: str
    opsets: dict[str, int]
    metadata: dict[str, str]
    external_data: bool
    graph: GraphStructure
    functions: list[GraphStructure]
    training: list[str]


def read_structure(path: Path | str) -> Structure:
    """Read the structure of an ONNX file from any tool."""
    return structure_of(read_model_bytes(path), str(path))


def structure_of(data: bytes, path: str = "the model") -> Structure:
    """The structure of the content of an ONNX file; `path` is its name in errors."""
    summary = summarize(data, path)
    try:
        graph, functions = _StructureReader(data).read()
    except (MalformedProtobuf, UnicodeDecodeError) as error:
        raise ArtefactError(
            f"{path} is not a complete ONNX file.",
            f"Read as one, {error}.",
            "Fetch the file again, or export it again with `capsedge export`.",
        ) from error
    return Structure(
        ir_version=summary.ir_version,
        producer=summary.producer,
        opsets=summary.opsets,
        metadata=summary.metadata,
        external_data=bool(summary.external),
        graph=graph,
        functions=functions,
        training=summary.training,
    )


class _StructureReader(Wire):
    """Reads files that `summarize` has accepted."""

    def read(self) -> tuple[GraphStructure, list[GraphStructure]]:
        graph, functions = GraphStructure(), []
        for number, a, b in self.messages(0, len(self.data)):
            if number == onnx_wire.MODEL_GRAPH:
                graph = self.read_graph(a, b, 0)
            elif number == onnx_wire.MODEL_FUNCTION:
                functions.append(self.read_function(a, b))
        return graph, functions

    nodes = 0

    def count_node(self) -> None:
        """Refuse graphs with too many nodes."""
        self.nodes += 1
        if self.nodes > limits.GRAPH_NODES:
            raise MalformedProtobuf(f"it has over {limits.GRAPH_NODES:,} nodes")

    def integers(self, wire: int, a: int, b: int) -> list[int]:
        """A piece of a repeated integer field: one number, or a packed run of them."""
        if wire != BYTES:
            return [_signed(a)]
        numbers: list[int] = []
        while a < b and len(numbers) < LONGEST_LIST:
            number, a = self.varint(a, b)
            numbers.append(_signed(number))
        return numbers

    def floats(self, a: int, b: int) -> list[float]:
        piece = self.data[a : min(b, a + 4 * LONGEST_LIST)]
        if len(piece) % 4:
            raise MalformedProtobuf(f"a list of floats at byte {a} has an odd size")
        return [f for (f,) in struct.iter_unpack("<f", piece)]

    def read_tensor(self, start: int, end: int) -> ValueInfo:
        dims: list[int] = []
        name, kind = "", "undefined"
        for number, wire, a, b in self.fields(start, end):
            if number == onnx_wire.TENSOR_SIZES:
                dims += self.integers(wire, a, b)
            elif number == onnx_wire.TENSOR_TYPE:
                kind = _type(a)
            elif number == onnx_wire.TENSOR_NAME and wire == BYTES:
                name = self.text(a, b)
        if any(d < 0 for d in dims):
            raise MalformedProtobuf(f"tensor '{name}' has a negative dimension")
        return ValueInfo(name, kind, _countable(name, tuple(dims)))

    def read_value(self, start: int, end: int) -> ValueInfo:
        name, kind, shape = "", "not a tensor", None
        for number, a, b in self.messages(start, end):
            if number == onnx_wire.VALUE_NAME:
                name = self.text(a, b)
            elif number == onnx_wire.VALUE_TYPE:
                for part, c, d in self.messages(a, b):
                    if part == onnx_wire.TYPE_TENSOR:
                        kind, shape = self.tensor_type(c, d)
        return ValueInfo(name, kind, shape and _countable(name, shape))

    def tensor_type(self, start: int, end: int) -> tuple[str, Shape | None]:
        kind, shape = "undefined", None
        for number, wire, a, b in self.fields(start, end):
            if number == onnx_wire.ELEMENT_TYPE:
                kind = _type(a)
            elif number == onnx_wire.TENSOR_SHAPE and wire == BYTES:
                shape = tuple(
                    self.dimension(c, d)
                    for n, c, d in self.messages(a, b)
                    if n == onnx_wire.SHAPE_DIMENSION
                )
        return kind, shape

    def dimension(self, start: int, end: int) -> int | str:
        for number, wire, a, b in self.fields(start, end):
            if number == onnx_wire.DIMENSION_SIZE and wire != BYTES:
                return a if a < 2**63 else "?"  # -1 of tools that do not know
            if number == onnx_wire.DIMENSION_NAME and wire == BYTES:
                return self.text(a, b) or "?"
        return "?"

    def read_attribute(
        self, start: int, end: int, depth: int
    ) -> tuple[str, Any, list[GraphStructure]]:
        name = ""
        content: Any = None
        numbers: list[Any] = []
        bodies: list[GraphStructure] = []
        for number, wire, a, b in self.fields(start, end):
            if number == onnx_wire.ATTRIBUTE_INTEGER:
                content = _signed(a)
            elif number == onnx_wire.ATTRIBUTE_INTEGERS and len(numbers) < LONGEST_LIST:
                numbers += self.integers(wire, a, b)
            elif number == onnx_wire.ATTRIBUTE_FLOAT:
                content = self.floats(a, b)[0]
            elif number == onnx_wire.ATTRIBUTE_FLOATS and len(numbers) < LONGEST_LIST:
                numbers += self.floats(a, b)
            elif wire != BYTES:
                continue
            elif number == onnx_wire.ATTRIBUTE_NAME:
                name = self.text(a, b)
            elif number == onnx_wire.ATTRIBUTE_TEXT:
                content = self.data[a:b].decode("utf-8", "replace")
            elif number == onnx_wire.ATTRIBUTE_TENSOR:
                content = self.read_tensor(a, b)
            elif number in (onnx_wire.ATTRIBUTE_GRAPH, onnx_wire.ATTRIBUTE_GRAPHS):
                bodies.append(self.read_graph(a, b, depth + 1))
        return name, numbers or content, bodies

    def read_node(self, start: int, end: int, depth: int) -> Node:
        names = (
            onnx_wire.NODE_NAME,
            onnx_wire.NODE_TYPE,
            onnx_wire.NODE_DOMAIN,
            onnx_wire.NODE_OVERLOAD,
        )
        text = dict.fromkeys(names, "")
        inputs: list[str] = []
        outputs: list[str] = []
        attributes: dict[str, Any] = {}
        bodies: list[GraphStructure] = []
        for number, a, b in self.messages(start, end):
            if number == onnx_wire.NODE_INPUT:
                inputs.append(self.text(a, b))
            elif number == onnx_wire.NODE_OUTPUT:
                outputs.append(self.text(a, b))
            elif number == onnx_wire.NODE_ATTRIBUTE:
                name, content, nested = self.read_attribute(a, b, depth)
                attributes[name] = content
                bodies += nested
            elif number in text:
                text[number] = self.text(a, b)
        name, kind, domain, overload = text.values()
        return Node(
            op=kind,
            domain="" if domain == "ai.onnx" else domain,
            overload=overload,
            name=name,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            attributes=attributes,
            bodies=tuple(bodies),
        )

    def read_graph(self, start: int, end: int, depth: int) -> GraphStructure:
        if depth > DEEPEST:
            raise MalformedProtobuf(f"its graphs are nested more than {DEEPEST} deep")
        graph = GraphStructure()
        for number, a, b in self.messages(start, end):
            if number == onnx_wire.GRAPH_NODE:
                self.count_node()
                graph.nodes.append(self.read_node(a, b, depth))
            elif number == onnx_wire.GRAPH_NAME:
                graph.name = self.text(a, b)
            elif number == onnx_wire.GRAPH_TENSOR:
                graph.initializers.append(self.read_tensor(a, b))
            elif number == onnx_wire.GRAPH_INPUT:
                graph.inputs.append(self.read_value(a, b))
            elif number == onnx_wire.GRAPH_OUTPUT:
                graph.outputs.append(self.read_value(a, b))
            elif number == onnx_wire.GRAPH_VALUE:
                graph.values.append(self.read_value(a, b))
        graph.nodes = _sorted(graph.nodes)
        return graph

    def read_function(self, start: int, end: int) -> GraphStructure:
        graph = GraphStructure()
        for number, a, b in self.messages(start, end):
            if number == onnx_wire.FUNCTION_NAME:
                graph.name = self.text(a, b)
            elif number == onnx_wire.FUNCTION_NODE:
                self.count_node()
                graph.nodes.append(self.read_node(a, b, 0))
            elif number == onnx_wire.FUNCTION_DOMAIN:
                graph.domain = self.text(a, b)
            elif number == onnx_wire.FUNCTION_OVERLOAD:
                graph.overload = self.text(a, b)
        return graph


def _sorted(nodes: list[Node]) -> list[Node]:
    """The nodes in order; as they are if there is none, which no runtime accepts."""
    try:
        order = sorted_nodes(
            [
                {*node.inputs, *(i for body in node.bodies for i in _read_in(body))}
                for node in nodes
            ],
            [{name for name in node.outputs if name} for node in nodes],
        )
    except Cyclic:
        return nodes
    return [nodes[number] for number in order]


def _read_in(graph: GraphStructure) -> Iterator[str]:
    """All names that a body reads or returns; its own among them are harmless."""
    yield from (value.name for value in graph.outputs)
    for node in graph.walk():
        yield from node.inputs
        for body in node.bodies:
            yield from (value.name for value in body.outputs)


def _countable(name: str, shape: Shape) -> Shape:
    """The shape, if its elements can be counted; a size of zero counts as one."""
    sizes = [d for d in shape if isinstance(d, int)]
    if (
        len(shape) > limits.DIMENSIONS
        or math.prod(max(1, d) for d in sizes) > limits.VALUE_ELEMENTS
    ):
        raise MalformedProtobuf(f"'{name[:80]}' has a shape that fits no memory")
    return shape


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _type(number: int) -> str:
    return onnx_wire.ELEMENT_TYPES.get(number, (f"type {number}", 0))[0]


class Cyclic(ValueError):
    """Nodes wait for each other.

    Attributes:
        nodes: their numbers, and those of the nodes that wait for them.
    """

    def __init__(self, nodes: list[int]) -> None:
        super().__init__(f"{len(nodes)} nodes wait for each other")
        self.nodes = nodes


def sorted_nodes(reads: Sequence[Collection[str]], makes: Sequence[Collection[str]]) -> list[int]:
    """Numbers of the nodes in an order in which each comes after those whose values it reads.

    Nodes that are in order already keep their places. Values that no node makes are taken as given.

    Args:
        reads: the values that each node reads, also in the graphs inside it.
        makes: the values that each node makes.
    """
    maker: dict[str, int] = {}
    for number, names in enumerate(makes):
        for name in names:
            maker.setdefault(name, number)
    before = [{maker[name] for name in names if name in maker} for names in reads]
    if all(not earlier or max(earlier) < number for number, earlier in enumerate(before)):
        return list(range(len(reads)))
    waiting = [len(earlier) for earlier in before]
    users: list[list[int]] = [[] for _ in reads]
    for number, earlier in enumerate(before):
        for other in earlier:
            users[other].append(number)
    ready = [number for number, count in enumerate(waiting) if not count]
    heapify(ready)
    order = []
    while ready:
        order.append(heappop(ready))
        for user in users[order[-1]]:
            waiting[user] -= 1
            if not waiting[user]:
                heappush(ready, user)
    if len(order) < len(reads):
        raise Cyclic(sorted(set(range(len(reads))) - set(order)))
    return order
