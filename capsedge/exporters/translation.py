"""PyTorch's capsule operators to ONNX nodes while ``torch.onnx.export`` runs.

The nodes made here are in a domain of our own, ``TORCH_DOMAIN``, with the couplings as an output,
because the torch operators have it; ``graph.passes`` then makes ``capsedge`` nodes of them. A private
domain also keeps ONNX's global registry free of ``capsedge`` schemas, which would stop shape inference
through the function bodies.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from onnx import defs
from onnxscript.values import Opset

import capsedge.ops  # noqa: F401  (registers the torch operators)
from capsedge.graph.passes import TORCH_DOMAIN
from capsedge.schema.operators import OPERATORS, Operator

_ATTRIBUTE_TYPES = {
    "int": defs.OpSchema.AttrType.INT,
    "ints": defs.OpSchema.AttrType.INTS,
    "float": defs.OpSchema.AttrType.FLOAT,
    "floats": defs.OpSchema.AttrType.FLOATS,
}
_PYTHON_TYPES = {"int": int, "ints": list[int], "float": float, "floats": list[float]}
_TYPES = ["tensor(float)", "tensor(float16)", "tensor(double)", "tensor(bfloat16)"]


def _register(operator: Operator) -> None:
    if defs.has(operator.name, TORCH_DOMAIN):
        return
    outputs = [*operator.output_names, *(["couplings"] if operator.couplings else [])]
    parameter, option = defs.OpSchema.FormalParameter, defs.OpSchema.FormalParameterOption
    defs.register_schema(
        defs.OpSchema(
            operator.name,
            TORCH_DOMAIN,
            1,
            inputs=[
                parameter(
                    v.name, "T", param_option=option.Optional if v.optional else option.Single
                )
                for v in operator.inputs
            ],
            outputs=[parameter(n, "T") for n in outputs],
            type_constraints=[("T", _TYPES, "a floating-point type")],
            attributes=[
                defs.OpSchema.Attribute(a.name, _ATTRIBUTE_TYPES[a.type], required=True)
                for a in operator.attributes
            ],
        )
    )


def _translation(operator: Operator, opset: Opset) -> Callable[..., Any]:
    """A function of the PyTorch operator's arguments that makes the ONNX node."""
    inputs = dict.fromkeys(operator.input_names, Any)
    types = {**inputs, **{a.name: _PYTHON_TYPES[a.type] for a in operator.attributes}}
    kinds = {a.name: a.type for a in operator.attributes}

    def translate(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(types, args, strict=False)), **kwargs}
        tensors = [given.pop(name) for name in operator.input_names]
        for name, value in given.items():
            if kinds[name] == "int":  # PyTorch also has booleans
                given[name] = int(value)
            elif kinds[name] in ("ints", "floats"):
                given[name] = list(value)
        return getattr(opset, operator.name)(*tensors, **given)

    # torch distinguishes inputs from attributes by these.
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    translate.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, either, annotation=kind) for name, kind in types.items()]
    )
    translate.__annotations__ = types
    translate.__name__ = operator.torch
    return translate


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The table for ``torch.onnx.export(custom_translation_table=...)``; may be called repeatedly."""
    table: dict[Callable[..., Any], Callable[..., Any]] = {}
    opset = Opset(TORCH_DOMAIN, 1)
    for operator in OPERATORS.values():
        if operator.torch:
            _register(operator)
            function = getattr(torch.ops.capsedge, operator.torch).default
            table[function] = _translation(operator, opset)
    return table
