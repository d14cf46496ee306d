"""What of a model can be quantized: its units, each a layer with its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from capsedge.schema.names import DOMAIN, operator_of

LEAST_ELEMENTS = 256  # smaller weights stay FP32: their scales would weigh as much
MAX_PRODUCTS = 65000  # of uint8 and int8 that a 32-bit sum holds (docs/operators.md, QuantizedConv)
ROUTING = {
    "DynamicRouting": 1,
    "EMRouting": 2,
    "AttentionRouting": 2,
    "UniformRouting": 1,
}  # place of the weight
STORED = {"Gemm": 1, "MatMul": 1}


@dataclass(frozen=True)
class Unit:
    """A layer that gets one precision.

    Attributes:
        name: the layer's, as the exporter names its weight.
        kind: ``conv``; ``routing`` (a capsule operator with INT8 weights of its own); ``linear`` (weights
            that are stored small and computed in FP32).
        weight: the initializer.
        elements: of the weight.
    """

    name: str
    kind: str
    weight: str
    elements: int


@dataclass(frozen=True)
class Kept:
    """Something kept in FP32, why, and the numbers behind it."""

    node: str
    op: str
    rule: str
    numbers: str

    def to_dict(self) -> dict[str, str]:
        """JSON values."""
        return {"node": self.node, "op": self.op, "rule": self.rule, "numbers": self.numbers}


class Graph:
    """A model and who makes and uses its tensors.

    Attributes:
        model: as it was given.
        nodes: of its graph, capsule operators under the operator's own name instead of their body's.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes = [_without_body(node) for node in model.graph.node]
        self.initializers = {t.name: t for t in model.graph.initializer}
        self.outputs = {o.name for o in model.graph.output}
        self.producers = {o: n for n in self.nodes for o in n.output}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
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


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Attributes as Python values."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def title(weight: str) -> str:
    """A layer's name from its weight's."""
    return weight.removeprefix("model.").removesuffix(".weight")


def float_weight(graph: Graph, node: onnx.NodeProto, place: int) -> str | None:
    """The FP32 initializer at a place of a node's inputs."""
    if len(node.input) <= place:
        return None
    tensor = graph.initializers.get(node.input[place])
    return tensor.name if tensor is not None and tensor.data_type == TensorProto.FLOAT else None


def is_sum(graph: Graph, node: onnx.NodeProto) -> bool:
    """Whether a product is a sum: by a constant vector of equal numbers, as the exporter writes it."""
    if node.op_type != "MatMul" or node.domain:
        return False
    for name in node.input:
        tensor = graph.initializers.get(name)
        if tensor is not None and 1 in tensor.dims and np.ptp(numpy_helper.to_array(tensor)) == 0:
            return True
    return False


def conv_problem(graph: Graph, node: onnx.NodeProto) -> str:
    """Why a convolution cannot run in 8 bits; empty if it can."""
    if float_weight(graph, node, 1) is None:
        return "its weight is no FP32 constant"
    if len(node.input) > 2 and node.input[2] and float_weight(graph, node, 2) is None:
        return "its bias is no FP32 constant"
    dims = list(graph.initializers[node.input[1]].dims)
    a = attributes(node)
    if len(dims) != 4:
        return f"it has {len(dims) - 2} spatial dimensions, wanted 2"
    if a.get("group", 1) != 1:
        return f"it has {a['group']} groups, wanted 1"
    if a.get("auto_pad", b"NOTSET") != b"NOTSET":
        return "its padding is computed (auto_pad)"
    if math.prod(dims[1:]) > MAX_PRODUCTS:
        return f"{math.prod(dims[1:])} products of 8 bits overflow a 32-bit sum"
    return ""


def find_units(graph: Graph) -> tuple[list[Unit], list[Kept]]:
    """The layers that can be quantized, in the graph's order, and the weights that cannot."""
    kinds: dict[str, str] = {}
    kept: list[Kept] = []
    for node in graph.nodes:
        place = {"Conv": 1, **ROUTING, **STORED}.get(node.op_type)
        if place is None or node.domain not in ("", DOMAIN):
            continue
        name = float_weight(graph, node, place)
        if name is None or is_sum(graph, node):
            continue
        elements = math.prod(graph.initializers[name].dims)
        if node.op_type == "Conv":
            problem = conv_problem(graph, node)
            if problem:
                kept.append(Kept(title(name), "Conv", "shape", problem))
                continue
            kind = "conv"
        elif elements < LEAST_ELEMENTS:
            numbers = f"{elements} weights, fewer than {LEAST_ELEMENTS}"
            kept.append(Kept(title(name), node.op_type, "small", numbers))
            continue
        else:
            kind = "routing" if node.op_type in ROUTING else "linear"
        # A weight that several nodes share is one unit, of the kind that computes in 8 bits.
        if kinds.get(name) in (None, "linear"):
            kinds[name] = kind
    units = [
        Unit(title(name), kind, name, math.prod(graph.initializers[name].dims))
        for name, kind in kinds.items()
    ]
    return units, kept


def calibrated_tensors(graph: Graph, units: Iterable[Unit]) -> list[str]:
    """The activations whose range the convolutions need: inputs and results."""
    wanted: dict[str, None] = {}
    weights = {u.weight for u in units if u.kind == "conv"}
    for node in graph.nodes:
        if node.op_type == "Conv" and node.input[1] in weights:
            wanted[node.input[0]] = None
            wanted[graph.result(node)] = None
    return list(wanted)


def float_tensors(model: onnx.ModelProto) -> list[str]:
    """Inputs and node outputs of the graph that are FP32."""
    graph = model.graph
    made = {o for n in graph.node for o in n.output} | {i.name for i in graph.input}
    return [
        name
        for name, v in shapes(model).items()
        if v.type.tensor_type.elem_type == TensorProto.FLOAT and name in made
    ]


def initializer(name: str, value: NDArray[Any] | np.generic) -> onnx.TensorProto:
    """An initializer of a numpy array or number."""
    return numpy_helper.from_array(np.asarray(value, order="C"), name)


def shapes(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Type and shape of every tensor of the graph that inference finds."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    return {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}


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
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes = list(nodes)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    others = [f for f in copy.functions if f.domain != DOMAIN]
    del copy.functions[:]
    copy.functions.extend(others)
    used = {i for n in nodes for i in n.input} | {o.name for o in copy.graph.output}
    tensors = {t.name: t for t in model.graph.initializer} | dict(more)
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(t for name, t in tensors.items() if name in used)
    known = shapes(model)
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
    del copy.graph.value_info[:]
    copy.graph.value_info.extend(v for name, v in known.items() if name in made)
    return copy
