"""Who makes and uses the tensors of a graph, and a graph with other nodes in the place of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from capsedge.graph.proto import captured_by, copy_of, replace
from capsedge.graph.shapes import values_of
from capsedge.schema.names import DOMAIN, operator_of


class Graph:
    """A model and who makes and uses its tensors.

    Attributes:
        model: as it was given.
        nodes: of its graph, capsule operators under the operator's own name instead of their body's.
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
        """The ReLU that alone uses a node's output."""
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
    """A copy with other nodes and more initializers, without what nothing uses any more.

    The file loses its functions of the domain ``capsedge``: they belong to the shapes and types of before.

    Args:
        nodes: of a ``Graph`` of the model, or made anew.
        like: new tensors: the old tensor whose shape each has, and its own element type.
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
