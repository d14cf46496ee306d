"""A model's graph as quantization reads it, and a model with other nodes in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
from onnx import helper

from capsedge.graph.ir import Graph, copy_of, replace, values_of
from capsedge.spec.operators import DOMAIN, operator_of


class LayerGraph(Graph):
    """The graph of a model, with capsule operators under the operator's name instead of their body's.

    Attributes:
        model: the model as given.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        nodes = map(_without_body, graph.node)
        super().__init__(nodes, (o.name for o in graph.output), graph.initializer)
        self.model = model

    def relu_after(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The ReLU that is the only user of a node's output."""
        users = self.users(node.output[0])
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
        nodes: nodes from a ``LayerGraph`` of the model, or new ones.
        like: for each new tensor, the old tensor with the same shape, and its own element type.
    """
    copy = copy_of(model)
    replace(copy.graph.node, nodes)
    replace(copy.functions, [f for f in copy.functions if f.domain != DOMAIN])
    new = Graph.of(copy.graph)
    used = new.needed
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
    inner = new.produced - ends
    replace(copy.graph.value_info, (v for name, v in known.items() if name in inner))
    return copy
