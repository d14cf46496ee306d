"""Quantize to INT8 with Q/DQ pairs around convolutions, for TensorRT, OpenVINO and LiteRT.

Scales are symmetric, with zero point 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from capsedge.calibration import quantizable_layers
from capsedge.calibration.quantizable_layers import (
    KeptNode,
    LayerGraph,
    QuantizableLayer,
    replace_graph,
)
from capsedge.calibration.ranges import CalibrationTable
from capsedge.graph.ir import initializer

LEAST_CHANNELS = 16


def qdq_placement(
    graph: LayerGraph, layers: list[QuantizableLayer], target: str = "tensorrt"
) -> tuple[list[QuantizableLayer], list[KeptNode]]:
    """The units that a runtime executes faster in INT8, and the reasons why the others stay in FP32.

    Only convolutions are chosen: Q/DQ does not fuse into plugins, and the products of votes are too small for
        INT8 to pay off. For TensorRT, narrow convolutions stay in FP32 too, as in ModelOpt's placement
        (``graph_utils.py``): one side must have 16 channels, and so must the other unless the outputs are a
        multiple of 8.
    """
    chosen, kept = [], []
    for layer in layers:
        dims = list(graph.initializers[layer.weight].dims)
        if layer.kind != "conv":
            kept.append(
                KeptNode(layer.name, layer.kind, "not-fused", "Q/DQ fuses into convolutions only")
            )
        elif target == "tensorrt" and _narrow(*dims[:2]):
            numbers = f"{dims[1]} to {dims[0]} channels, fewer than {LEAST_CHANNELS}"
            kept.append(KeptNode(layer.name, "Conv", "narrow", numbers))
        else:
            chosen.append(layer)
    return chosen, kept


def _narrow(outputs: int, inputs: int) -> bool:
    few = min(outputs, inputs) < LEAST_CHANNELS
    return max(outputs, inputs) < LEAST_CHANNELS or (few and outputs % 8 != 0)


def emit(
    model: onnx.ModelProto,
    layers: list[QuantizableLayer],
    assignment: Mapping[str, str],
    table: CalibrationTable,
) -> onnx.ModelProto:
    """Q/DQ on both inputs of every chosen convolution, none on its output; biases stay FP32.

    The weight is stored in INT8, followed by a DequantizeLinear along axis 0. No node is inserted between a
    convolution and its ReLU: it would break their fusion.
    """
    graph = LayerGraph(model)
    chosen = {u.weight for u in layers if assignment.get(u.name) == "int8" and u.kind == "conv"}
    nodes: list[onnx.NodeProto] = []
    more: dict[str, onnx.TensorProto] = {}
    dequantized: dict[str, str] = {}
    zero = "zero_int8"
    more[zero] = initializer(zero, np.int8(0))
    for node in graph.nodes:
        if node.op_type != "Conv" or node.input[1] not in chosen:
            nodes.append(node)
            continue
        x, w = node.input[0], node.input[1]
        if x not in dequantized:
            entry = table.entries[x]
            amax = max(abs(entry.low), abs(entry.high))
            scale = quantizable_layers.activation_scale(amax, 127) if amax > 0 else np.float32(1)
            more[f"{x}_scale"] = initializer(f"{x}_scale", scale)
            dequantized[x] = f"{x}_dequantized"
            q = f"{x}_int8"
            nodes += [
                helper.make_node("QuantizeLinear", [x, f"{x}_scale", zero], [q]),
                helper.make_node("DequantizeLinear", [q, f"{x}_scale", zero], [dequantized[x]]),
            ]
        if f"{w}_int8" not in more:
            integers, steps = quantizable_layers.quantize(graph.array(w), (1, 2, 3))
            # TensorRT requires positive scales; a channel of zeros is zero with any scale.
            steps = np.where(steps > 0, steps, np.float32(1)).reshape(-1)
            zeros = f"{w}_zero_point"  # not shared: ONNX Runtime replaces it on x86 without VNNI
            more[f"{w}_int8"] = initializer(f"{w}_int8", integers)
            more[f"{w}_scale"] = initializer(f"{w}_scale", steps.astype(np.float32))
            more[zeros] = initializer(zeros, np.zeros(len(steps), np.int8))
            nodes.append(
                helper.make_node(
                    "DequantizeLinear",
                    [f"{w}_int8", f"{w}_scale", zeros],
                    [f"{w}_dequantized"],
                    axis=0,
                )
            )
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[0], copy.input[1] = dequantized[x], f"{w}_dequantized"
        nodes.append(copy)
    return replace_graph(model, nodes, more, {})
