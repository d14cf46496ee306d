"""The last step of a quantized file: with bodies, without, or in standard operators for another runtime."""

from __future__ import annotations

import onnx

from capsedge.graph.functions import attach_functions, inline_functions, strip_functions
from capsedge.graph.portable import use_portable_forms
from capsedge.graph.proto import copy_of, operator_nodes, opset_of
from capsedge.graph.shapes import inferred
from capsedge.graph.simplify import simplify
from capsedge.graph.targets import TARGETS, Target
from capsedge.schema.names import DOMAIN

_SHORT = "abcdefghijklmnopqrstuvwxyz"


def finish(model: onnx.ModelProto, bodies: bool = True, runtime: str | None = None) -> None:
    """Attach function bodies to the capsule operators of a model, in place, and check it.

    Names inside the bodies are shortened: in a small file of INT8 weights they are a tenth of all bytes.

    Args:
        bodies: False leaves the bodies out: the file runs only where the operator library is.
        runtime: one that knows neither functions nor the domain ``capsedge``, a key of
            ``targets.TARGETS``: the operators become standard ones, and the batch what it needs.

    Raises:
        onnx.checker.ValidationError: the model is not valid.
    """
    if runtime is not None:
        _for_runtime(model, TARGETS[runtime])
        return
    attach_functions(model)
    opset = opset_of(model)
    # TensorRT before 10.8 confuses a formal input with a tensor of the same name outside.
    taken = {t for n in model.graph.node for t in (*n.input, *n.output)}
    for function in model.functions:
        if function.domain == DOMAIN:
            _shorten(function, taken)
            for item in function.opset_import:
                if item.domain == "":
                    item.version = opset
    touched = {t for n in operator_nodes(model) for t in (*n.input, *n.output)}
    kept = [v for v in model.graph.value_info if v.name in touched]
    del model.graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    if not bodies:
        model.CopyFrom(strip_functions(model))
    model.graph.value_info.extend(kept)


def _for_runtime(model: onnx.ModelProto, target: Target) -> None:
    """Standard operators only, and the batch that the target wants, in place."""
    made = model
    if operator_nodes(model):
        attach_functions(model)
        made = inline_functions(model)
    if target.batch is not None:
        made = fix_batch(made, target.batch)
    use_portable_forms(made)
    onnx.checker.check_model(made, full_check=True)
    model.CopyFrom(made)


def fix_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """A copy of a model of standard operators with its free batch fixed; one that is fixed stays as it is."""
    copy = copy_of(model)
    free = {
        d.dim_param
        for v in copy.graph.input
        for d in v.type.tensor_type.shape.dim[:1]
        if d.HasField("dim_param")
    }
    if not free:
        return copy
    del copy.graph.value_info[:]
    for value in copy.graph.input:
        for d in value.type.tensor_type.shape.dim:
            if d.dim_param in free:
                d.dim_value = batch
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    return simplify(inferred(copy))


def _shorten(function: onnx.FunctionProto, taken: set[str]) -> None:
    names: dict[str, str] = {}

    def short(name: str) -> str:
        if name and name not in names:
            names[name] = _short(len(names))
            while names[name] in taken:
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
