"""Fit a file to the runtime that will run it: form, batch, opset, finishing of quantized files."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from capsedge.errors import UsageError
from capsedge.graph.cleanup import simplify
from capsedge.graph.functions import attach_functions, inline_functions
from capsedge.graph.portable import use_portable_forms
from capsedge.graph.proto import copy_of, detach_functions, inferred, operator_nodes, opset_of
from capsedge.spec.operators import DOMAIN

# --- What OpenVINO, LiteRT and MNN need of a file ---

DEFAULT_OPSET = 20


@dataclass(frozen=True)
class Target:
    """A runtime by name.

    Attributes:
        name: of the runtime.
        batch: the batch that its files are fixed to unless told otherwise; None for a free one.
        opset: of its files unless told otherwise, and the newest that its converter was tested with.
        reason: of a fixed batch.
    """

    name: str
    batch: int | None
    opset: int
    reason: str = ""


TARGETS = {
    t.name: t
    for t in (
        Target("openvino", None, 20),
        Target("litert", 1, 20, "LiteRT's converter needs constant shapes."),
        Target("mnn", 1, 20, "MNN plans memory once, for constant shapes."),
    )
}


def resolve(
    target: str | None,
    ops: str | None,
    opset: int | None,
    batch: int | None,
    free_batch: bool = False,
) -> tuple[str, int, int | None]:
    """Form, opset and batch of a file for a runtime; what was asked for explicitly stays.

    Args:
        target: a key of ``TARGETS``; None for ONNX Runtime and the defaults.
        ops, opset, batch: as asked for; None where not.
        free_batch: whether a free batch was asked for.

    Raises:
        UsageError: there is no such runtime, or it cannot take what was asked for.
    """
    if target is None:
        return ops or "auto", DEFAULT_OPSET if opset is None else opset, batch
    wanted = TARGETS.get(target)
    if wanted is None:
        raise UsageError(
            f"There is no runtime '{target}' to export for.", "", f"Known: {', '.join(TARGETS)}."
        )
    if ops not in (None, "portable"):
        raise UsageError(
            f"A file for {target} cannot have the form '{ops}'.",
            f"{target} knows neither the operators of the domain capsedge nor functions.",
            "Leave --ops out: the form is 'portable'.",
        )
    if opset is not None and opset > wanted.opset:
        raise UsageError(
            f"A file for {target} cannot have opset {opset}.",
            f"Its converter was tested up to opset {wanted.opset}.",
            "Leave --opset out.",
        )
    if free_batch and wanted.batch is not None:
        raise UsageError(
            f"A file for {target} cannot leave the batch free.",
            wanted.reason,
            "Leave --dynamic-batch out, or fix another batch with --batch.",
        )
    return (
        "portable",
        wanted.opset if opset is None else opset,
        wanted.batch if batch is None else batch,
    )


# --- Finishing a quantized file: with bodies, without, or in standard operators ---

_SHORT = "abcdefghijklmnopqrstuvwxyz"


def finalize(model: onnx.ModelProto, bodies: bool = True, runtime: str | None = None) -> None:
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
        detach_functions(model)
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
