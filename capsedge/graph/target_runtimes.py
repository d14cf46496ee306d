"""Adapt a file to the runtime that will run it: operators, batch, opset."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from capsedge.errors import UsageError
from capsedge.graph.cleanup import simplify
from capsedge.graph.functions import attach_functions, inline_functions
from capsedge.graph.ir import copy_of, inferred, operator_nodes
from capsedge.graph.portable import use_portable_forms

# --- Requirements of OpenVINO, LiteRT and MNN ---


@dataclass(frozen=True)
class Target:
    """A runtime by name.

    Attributes:
        name: name of the runtime.
        batch: the batch to which its files are fixed by default; None for a free one.
        opset: the newest that its converter was tested with.
    """

    name: str
    batch: int | None
    opset: int


TARGETS = {
    t.name: t
    for t in (
        Target("openvino", None, 20),
        Target("litert", 1, 20),  # its converter needs constant shapes
        Target("mnn", 1, 20),  # it plans memory once, for constant shapes
    )
}


def resolve(target: str, ops: str, opset: int, batch: int | None) -> tuple[str, int, int | None]:
    """The form, opset and batch of a file for a runtime; explicit requests are kept.

    Args:
        target: a key of ``TARGETS``.
        ops, opset, batch: the requests; ``auto`` and None leave the choice to the runtime.

    Raises:
        UsageError: there is no such runtime, or it does not support a request.
    """
    wanted = TARGETS.get(target)
    if wanted is None:
        raise UsageError(
            f"Unknown runtime '{target}'.", "", f"Choose one of: {', '.join(TARGETS)}."
        )
    if ops == "fused":
        raise UsageError(
            f"A file for {target} cannot use ops '{ops}'.",
            f"{target} supports neither the operators of the capsedge domain nor functions.",
            "Leave --ops out; 'portable' is used.",
        )
    if opset > wanted.opset:
        raise UsageError(
            f"A file for {target} cannot have opset {opset}.",
            f"Its converter was tested up to opset {wanted.opset}.",
            "Leave --opset out.",
        )
    return "portable", opset, wanted.batch if batch is None else batch


# --- Quantized files for them ---


def fit_to_runtime(model: onnx.ModelProto, runtime: str) -> None:
    """Convert a model to standard operators and the batch that the runtime needs, in place, and check it.

    Args:
        runtime: a key of ``TARGETS``; it supports neither functions nor the domain ``capsedge``.

    Raises:
        onnx.checker.ValidationError: the model is not valid.
    """
    made, batch = model, TARGETS[runtime].batch
    if operator_nodes(model):
        attach_functions(model)
        made = inline_functions(model)
    if batch is not None:
        made = fix_batch(made, batch)
    use_portable_forms(made)
    onnx.checker.check_model(made, full_check=True)
    model.CopyFrom(made)


def fix_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """A copy of a standard-operator model with its free batch fixed; a fixed one is left unchanged."""
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
