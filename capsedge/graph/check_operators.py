"""Check the capsule operators of a file against their specification, which onnx does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from capsedge.graph.bodies import Shape, function_body
from capsedge.graph.ir import attributes_of
from capsedge.spec.operators import OPERATORS, Attribute, operator_of

_KINDS: Mapping[str, type] = {"int": int, "float": float, "ints": int, "floats": float}


def operator_problem(node: onnx.NodeProto, shapes: Mapping[str, Shape], opset: int) -> str:
    """Why a capsule operator cannot be computed; empty if it can, or if it is one of a later version.

    Args:
        node: a node of the domain ``capsedge``.
        shapes: shapes of the values, as far as they are known.
        opset: opset of the standard operators.
    """
    operator = operator_of(node.op_type)
    spec = OPERATORS.get(operator)
    if spec is None:
        return ""
    given = attributes_of(node)
    known = {attribute.name: attribute for attribute in spec.attributes}
    for name, value in given.items():
        if name not in known:
            return f"it has no attribute '{name}'"
        if not _is_valid(known[name], value):
            return f"its attribute '{name}' is invalid"
    for attribute in spec.attributes:
        if attribute.default is None and attribute.name not in given:
            return f"it lacks the attribute '{attribute.name}'"
    if not spec.takes(len(node.input)) or not all(node.input):
        return f"it has {len(node.input)} inputs"
    if any(name not in shapes for name in node.input):
        return ""
    sizes = [shapes[name] for name in node.input]
    try:
        function_body(operator, sizes, given, opset=opset)
    except Exception:  # of many kinds: ranks, sizes, windows that do not fit
        return f"its inputs do not fit each other: {', '.join(map(_words, sizes))}"
    return ""


def _is_valid(attribute: Attribute, value: Any) -> bool:
    several = attribute.type.endswith("s")
    if several != isinstance(value, list):
        return False
    numbers = value if several else [value]
    if not all(isinstance(number, _KINDS[attribute.type]) for number in numbers):
        return False
    if attribute.flag and value not in (0, 1):
        return False
    return not attribute.positive or all(number > 0 for number in numbers)


def _words(shape: Shape) -> str:
    return "x".join("?" if size is None else str(size) for size in shape) or "one number"
