"""Quantize to INT8 for ONNX Runtime on the CPU: uint8 activations, int8 weights.

Values stay in 8 bits between layers where possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from capsedge.calibration import quantizable_layers
from capsedge.calibration.quantizable_layers import (
    LayerGraph,
    QuantizableLayer,
    replace_graph,
    weight_input,
)
from capsedge.calibration.ranges import CalibrationTable
from capsedge.graph.ir import attributes_of, initializer, replace_repeated
from capsedge.spec.operators import DOMAIN, OPERATORS

INT4_OPSET = 21  # the first opset whose Cast takes INT4
Assignment = Mapping[str, str]  # unit -> fp32, int8, int4


def emit(
    model: onnx.ModelProto,
    layers: list[QuantizableLayer],
    assignment: Assignment,
    table: CalibrationTable,
) -> onnx.ModelProto:
    """The model for ONNX Runtime on the CPU, with every layer in its assigned precision.

    Convolutions become ``QuantizedConv`` (in a file of standard operators only: ``QLinearConv``), including
    their ReLU: uint8 with the zero point 0 saturates where the ReLU would clip. Routing operators are
    replaced by those with INT8 weights. Tables are looked up in INT8, with a scale for each row. Other
    weights are stored in few bits and converted back to FP32 by nodes that ONNX Runtime folds when it loads
    the file.
    """
    return _Int8Emitter(model, layers, assignment, table).run()


class _Int8Emitter:
    def __init__(
        self,
        model: onnx.ModelProto,
        layers: list[QuantizableLayer],
        assignment: Assignment,
        table: CalibrationTable,
    ) -> None:
        self.graph = LayerGraph(model)
        self.level = {u.weight: assignment.get(u.name, "fp32") for u in layers}
        self.kind = {u.weight: u.kind for u in layers}
        self.table = table
        self.nodes: list[onnx.NodeProto] = []
        self.more: dict[str, onnx.TensorProto] = {}
        self.like: dict[str, tuple[str, int]] = {}
        self.in_8_bits: dict[str, str] = {}  # tensor -> the uint8 tensor that holds it
        self.absorbed = {
            id(relu)
            for node in self.graph.nodes
            if self._is_8_bit_conv(node) and (relu := self.graph.relu_after(node)) is not None
        }

    def run(self) -> onnx.ModelProto:
        for node in self.graph.nodes:
            if id(node) in self.absorbed:
                continue
            index = weight_input(node)
            level = "fp32"
            if index is not None and len(node.input) > index:
                level = self.level.get(node.input[index], "fp32")
            if index is None or level == "fp32":
                self.nodes.append(node)
            elif self._is_8_bit_conv(node):
                self._conv(node, level)
            elif node.domain == DOMAIN:
                self._routing(node, index, level)
            elif node.op_type != "Gather":
                self._stored(node, index, level)
            elif self.kind[node.input[index]] == "table":
                self._table(node)
            else:  # it reads a weight of another layer, which stays stored in FP32 for it
                self.nodes.append(node)
        model = replace_graph(self.graph.model, self.nodes, self.more, self.like)
        if "int4" in self.level.values():
            for item in model.opset_import:
                if item.domain == "":
                    item.version = max(item.version, INT4_OPSET)
        return model

    def _is_8_bit_conv(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Conv" and self.level.get(node.input[1]) in ("int8", "int4")

    def _add(self, name: str, value: NDArray[Any] | np.generic) -> str:
        self.more.setdefault(name, initializer(name, value))
        return name

    def _integers(
        self, name: str, axes: tuple[int, ...], level: str, least: NDArray[Any] | None = None
    ) -> tuple[str, NDArray[np.int8], NDArray[np.float32]]:
        """The INT8 tensor of a weight, its values, and their scale.

        4-bit weights are stored packed; nodes that ONNX Runtime folds on loading convert them to INT8.
        """
        w = self.graph.array(name)
        integers, scale = quantizable_layers.quantize(w, axes, least)
        eight = f"{name}_int8"
        if level == "int8":
            return self._add(eight, integers), integers, scale
        four, multiplier = quantizable_layers.quantize4(w, scale)
        if f"{name}_int4" not in self.more:
            self.more[f"{name}_int4"] = quantizable_layers.int4_tensor(f"{name}_int4", four)
            self._add(f"{name}_multiplier", multiplier)
            self.like[eight] = (name, TensorProto.INT8)
            self.nodes += [
                _cast(f"{name}_int4", f"{name}_four", TensorProto.FLOAT),
                _cast(f"{name}_multiplier", f"{name}_times", TensorProto.FLOAT),
                helper.make_node("Mul", [f"{name}_four", f"{name}_times"], [f"{name}_whole"]),
                _cast(f"{name}_whole", eight, TensorProto.INT8),
            ]
        return eight, (four * multiplier).astype(np.int8), scale

    def _activation(self, tensor: str) -> tuple[str, str]:
        """Scale and zero point of a tensor's uint8 form."""
        entry = self.table.entries[tensor]
        scale, zero = activation_parameters(entry.low, entry.high)
        return (
            self._add(f"{tensor}_scale", np.float32(scale)),
            self._add(f"{tensor}_zero_point", np.uint8(zero)),
        )

    def _conv(self, node: onnx.NodeProto, level: str) -> None:
        graph = self.graph
        x, y = node.input[0], graph.result(node)
        x_scale, x_zero = self._activation(x)
        y_scale, y_zero = self._activation(y)
        if x not in self.in_8_bits:
            self.in_8_bits[x] = f"{x}_uint8"
            self.like[f"{x}_uint8"] = (x, TensorProto.UINT8)
            self.nodes.append(
                helper.make_node("QuantizeLinear", [x, x_scale, x_zero], [f"{x}_uint8"])
            )
        w_name = node.input[1]
        w, bias = graph.array(w_name), self._bias(node)
        step = float(onnx.numpy_helper.to_array(self.more[x_scale]))
        again = f"{w_name}_int8" in self.more
        eight, integers, scale = self._integers(w_name, (1, 2, 3), level, self._least(w_name))
        # Each convolution has its own tensors: on x86 without VNNI, ONNX Runtime replaces each tensor, but
        # only once.
        if again:
            eight = self._add(f"{y}_weight_int8", integers)
        scale = scale.reshape(-1)
        # The rounding of the weights shifts the mean of a channel; its bias corrects that (Nagel et al.
        # 2019, "Data-free quantization", section 4.2), except for positions at the border.
        means = self.table.entries[x].histogram.means
        if len(means) == w.shape[1]:
            error = w - integers * scale.reshape(-1, 1, 1, 1).astype(np.float64)
            bias = bias + error.sum(axis=(2, 3)) @ means
        whole = np.rint(bias / (step * scale.astype(np.float64))).astype(np.int32)
        attribute = attributes_of(node)
        geometry: dict[str, Any] = {
            "strides": list(attribute.get("strides", [1, 1])),
            "pads": list(attribute.get("pads", [0, 0, 0, 0])),
            "dilations": list(attribute.get("dilations", [1, 1])),
        }
        inputs = [
            self.in_8_bits[x],
            x_scale,
            x_zero,
            eight,
            self._add(f"{w_name}_scale", scale),
            self._add(f"{y}_weight_zero_point", np.zeros(len(w), np.int8)),
            y_scale,
            y_zero,
            self._add(
                f"{y}_bias", whole
            ),  # not named after the weight, which several nodes may share
        ]
        q = f"{y}_uint8"
        self.like[q] = (y, TensorProto.UINT8)
        if graph.fused:
            quantized = helper.make_node("QuantizedConv", inputs, [q], domain=DOMAIN, **geometry)
        else:
            quantized = helper.make_node("QLinearConv", inputs, [q], **geometry)
        self.nodes.append(quantized)
        self.in_8_bits[y] = q
        users = graph.users(y)
        if y in graph.outputs or not all(self._is_8_bit_conv(user) for user in users):
            self.nodes.append(helper.make_node("DequantizeLinear", [q, y_scale, y_zero], [y]))

    def _bias(self, node: onnx.NodeProto) -> NDArray[np.float64]:
        if len(node.input) > 2 and node.input[2]:
            return self.graph.array(node.input[2]).astype(np.float64)
        return np.zeros(self.graph.initializers[node.input[1]].dims[0])

    def _least(self, weight: str) -> NDArray[np.float64]:
        """The smallest scales ``[M, 1, 1, 1]`` for which the biases of all users of a weight fit 32 bits."""
        least = np.full(self.graph.initializers[weight].dims[0], 1e-12)
        for node in self.graph.users(weight):
            if node.op_type == "Conv":
                entry = self.table.entries[node.input[0]]
                step, _ = activation_parameters(entry.low, entry.high)
                least = np.maximum(least, np.abs(self._bias(node)) / (step * 2.0**30))
        return least.reshape(-1, 1, 1, 1)

    def _routing(self, node: onnx.NodeProto, index: int, level: str) -> None:
        name, spec = node.input[index], OPERATORS[node.op_type]
        assert spec.layout is not None
        axes = spec.layout.shared
        eight, _, scale = self._integers(name, axes, level)
        quantized = onnx.NodeProto()
        quantized.CopyFrom(node)
        quantized.op_type = spec.int8
        weight = [eight, self._add(f"{name}_scale", scale.squeeze(axes))]
        replace_repeated(quantized.input, [*node.input[:index], *weight, *node.input[index + 1 :]])
        self.nodes.append(quantized)

    def _table(self, node: onnx.NodeProto) -> None:
        """Look up INT8 rows and their scales. With 4 bits, the whole table would be unpacked."""
        name, at = node.input
        result = node.output[0]
        if f"{name}_int8" not in self.more:
            integers, scale = quantizable_layers.quantize_rows(self.graph.array(name))
            self._add(f"{name}_int8", integers)
            self._add(f"{name}_steps", scale)
        rows, steps = f"{result}_int8", f"{result}_steps"
        self.like[rows] = (result, TensorProto.INT8)
        self.like[f"{result}_whole"] = (result, TensorProto.FLOAT)
        self.nodes += [
            helper.make_node("Gather", [f"{name}_int8", at], [rows]),
            _cast(rows, f"{result}_whole", TensorProto.FLOAT),
            helper.make_node("Gather", [f"{name}_steps", at], [steps]),
            helper.make_node("Mul", [f"{result}_whole", steps], [result]),
        ]

    def _stored(self, node: onnx.NodeProto, index: int, level: str) -> None:
        """Store a weight in few bits and compute with it in FP32."""
        name = node.input[index]
        restored = f"{name}_fp32"
        if restored not in self.like:
            w = self.graph.array(name)
            self.like[restored] = (name, TensorProto.FLOAT)
            eight, _, scale = self._integers(name, _shared_axes(node, w.ndim), level)
            self.nodes += [
                _cast(eight, f"{name}_float", TensorProto.FLOAT),
                helper.make_node(
                    "Mul", [f"{name}_float", self._add(f"{name}_steps", scale)], [restored]
                ),
            ]
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[index] = restored
        self.nodes.append(copy)


def _shared_axes(node: onnx.NodeProto, rank: int) -> tuple[int, ...]:
    """The axes of a stored weight that share a scale: all except those of the output, of a vector all."""
    if rank == 1:
        return (0,)
    if node.op_type == "Gemm" and attributes_of(node).get("transB", 0):
        return (1,)
    return tuple(range(rank - 1))


def _cast(source: str, target: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], to=kind)


def activation_parameters(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point of uint8 for a range, which is widened to include zero (padding is zero)."""
    low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        return 1.0, 0
    scale = float(quantizable_layers.activation_scale(high - low, 255))
    return scale, int(np.clip(np.rint(-low / scale), 0, 255))
