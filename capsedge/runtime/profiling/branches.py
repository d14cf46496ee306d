"""The operators of `If` branches: their own times, and where they stand in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.backends.backend import Event
from capsedge.runtime.cascade import CASCADE_KEY, LONG_WAY
from capsedge.runtime.reading.attribution import Place, places
from capsedge.runtime.reading.onnx_structure import Graph, Node, Structure

SMALL, LARGE, BETWEEN = "small network", "large network", "cascade"
NETWORKS = (SMALL, BETWEEN, LARGE)
OWN = "cascade_"  # what the names of nodes between the networks begin with (graph/cascade.py)
_BRANCHING = "If"


@dataclass
class Executed:
    """The operators of one run, in the order in which they end: those of a branch before their ``If``.

    Attributes:
        graph: all of them, with the initializers and values of all graphs that they stand in.
        bodies: the graph that each stands in.
    """

    graph: Graph = field(default_factory=Graph)
    bodies: list[Graph] = field(default_factory=list)


def executed(whole: Graph, kinds: Sequence[str]) -> Executed | None:
    """The operators with these types in this order; None if no choice of branches has them."""
    for candidate in _orders(whole):
        if [node.op for _, node in candidate] == list(kinds):
            found = Executed(Graph(), [body for body, _ in candidate])
            found.graph.nodes = [node for _, node in candidate]
            for body in {id(b): b for b in (whole, *found.bodies)}.values():
                found.graph.initializers += body.initializers
                found.graph.values += body.values
            found.graph.inputs, found.graph.outputs = whole.inputs, whole.outputs
            return found
    return None


_MOST = 16  # combinations of branches that are tried


def _orders(graph: Graph) -> Iterator[list[tuple[Graph, Node]]]:
    orders: list[list[tuple[Graph, Node]]] = [[]]
    for node in graph.nodes:
        taken: list[list[tuple[Graph, Node]]] = [[]]
        if node.op == _BRANCHING:
            taken = [inner for body in node.bodies for inner in _orders(body)][:_MOST]
        orders = [[*o, *inner, (graph, node)] for o in orders for inner in taken][:_MOST]
    yield from orders


def own_durations(run: Sequence[Event]) -> NDArray[np.float64]:
    """Microseconds of each operator of a run, without those of the operators in its branches."""
    own = np.array([event.duration for event in run], dtype=np.float64)
    inside = np.zeros(len(run), bool)
    for k, event in enumerate(run):
        if event.kind != _BRANCHING:
            continue
        for j in range(k - 1, -1, -1):
            if run[j].start < event.start:
                break
            if not inside[j]:
                own[k] -= run[j].duration
                inside[j] = True
    return np.maximum(own, 0.0)


def placed(written: Structure, running: Executed) -> list[Place]:
    """The place of every operator; in a cascade, of the network that it belongs to."""
    found: list[Place | None] = [None] * len(running.bodies)
    for body in {id(b): b for b in running.bodies}.values():
        numbers = [k for k, other in enumerate(running.bodies) if other is body]
        nodes = [running.graph.nodes[k] for k in numbers]
        source = replace(written, graph=_written(written.graph, body))
        part = places(source, replace(body, nodes=nodes))
        for k, place in zip(numbers, part, strict=True):
            between = running.graph.nodes[k].name.startswith(OWN)
            found[k] = Place() if between else place
    return [place for place in found if place is not None]


def networks(written: Structure, running: Executed) -> list[str]:
    """The network of a cascade that each operator belongs to, one of `NETWORKS`; empty for other files."""
    if CASCADE_KEY not in written.metadata:
        return [""] * len(running.bodies)
    return [
        _network(body, node) for body, node in zip(running.bodies, running.graph.nodes, strict=True)
    ]


def _network(body: Graph, node: Node) -> str:
    if node.name.startswith(OWN):
        return BETWEEN
    return LARGE if body.name == LONG_WAY else SMALL


def _written(graph: Graph, body: Graph) -> Graph:
    """The graph of the file that a graph was optimized from: the branch of its name, else the main one."""
    named = [b for node in graph.walk() for b in node.bodies if b.name and b.name == body.name]
    return named[0] if named else graph
