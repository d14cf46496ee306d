"""Exact rewrite 1 for attention routing: a pass with zero parents has equal couplings, so it is linear."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from capsedge.graph import proto
from capsedge.schema.names import DOMAIN


def replace_uniform_passes(model: onnx.ModelProto) -> int:
    """Make every ``AttentionRouting`` node whose parents are zero a ``UniformRouting``; returns how many.

    Zero parents make all agreements zero and every coupling ``1/M``.
    """
    constants = proto.constants_of(model)
    producers = {o: n for n in model.graph.node for o in n.output}
    replaced = 0
    for node in proto.operator_nodes(model):
        if node.op_type != "AttentionRouting" or not _is_zero(node.input[1], constants, producers):
            continue
        replaced += 1
        make_uniform(node)
    proto.remove_dead_nodes(model, keep_domain=DOMAIN)
    return replaced


def make_uniform(node: onnx.NodeProto) -> None:
    """Make an ``AttentionRouting`` node a ``UniformRouting``, which knows no parents."""
    node.op_type = "UniformRouting"
    del node.input[1]
    kept = [a for a in node.attribute if a.name != "agreement_scale"]
    del node.attribute[:]
    node.attribute.extend(kept)


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
