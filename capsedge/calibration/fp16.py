"""Convert a graph to FP16 with casts, and list the nodes that stay in FP32 with the rule and its numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from capsedge.calibration.quantizable_layers import KeptNode, LayerGraph, is_sum, replace_graph
from capsedge.graph.ir import has_inner_graphs, initializer, opset_of, values_of
from capsedge.spec.operators import DOMAIN

LARGEST = 65504.0
HEADROOM = 4.0  # images outside the calibration set may give larger values
SMALLEST_NORMAL = 2.0**-14  # below it FP16 loses digits, below 6e-8 the whole value
SCALAR = (
    1  # a constant of one element may be an epsilon; one small bias among several may be rounded
)
STATISTICS = {
    "BatchNormalization",
    "Div",
    "Exp",
    "InstanceNormalization",
    "LayerNormalization",
    "Log",
    "LogSoftmax",
    "Pow",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceMean",
    "ReduceSum",
    "ReduceSumSquare",
    "Sigmoid",
    "Softmax",
    "Sqrt",
}
# These compute nothing: they keep the type of their input.
MOVING = {"Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split"}
MOVING |= {"Squeeze", "Transpose", "Unsqueeze"}
Limits = Mapping[str, tuple[float, float]]


def emit(model: onnx.ModelProto, limits: Limits) -> tuple[onnx.ModelProto, list[KeptNode]]:
    """The model in FP16, with its inputs and outputs in FP32.

    Capsule operators accept FP16 and, by their specification, compute in FP32 internally; their epsilons
    are FP32 attributes. Every node that stays in FP32 is listed.

    Args:
        limits: smallest and largest value of the graph's FP32 tensors on the calibration images.
    """
    return _Fp16Emitter(model, limits).run()


class _Fp16Emitter:
    def __init__(self, model: onnx.ModelProto, limits: Limits) -> None:
        self.graph = LayerGraph(model)
        self.limits = limits
        self.opset = opset_of(model)
        known = values_of(model)
        self.float_ = {
            name for name, v in known.items() if v.type.tensor_type.elem_type == TensorProto.FLOAT
        } | {
            name for name, t in self.graph.initializers.items() if t.data_type == TensorProto.FLOAT
        }
        self.half: set[str] = set()  # tensors computed in FP16, under their own names
        self.nodes: list[onnx.NodeProto] = []
        self.more: dict[str, onnx.TensorProto] = {}
        self.like: dict[str, tuple[str, int]] = {}
        self.cast: dict[tuple[str, int], str] = {}
        self.kept: list[KeptNode] = []

    def run(self) -> tuple[onnx.ModelProto, list[KeptNode]]:
        outputs = self.graph.outputs | self.graph.captured
        for node in self.graph.nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            moving = node.op_type in MOVING and node.domain == ""
            if moving:
                first = next((i for i in node.input if i in self.float_), None)
                half = first is not None and first in self.half
            else:
                reason = self._reason(node)
                half = reason is None and any(o in self.float_ for o in node.output)
                if reason is not None:
                    self.kept.append(reason)
            kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
            for k, name in enumerate(node.input):
                if name in self.float_:
                    copy.input[k] = self._as(name, kind)
            after = []
            for k, name in enumerate(node.output):
                if name not in self.float_ or not half:
                    continue
                if name in outputs:
                    copy.output[k] = f"{name}_fp16"
                    self.cast[name, TensorProto.FLOAT16] = f"{name}_fp16"
                    self.like[f"{name}_fp16"] = (name, TensorProto.FLOAT16)
                    after.append(
                        helper.make_node("Cast", [f"{name}_fp16"], [name], to=TensorProto.FLOAT)
                    )
                else:
                    self.half.add(name)
                    self.like[name] = (name, TensorProto.FLOAT16)
            self.nodes += [copy, *after]
        return replace_graph(self.graph.model, self.nodes, self.more, self.like), self.kept

    def _as(self, name: str, kind: int) -> str:
        """The tensor in this type, with a cast if it is computed in the other."""
        if (kind == TensorProto.FLOAT16) == (name in self.half):
            return name
        if (name, kind) in self.cast:
            return self.cast[name, kind]
        new = f"{name}_fp16" if kind == TensorProto.FLOAT16 else f"{name}_fp32"
        if name in self.graph.initializers:
            self.more[new] = initializer(new, self.graph.array(name).astype(np.float16))
        else:
            self.nodes.append(helper.make_node("Cast", [name], [new], to=kind))
            self.like[new] = (name, kind)
        self.cast[name, kind] = new
        return new

    def _reason(self, node: onnx.NodeProto) -> KeptNode | None:
        """Why a node stays in FP32; None if it does not."""
        named = node.name or next(filter(None, node.output), node.op_type)
        floats = [n for n in (*node.input, *node.output) if n in self.float_]
        if not floats:
            return None
        if node.domain != DOMAIN and not self._follows(node):
            return KeptNode(
                named, node.op_type, "type", "it takes or returns FP32 whatever its inputs are"
            )
        largest = max(self._largest(n) for n in floats)
        if largest * HEADROOM > LARGEST:
            numbers = (
                f"magnitudes up to {largest:.4g}; FP16 ends at {LARGEST:.0f}, headroom {HEADROOM:g}"
            )
            return KeptNode(named, node.op_type, "range", numbers)
        squares = node.op_type == "Mul" and node.input[0] == node.input[1]
        if squares or is_sum(self.graph, node):
            numbers = "a square" if squares else "a sum"
            return KeptNode(named, node.op_type, "statistics", numbers)
        for name in node.input:
            tensor = self.graph.initializers.get(name)
            if name in self.float_ and tensor is not None:
                values = np.abs(self.graph.array(name))
                some = values[values > 0]
                if some.size and (
                    some.max() < SMALLEST_NORMAL
                    or (values.size <= SCALAR and some.min() < SMALLEST_NORMAL)
                ):
                    numbers = (
                        f"constant '{name}' has {some.min():.3g}, FP16's smallest normal number "
                        f"is {SMALLEST_NORMAL:.3g}"
                    )
                    return KeptNode(named, node.op_type, "epsilon", numbers)
        if node.domain != DOMAIN and node.op_type in STATISTICS:
            low, high = self.limits.get(node.output[0], (0.0, 0.0))
            numbers = f"inputs up to {largest:.4g}, results {low:.4g} to {high:.4g}"
            return KeptNode(named, node.op_type, "statistics", numbers)
        return None

    def _follows(self, node: onnx.NodeProto) -> bool:
        """Whether a standard operator accepts FP16 in place of its FP32 inputs and then returns FP16."""
        if node.domain not in ("", "ai.onnx") or has_inner_graphs(node):
            return False
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset, "")
        except onnx.defs.SchemaError:
            return False
        chosen = set()
        for k, name in enumerate(node.input):
            if name in self.float_:
                formal = schema.inputs[min(k, len(schema.inputs) - 1)]
                if "tensor(float16)" not in formal.types:
                    return False
                chosen.add(formal.type_str)
        types = {
            schema.outputs[min(k, len(schema.outputs) - 1)].type_str
            for k, name in enumerate(node.output)
            if name in self.float_
        }
        return types <= chosen

    def _largest(self, name: str) -> float:
        if name in self.graph.initializers:
            values = np.abs(self.graph.array(name))
            return float(np.where(np.isfinite(values), values, 0.0).max(initial=0.0))
        low, high = self.limits.get(name, (0.0, 0.0))
        return max(abs(low), abs(high))
