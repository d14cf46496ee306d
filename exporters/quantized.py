"""Function bodies for quantized files: what ``calibration`` emits becomes a file that runs anywhere."""

from __future__ import annotations

import onnx

from capsedge.exporters import proto
from capsedge.runtime.operator_names import DOMAIN

_SHORT = "abcdefghijklmnopqrstuvwxyz"


def finish(model: onnx.ModelProto, bodies: bool = True) -> None:
    """Attach function bodies to the capsule operators of a model, in place, and check it.

    Names inside the bodies are shortened: in a small file of INT8 weights they are a tenth of all bytes.

    Args:
        bodies: False leaves the bodies out: the file runs only where the operator library is.

    Raises:
        onnx.checker.ValidationError: the model is not valid.
    """
    proto.attach_functions(model)
    opset = proto.opset_of(model)
    # TensorRT before 10.8 confuses a formal input with a tensor of the same name outside.
    taken = {t for n in model.graph.node for t in (*n.input, *n.output)}
    for function in model.functions:
        if function.domain == DOMAIN:
            _shorten(function, taken)
            for item in function.opset_import:
                if item.domain == "":
                    item.version = opset
    touched = {t for n in proto.operator_nodes(model) for t in (*n.input, *n.output)}
    kept = [v for v in model.graph.value_info if v.name in touched]
    del model.graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    if not bodies:
        bare = proto.strip_functions(model)
        model.CopyFrom(bare)
    model.graph.value_info.extend(kept)


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
