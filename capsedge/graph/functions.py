"""Attach, inline or expand the function bodies of capsule operators."""

from __future__ import annotations

from collections import Counter

import onnx
from onnx import helper, inliner

from capsedge.graph import Rewrites
from capsedge.graph.bodies import Shape, function_body
from capsedge.graph.cleanup import remove_dead_nodes, simplify
from capsedge.graph.ir import (
    Graph,
    attributes_of,
    detach_functions,
    inferred,
    input_shapes,
    keep_signature,
    operator_nodes,
    opset_of,
    set_opset,
    shapes_of,
)
from capsedge.spec.operators import DOMAIN, VERSION, instance_name, operator_of

_SHORT = "abcdefghijklmnopqrstuvwxyz"  # names inside of bodies


def attach_functions(
    model: onnx.ModelProto,
    rewrites: Rewrites | None = None,
    *,
    compute: int = onnx.TensorProto.FLOAT,
) -> None:
    """Give every capsule operator that has none its function body, and each distinct body its own name.

    The nodes are named after their bodies: ``DynamicRouting``, ``DynamicRouting_2``, ...
    (``spec.operators``). Nodes whose attributes and input shapes give the same body share it.

    Raises:
        UnknownShapeError: the shape of an input is not known.
    """
    shapes = shapes_of(model)
    names: dict[bytes, str] = {}
    counts: Counter[str] = Counter()
    attached = {function.name for function in model.functions if function.domain == DOMAIN}
    for node in operator_nodes(model):
        if node.op_type in attached:
            continue
        operator = operator_of(node.op_type)
        body = function_body(
            operator,
            input_shapes(node, shapes),
            attributes_of(node),
            rewrites,
            opset=opset_of(model),
            compute=compute,
        )
        content = body.SerializeToString(deterministic=True)
        if content not in names:
            counts[operator] += 1
            names[content] = body.name = instance_name(operator, counts[operator])
            model.functions.append(body)
        node.op_type, node.overload = names[content], ""
    if names:
        set_opset(model, DOMAIN, VERSION)


def attach_short_functions(model: onnx.ModelProto, bodies: bool = True) -> None:
    """As `attach_functions`, with short names inside the bodies; and check the model.

    In a small file of INT8 weights, names are a tenth of all bytes.

    Args:
        bodies: False omits the bodies: the file then requires the operator library.

    Raises:
        onnx.checker.ValidationError: the model is not valid.
    """
    attach_functions(model)
    opset = opset_of(model)
    # TensorRT before 10.8 confuses a formal input with a tensor of the same name outside.
    whole = Graph.of(model.graph)
    taken = whole.used | whole.produced
    for function in model.functions:
        if function.domain == DOMAIN:
            _shorten(function, taken)
            for item in function.opset_import:
                if item.domain == "":
                    item.version = opset
    operators = Graph(operator_nodes(model))
    touched = operators.used | operators.produced
    kept = [v for v in model.graph.value_info if v.name in touched]
    del model.graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    if not bodies:
        detach_functions(model)
    model.graph.value_info.extend(kept)


def _shorten(function: onnx.FunctionProto, used: set[str]) -> None:
    names: dict[str, str] = {}

    def short(name: str) -> str:
        if name and name not in names:
            names[name] = _short(len(names))
            while names[name] in used:
                names[name] += "_"
        return names.get(name, "")

    for formal in (function.input, function.output):
        for k, name in enumerate(formal):
            formal[k] = short(name)
    for node in function.node:
        node.name = ""
        for values in (node.input, node.output):
            for k, name in enumerate(values):
                values[k] = short(name)


def _short(number: int) -> str:
    """Names of one letter, then of two."""
    text = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, len(_SHORT))
        text = _SHORT[digit] + text
    return text


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in standard operators only: function bodies inlined, constants folded.

    Raises:
        ValueError: a capsule operator has no function body.
    """
    copy = inliner.inline_local_functions(model)
    left = sorted({operator_of(n.op_type) for n in operator_nodes(copy)})
    if left:
        raise ValueError(f"no function body for {', '.join(left)}")
    set_opset(copy, DOMAIN, None)
    folded = simplify(inferred(copy))
    keep_signature(folded, model)
    remove_dead_nodes(folded)
    return folded


# --- Expansion, if more values of an operator are needed than kernels output ---

_EXPANDED = "capsedge.expanded"  # domain of the bodies until `inline`; never in a file


def expand(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    shapes: list[Shape],
    rewrites: Rewrites,
    number: int,
    *,
    couplings: bool,
    traced: bool = False,
) -> None:
    """Give a node its own body, which `inline` puts in its place.

    Args:
        shapes: shapes of its inputs.
        number: number of the body in the model.
        couplings, traced: as for ``function_body``; the node has the outputs.
    """
    body = function_body(
        operator_of(node.op_type),
        shapes,
        attributes_of(node),
        rewrites,
        opset=opset_of(model),
        domain=_EXPANDED,
        couplings=couplings,
        traced=traced,
    )
    node.domain = _EXPANDED
    node.op_type = body.name = f"{body.name}_{number}"
    model.functions.append(body)


def inline(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the bodies of `expand` inlined and constants folded."""
    model.opset_import.append(helper.make_opsetid(_EXPANDED, 1))
    inlined = inliner.inline_local_functions(model)
    set_opset(inlined, _EXPANDED, None)
    folded = simplify(inferred(inlined))
    keep_signature(folded, model)
    return folded
