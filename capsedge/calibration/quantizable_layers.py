"""Find the layers of a model that can be quantized, and quantize their weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.ir import (
    Graph,
    attributes_of,
    copy_of,
    inner_graphs,
    replace_repeated,
    values_of,
)
from capsedge.spec import limits
from capsedge.spec.operators import DOMAIN, OPERATORS, operator_of

# --- Quantizable layers ---

LEAST_ELEMENTS = 256  # smaller weights stay FP32: their scales would take as much space
# Index of the weight among the inputs.
_STANDARD = {"Conv": 1, "Gemm": 1, "MatMul": 1, "Gather": 0}


@dataclass(frozen=True)
class QuantizableLayer:
    """A layer that gets one precision.

    Attributes:
        name: name of the layer, from the exporter's name of its weight.
        kind: ``conv``; ``routing`` (a capsule operator that has a variant with INT8 weights); ``linear``
            (weights that are stored in few bits and used in FP32); ``table`` (rows that are looked up, such
            as embeddings: stored in few bits, and only the rows that are read become FP32).
        weight: the initializer.
        elements: number of elements of the weight.
    """

    name: str
    kind: str
    weight: str
    elements: int


@dataclass(frozen=True)
class KeptNode:
    """A node that quantization keeps in FP32, with the reason and its numbers."""

    node: str
    op: str
    rule: str
    numbers: str

    def to_dict(self) -> dict[str, str]:
        """JSON values."""
        return {"node": self.node, "op": self.op, "rule": self.rule, "numbers": self.numbers}


def title(weight: str) -> str:
    """The name of a layer from the name of its weight."""
    return weight.removeprefix("model.").removesuffix(".weight")


def weight_input(node: onnx.NodeProto) -> int | None:
    """The index of a node's input that is a weight that can be in 8 bits; None if there is none."""
    if node.domain == "":
        return _STANDARD.get(node.op_type)
    spec = OPERATORS.get(node.op_type) if node.domain == DOMAIN else None
    return spec.weight if spec is not None and spec.int8 else None


def float_weight(graph: LayerGraph, node: onnx.NodeProto, index: int) -> str | None:
    """The FP32 initializer at an index of a node's inputs."""
    if len(node.input) <= index:
        return None
    tensor = graph.initializers.get(node.input[index])
    return tensor.name if tensor is not None and tensor.data_type == TensorProto.FLOAT else None


def is_sum(graph: LayerGraph, node: onnx.NodeProto) -> bool:
    """Whether a product is a sum: by a constant vector of equal numbers, as the exporter writes it."""
    if node.op_type != "MatMul" or node.domain:
        return False
    for name in node.input:
        tensor = graph.initializers.get(name)
        if tensor is None or 1 not in tensor.dims or 0 in tensor.dims:
            continue
        if np.ptp(numpy_helper.to_array(tensor)) == 0:
            return True
    return False


def is_table(graph: LayerGraph, name: str) -> bool:
    """Whether an initializer ``[rows, size]`` is only looked up, row by row."""
    return len(graph.initializers[name].dims) == 2 and all(
        user.op_type == "Gather"
        and not user.domain
        and user.input[0] == name
        and attributes_of(user).get("axis", 0) == 0
        and user.input[1] not in graph.initializers
        for user in graph.users(name)
    )


def conv_problem(graph: LayerGraph, node: onnx.NodeProto) -> str:
    """Why a convolution cannot run in 8 bits; empty if it can."""
    if float_weight(graph, node, 1) is None:
        return "its weight is not an FP32 constant"
    if len(node.input) > 2 and node.input[2] and float_weight(graph, node, 2) is None:
        return "its bias is not an FP32 constant"
    dims = list(graph.initializers[node.input[1]].dims)
    a = attributes_of(node)
    if len(dims) != 4:
        return f"it has {len(dims) - 2} spatial dimensions, not 2"
    if a.get("group", 1) != 1:
        return f"it has {a['group']} groups, not 1"
    if a.get("auto_pad", b"NOTSET") != b"NOTSET":
        return "its padding is computed (auto_pad)"
    if math.prod(dims[1:]) > limits.CONVOLUTION_PRODUCTS:
        return f"{math.prod(dims[1:])} products of 8 bits overflow a 32-bit sum"
    return ""


def find_layers(graph: LayerGraph) -> tuple[list[QuantizableLayer], list[KeptNode]]:
    """The layers that can be quantized, in the graph's order, and the weights that cannot."""
    kinds: dict[str, str] = {}
    kept: list[KeptNode] = []
    refused: set[str] = set()  # weights of a convolution that cannot run in 8 bits
    for node in graph.nodes:
        kept += _inside(node)
        index = weight_input(node)
        name = None if index is None else float_weight(graph, node, index)
        if name is None or is_sum(graph, node):
            continue
        if node.op_type == "Gather" and not is_table(graph, name):
            continue
        elements = math.prod(graph.initializers[name].dims)
        if node.op_type == "Conv":
            problem = conv_problem(graph, node)
            if problem:
                kept.append(KeptNode(title(name), "Conv", "shape", problem))
                refused.add(name)
                continue
            kind = "conv"
        elif elements < LEAST_ELEMENTS:
            numbers = f"{elements} weights, fewer than {LEAST_ELEMENTS}"
            kept.append(KeptNode(title(name), node.op_type, "small", numbers))
            continue
        else:
            kind = "routing" if node.domain == DOMAIN else "linear"
            kind = "table" if node.op_type == "Gather" else kind
        # A weight shared by several nodes is one unit, of the kind that computes in 8 bits.
        if kinds.get(name) in (None, "linear"):
            kinds[name] = kind
    layers = [
        QuantizableLayer(title(name), kind, name, math.prod(graph.initializers[name].dims))
        for name, kind in kinds.items()
        if name not in refused
    ]
    return layers, kept


def _inside(node: onnx.NodeProto) -> list[KeptNode]:
    """The layers in the subgraphs of a node."""
    layers = []
    for graph in inner_graphs(node):
        for inner in graph.node:
            if inner.domain == "" and inner.op_type in _STANDARD:
                numbers = f"inside a {node.op_type}"
                name = inner.name or inner.output[0]
                layers.append(KeptNode(name, inner.op_type, "subgraph", numbers))
            layers += _inside(inner)
    return layers


def calibrated_tensors(graph: LayerGraph, layers: Iterable[QuantizableLayer]) -> list[str]:
    """The activations whose range the convolutions need: inputs and results."""
    wanted: dict[str, None] = {}
    weights = {u.weight for u in layers if u.kind == "conv"}
    for node in graph.nodes:
        if node.op_type == "Conv" and node.input[1] in weights:
            wanted[node.input[0]] = None
            wanted[graph.result(node)] = None
    return list(wanted)


def float_tensors(model: onnx.ModelProto) -> list[str]:
    """The FP32 tensors whose ranges FP16 must hold: inputs and node outputs of the graph."""
    produced = Graph.of(model.graph).produced | {i.name for i in model.graph.input}
    return [
        name
        for name, v in values_of(model).items()
        if v.type.tensor_type.elem_type == TensorProto.FLOAT and name in produced
    ]


# --- Weights in 8 and 4 bits: symmetric, one scale per output channel ---

LARGEST = 127  # -128 stays unused: symmetric
LARGEST4 = 7
MULTIPLIERS = LARGEST // LARGEST4  # a 4-bit weight times this still fits 8 bits
SMALLEST_GROUP = 8  # weights that share a multiplier
_ROWS = 65536  # number of rows of a table to quantize at a time


def quantize(
    weight: NDArray[Any], axes: tuple[int, ...], least: NDArray[Any] | None = None
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Weights as INT8 and their scales, which cover the largest magnitude.

    Args:
        axes: axes along which values share a scale; the scale keeps them with length 1.
        least: the smallest scales allowed; none by default.

    Returns:
        ``weight`` ~ ``integers * scale``; a channel of zeros has the scale 0.
    """
    w = weight.astype(np.float64)
    scale = (np.abs(w).max(axis=axes, keepdims=True) / LARGEST).astype(np.float32)
    if least is not None:
        scale = np.maximum(scale, least).astype(np.float32)
    return _steps(w, scale).round().clip(-LARGEST, LARGEST).astype(np.int8), scale


def activation_scale(width: float, steps: int) -> np.float32:
    """The scale of a range of this width, which FP32 must not round to zero."""
    return np.float32(max(width / steps, float(np.finfo(np.float32).tiny)))


def quantize_rows(table: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A table ``[rows, size]`` as INT8 and a scale for each row ``[rows, 1]``; in parts, for large tables."""
    integers = np.empty(table.shape, np.int8)
    scale = np.empty((len(table), 1), np.float32)
    for start in range(0, len(table), _ROWS):
        part = slice(start, start + _ROWS)
        integers[part], scale[part] = quantize(table[part], (1,))
    return integers, scale


def quantize4(
    weight: NDArray[Any], scale: NDArray[np.float32]
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """4-bit weights that give INT8 weights of a given scale: ``four * multiplier``.

    The multiplier is a small integer, shared along the last two axes (the elements of a kernel or of a pose
    matrix), so that a group of small weights keeps small steps although its channel has one scale. The
    multiplier with the least squared error is chosen.

    Returns:
        ``four`` in -7..7, and the multipliers, with length 1 along the shared axes.
    """
    steps = _steps(weight.astype(np.float64), scale)
    axes = tuple(range(max(0, steps.ndim - 2), steps.ndim))
    while np.prod([steps.shape[k] for k in axes]) < SMALLEST_GROUP and axes[0] > 1:
        axes = (axes[0] - 1, *axes)
    best = np.ones([1 if k in axes else n for k, n in enumerate(steps.shape)])
    least = np.full(best.shape, np.inf)
    for multiplier in range(1, MULTIPLIERS + 1):
        four = (steps / multiplier).round().clip(-LARGEST4, LARGEST4)
        error = np.square(steps - four * multiplier).sum(axis=axes, keepdims=True)
        best = np.where(error < least, multiplier, best)
        least = np.minimum(error, least)
    four = (steps / best).round().clip(-LARGEST4, LARGEST4)
    return four.astype(np.int8), best.astype(np.int8)


def _steps(w: NDArray[np.float64], scale: NDArray[np.float32]) -> NDArray[np.float64]:
    exact = np.broadcast_to(scale.astype(np.float64), w.shape)
    return np.divide(w, exact, out=np.zeros_like(w), where=exact > 0)


def int4_tensor(name: str, values: NDArray[np.int8]) -> onnx.TensorProto:
    """An INT4 initializer: two values per byte, the first in the low half (onnx.proto, TensorProto)."""
    flat = values.reshape(-1).astype(np.uint8) & 0xF
    if len(flat) % 2:
        flat = np.append(flat, np.uint8(0))
    packed = (flat[0::2] | (flat[1::2] << 4)).astype(np.uint8)
    tensor = TensorProto(name=name, data_type=TensorProto.INT4, dims=values.shape)
    tensor.raw_data = packed.tobytes()
    return tensor


class LayerGraph(Graph):
    """The graph of a model to quantize, with capsule operators under their own names.

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
    replace_repeated(copy.graph.node, nodes)
    replace_repeated(copy.functions, [f for f in copy.functions if f.domain != DOMAIN])
    new = Graph.of(copy.graph)
    used = new.needed
    tensors = {t.name: t for t in model.graph.initializer} | dict(more)
    replace_repeated(copy.graph.initializer, (t for name, t in tensors.items() if name in used))
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
    replace_repeated(copy.graph.value_info, (v for name, v in known.items() if name in inner))
    return copy
