"""PyTorch's capsule operators to ONNX nodes while ``torch.onnx.export`` runs.

The nodes made here are in a domain of our own, ``capsedge.torch``, with the couplings as an output,
because the torch operators have it; ``lowering`` then makes ``capsedge`` nodes of them. A private
domain also keeps ONNX's global registry free of ``capsedge`` schemas, which would stop shape inference
through the function bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnx import AttributeProto, defs
from onnxscript.values import Opset

import capsedge.ops  # noqa: F401  (registers the torch operators)
from capsedge.graph.operators import OPERATORS, TORCH_DOMAIN, Operator

_ATTRIBUTE_TYPES = {
    AttributeProto.INT: defs.OpSchema.AttrType.INT,
    AttributeProto.INTS: defs.OpSchema.AttrType.INTS,
    AttributeProto.FLOAT: defs.OpSchema.AttrType.FLOAT,
    AttributeProto.FLOATS: defs.OpSchema.AttrType.FLOATS,
}
_TYPES = ["tensor(float)", "tensor(float16)", "tensor(double)", "tensor(bfloat16)"]


def _register(operator: Operator) -> None:
    if defs.has(operator.name, TORCH_DOMAIN):
        return
    outputs = [*operator.outputs, *(["couplings"] if operator.couplings else [])]
    parameter = defs.OpSchema.FormalParameter
    defs.register_schema(
        defs.OpSchema(
            operator.name,
            TORCH_DOMAIN,
            1,
            inputs=[parameter(n, "T") for n in operator.inputs],
            outputs=[parameter(n, "T") for n in outputs],
            type_constraints=[("T", _TYPES, "a floating-point type")],
            attributes=[
                defs.OpSchema.Attribute(n, _ATTRIBUTE_TYPES[t], required=True)
                for n, t in operator.attributes.items()
            ],
        )
    )


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The table for ``torch.onnx.export(custom_translation_table=...)``; may be asked for again and again."""
    for operator in OPERATORS.values():
        _register(operator)
    op = Opset(TORCH_DOMAIN, 1)

    def squash(x: Any, axis: int, epsilon: float) -> Any:
        return op.Squash(x, axis=axis, epsilon=epsilon)

    def dynamic_routing(
        u: Any, weight: Any, log_prior: Any, bias: Any, iterations: int, leaky: bool, epsilon: float
    ) -> Any:
        return op.DynamicRouting(
            u, weight, log_prior, bias, iterations=iterations, leaky=int(leaky), epsilon=epsilon
        )

    def em_routing(
        pose: Any,
        a: Any,
        weight: Any,
        beta_u: Any,
        beta_a: Any,
        iterations: int,
        strides: Sequence[int],
        inverse_temperatures: Sequence[float],
        coordinate_addition: bool,
        shared: bool,
        epsilon: float,
    ) -> Any:
        return op.EMRouting(
            pose,
            a,
            weight,
            beta_u,
            beta_a,
            iterations=iterations,
            strides=list(strides),
            inverse_temperatures=list(inverse_temperatures),
            coordinate_addition=int(coordinate_addition),
            shared=int(shared),
            epsilon=epsilon,
        )

    def attention_routing(
        pose: Any,
        parent: Any,
        weight: Any,
        scale: Any,
        bias: Any,
        strides: Sequence[int],
        matrix_pose: bool,
        agreement_scale: float,
        epsilon: float,
    ) -> Any:
        return op.AttentionRouting(
            pose,
            parent,
            weight,
            scale,
            bias,
            strides=list(strides),
            matrix_pose=int(matrix_pose),
            agreement_scale=agreement_scale,
            epsilon=epsilon,
        )

    ops = torch.ops.capsedge
    return {
        ops.squash.default: squash,
        ops.dynamic_routing.default: dynamic_routing,
        ops.em_routing.default: em_routing,
        ops.attention_routing.default: attention_routing,
    }
