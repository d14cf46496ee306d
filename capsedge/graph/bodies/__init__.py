"""Build the operators' function bodies from standard ONNX operators, specialised to a node's shapes."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper

from capsedge.graph import Rewrites
from capsedge.graph.bodies import attention, dynamic, elementwise, em, self_attention
from capsedge.graph.bodies import attention as uniform
from capsedge.graph.bodies.body import Body, Shape
from capsedge.spec.operators import DOMAIN, OPERATORS

_BUILDERS = {
    "Squash": elementwise.build_squash,
    "DynamicRouting": dynamic.build,
    "VoteRouting": dynamic.build_over_votes,
    "EMRouting": em.build,
    "AttentionRouting": attention.build,
    "SelfAttentionRouting": self_attention.build,
    "UniformRouting": uniform.build_uniform,
    "PoseNormalization": elementwise.build_normalization,
    "FastConv": elementwise.build,
    "QuantizedConv": elementwise.build_quantized,
}


def function_body(
    operator: str,
    shapes: list[Shape],
    attributes: dict[str, Any],
    rewrites: Rewrites | None = None,
    *,
    opset: int = 20,
    domain: str = DOMAIN,
    couplings: bool = False,
    traced: bool = False,
    compute: int = TensorProto.FLOAT,
) -> onnx.FunctionProto:
    """The ONNX function that computes one operator for given input shapes and attributes.

    Args:
        operator: its type, a key of ``spec.operators.OPERATORS``.
        shapes: shapes of the inputs that the node has, in order; None for the free batch.
        attributes: attributes of the node; omitted ones have their defaults.
        rewrites: the exact rewrites to use; all by default.
        opset: opset of the standard operators.
        domain: domain of the function.
        couplings: whether to add the couplings as an output.
        traced: whether to add the values of all iterations as outputs, one for each of ``Operator.traced``.
        compute: element type of the arithmetic (FP32; the tests use FP64).
    """
    spec = OPERATORS[operator]
    inputs = [value.name for value in spec.present_inputs(len(shapes))]
    body = Body(
        operator,
        dict(zip(inputs, shapes, strict=True)),
        spec.complete(attributes),
        rewrites or Rewrites(),
        couplings,
        compute,
        traced,
    )
    if spec.quantizes:
        elementwise.dequantize(body)
    _BUILDERS[spec.procedure](body)
    body.kept_results()
    outputs = [*spec.output_names, *(["couplings"] if couplings else [])]
    outputs += [f"trace_{kind}" for kind in spec.traced] if traced else []
    function = helper.make_function(
        domain,
        operator,
        [body.formal(n) for n in inputs],
        [body.formal(n) for n in outputs],
        body.nodes,
        [helper.make_opsetid("", opset)],
        attributes=[name for name in spec.attribute_names if name in attributes],
    )
    return function


__all__ = ["Shape", "function_body"]
