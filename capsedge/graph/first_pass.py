"""Exact rewrite 1: a pass whose parents are zero has equal couplings, so it is linear."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from capsedge.graph.cleaning import remove_dead_nodes
from capsedge.graph.proto import constants_of, operator_nodes, replace
from capsedge.schema.names import DOMAIN, operator_of
from capsedge.schema.operators import OPERATORS

_VIEWS = ("Expand", "Reshape", "Cast", "Identity", "Unsqueeze", "Transpose")


def replace_uniform_passes(model: onnx.ModelProto) -> int:
    """Make every node whose parents are zero its operator's first pass; returns how many.

    Zero parents make all agreements zero and every coupling ``1/M``.
    """
    constants = constants_of(model)
    producers = {o: n for n in model.graph.node for o in n.output}
    replaced = 0
    for node in operator_nodes(model):
        if without_parents(node, constants, producers):
            replaced += 1
            make_uniform(node)
    remove_dead_nodes(model, keep_domain=DOMAIN)
    return replaced


def make_uniform(node: onnx.NodeProto) -> None:
    """Make a node its operator's first pass, which knows no parents."""
    spec = OPERATORS[operator_of(node.op_type)]
    first = OPERATORS[spec.first_pass]
    inputs = zip(spec.input_names, node.input, strict=True)
    node.op_type = first.name
    replace(node.input, [given for name, given in inputs if name in first.input_names])
    replace(node.attribute, [a for a in node.attribute if a.name in first.attribute_names])


def without_parents(
    node: onnx.NodeProto,
    constants: dict[str, onnx.TensorProto],
    producers: dict[str, onnx.NodeProto],
) -> bool:
    """Whether a node's operator has a first pass, and all that this lacks is zero whatever the input.

    Args:
        constants: of the graph, by name.
        producers: the nodes to look through, by what they make; none for constants alone.
    """
    spec = OPERATORS.get(operator_of(node.op_type))
    if spec is None or not spec.first_pass:
        return False
    known = OPERATORS[spec.first_pass].input_names
    parents = [n for name, n in zip(spec.input_names, node.input, strict=True) if name not in known]
    return all(_is_zero(name, constants, producers) for name in parents)


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
    return node.op_type in _VIEWS and _is_zero(node.input[0], constants, producers)
