"""Exact rewrite 1 for attention routing: a pass with zero parents is a convolution and LayerNorm."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from capsedge.exporters import proto
from capsedge.exporters.bodies._votes import grid
from capsedge.exporters.operators import attributes_of


def replace_uniform_passes(model: onnx.ModelProto) -> int:
    """Replace every ``AttentionRouting`` node whose parents are zero; returns how many.

    Zero parents make all agreements zero and every coupling ``1/M``, so the sum over a window's
    children is a linear map of the window: with the pose's row folded into the batch, a convolution
    from ``C·K`` to ``M·L`` channels (one matrix product where the window is the whole grid). The
    weights are laid out here, ``1/M`` included. A node whose weights are not constant stays.
    """
    shapes, constants = proto.shapes_of(model), proto.constants_of(model)
    producers = {o: n for n in model.graph.node for o in n.output}
    replaced = 0
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        uniform = (
            node.op_type == "AttentionRouting"
            and node.domain == "capsedge"
            and node.input[2] in constants
            and _is_zero(node.input[1], constants, producers)
        )
        if not uniform:
            nodes.append(node)
            continue
        replaced += 1
        weight = numpy_helper.to_array(constants[node.input[2]])
        new, tensor = _linear_pass(node, shapes[node.input[0]], weight)
        nodes.extend(new)
        model.graph.initializer.extend(tensor)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    proto.remove_unused_tensors(model)
    return replaced


def _is_zero(
    name: str, constants: dict[str, onnx.TensorProto], producers: dict[str, onnx.NodeProto]
) -> bool:
    """Whether a tensor is zero whatever the input: a constant, a fill, or a view of one."""
    if name in constants:
        return not numpy_helper.to_array(constants[name]).any()
    node = producers.get(name)
    if node is None or node.domain:
        return False
    if node.op_type == "ConstantOfShape":
        return not node.attribute or not numpy_helper.to_array(node.attribute[0].t).any()
    if node.op_type in ("Expand", "Reshape", "Cast", "Identity", "Unsqueeze", "Transpose"):
        return _is_zero(node.input[0], constants, producers)
    return False


def _linear_pass(
    node: onnx.NodeProto, pose_shape: tuple[int | None, ...], weight: np.ndarray
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    attributes = attributes_of(node)
    _, height, width, types, size = (int(d or 0) for d in pose_shape)
    kh, kw, _, m, k, out = weight.shape
    rows = size // k if attributes["matrix_pose"] else 1
    strides = tuple(attributes["strides"])
    h, w = grid(height, width, (kh, kw), (strides[0], strides[1]))
    whole = (kh, kw) == (height, width)
    uniform = weight.astype(np.float64) / m

    prefix = f"{node.output[0]}_uniform"
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []

    def constant(name: str, value: np.ndarray) -> str:
        tensors.append(numpy_helper.from_array(value, f"{prefix}_{name}"))
        return tensors[-1].name

    def op(op_type: str, *inputs: str, **attrs: Any) -> str:
        output = f"{prefix}_{op_type}_{len(nodes)}"
        nodes.append(helper.make_node(op_type, list(inputs), [output], output, **attrs))
        return output

    def reshape(x: str, *shape: int) -> str:
        name = f"shape_{len(nodes)}"
        return op("Reshape", x, constant(name, np.array(shape, np.int64)))

    x = reshape(node.input[0], -1, height, width, types, rows, k)
    if whole:
        matrix = uniform.transpose(0, 1, 2, 4, 3, 5).reshape(kh * kw * types * k, m * out)
        x = reshape(op("Transpose", x, perm=[0, 4, 1, 2, 3, 5]), -1, matrix.shape[0])
        s = op("MatMul", x, constant("weight", matrix.astype(weight.dtype)))
        s = op("Transpose", reshape(s, -1, rows, m, out), perm=[0, 2, 1, 3])
    else:
        kernel = uniform.transpose(3, 5, 2, 4, 0, 1).reshape(m * out, types * k, kh, kw)
        x = reshape(op("Transpose", x, perm=[0, 4, 3, 5, 1, 2]), -1, types * k, height, width)
        s = op(
            "Conv",
            x,
            constant("weight", np.ascontiguousarray(kernel.astype(weight.dtype))),
            strides=strides,
            kernel_shape=[kh, kw],
        )
        s = op("Transpose", reshape(s, -1, rows, m, out, h, w), perm=[0, 4, 5, 2, 1, 3])
    s = reshape(s, -1, h, w, m, rows * out)
    nodes.append(
        helper.make_node(
            "LayerNormalization",
            [s, node.input[3], node.input[4]],
            [node.output[0]],
            prefix,
            axis=-1,
            epsilon=attributes["epsilon"],
        )
    )
    return nodes, tensors
