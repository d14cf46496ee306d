"""Find the nodes that compute a tensor from the sizes of inputs and from constants alone.

Examples are positions (``arange(length)``) and the rows of a table cut to a length.
"""

from __future__ import annotations

import itertools

import onnx

from capsedge.graph.ir import Graph, has_inner_graphs

FOLDED = "/constant"  # suffix of the name of a computed tensor's value
_PREFIX = "sizes"  # begins the names of copies


class SizeNodes:
    """Copies of such nodes, to be put into another graph with the same inputs.

    Args:
        model: the graph that has the nodes.
        target: the graph that they are for, which may have earlier copies.

    Attributes:
        nodes: copied so far, in the order of the graph.
        stored: the constants that they read.
    """

    def __init__(self, model: onnx.ModelProto, target: onnx.ModelProto) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self._graph = Graph.of(model.graph)
        self._inputs = {value.name for value in model.graph.input}
        self._constants = self._graph.initializers
        self._copied: set[str | int] = set()  # constants by name, nodes by number
        present = {name.partition("/")[0] for n in target.graph.node for name in n.output}
        names = (f"{_PREFIX}{n or ''}" for n in itertools.count())
        self._prefix = next(name for name in names if name not in present) + "/"

    def add(self, name: str) -> bool:
        """Copy the nodes that compute a tensor or its folded value; returns whether sizes determine it."""
        computed = name if name in self._graph.produced else name.removesuffix(FOLDED)
        needed = self._needed(computed)
        if not needed:
            return False
        for k in sorted(needed - self._copied):
            self._copied.add(k)
            self.nodes.append(self._copy(self._graph.nodes[k]))
        self.nodes.append(onnx.helper.make_node("Identity", [self._prefix + computed], [name]))
        return True

    def _needed(self, name: str) -> set[int]:
        """Indices of the nodes that compute a tensor; none if it depends on values of an input."""
        found: set[int] = set()
        waiting = [name]
        while waiting:
            k = self._graph.position(waiting.pop())
            if k is None or has_inner_graphs(self._graph.nodes[k]):
                return set()
            if k in found:
                continue
            found.add(k)
            node = self._graph.nodes[k]
            values = [r for r in node.input if r and r not in self._constants]
            if node.op_type != "Shape" or values[0] not in self._inputs:
                waiting += values
        return found

    def _copy(self, node: onnx.NodeProto) -> onnx.NodeProto:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = self._prefix + node.output[0]
        for k, read in enumerate(node.input):
            if read in self._constants and read not in self._copied:
                self._copied.add(read)
                self.stored.append(onnx.TensorProto())
                self.stored[-1].CopyFrom(self._constants[read])
                self.stored[-1].name = self._prefix + read
            if read and read not in self._inputs:
                copy.input[k] = self._prefix + read
        for k, made in enumerate(node.output):
            copy.output[k] = self._prefix + made
        return copy
