"""Function bodies of the operators in standard ONNX operators, specialised to a node's shapes."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper

from capsedge.graph.bodies import attention, dynamic, em, int8, normalization, squash, uniform
from capsedge.graph.bodies._builder import Body, Shape
from capsedge.graph.operators import OPERATORS
from capsedge.graph.rewrites import Rewrites
from capsedge.schema.names import DOMAIN

_BUILDERS = {
    "Squash": squash.build,
    "DynamicRouting": dynamic.build,
    "EMRouting": em.build,
    "AttentionRouting": attention.build,
    "UniformRouting": uniform.build,
    "PoseNormalization": normalization.build,
    "QuantizedDynamicRouting": int8.build_dynamic,
    "QuantizedEMRouting": int8.build_em,
    "QuantizedAttentionRouting": int8.build_attention,
    "QuantizedUniformRouting": int8.build_uniform,
    "QuantizedConv": int8.build_conv,
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
    compute: int = TensorProto.FLOAT,
) -> onnx.FunctionProto:
    """The ONNX function that computes one operator for given input shapes and attributes.

    Args:
        operator: its type, a key of ``OPERATORS``.
        shapes: of its inputs, in order; None for the free batch.
        attributes: all of the node's attributes.
        rewrites: the exact rewrites to use; all by default.
        opset: of the standard operators.
        domain: of the function.
        couplings: adds the couplings as the last output.
        compute: element type of the arithmetic (FP32; the tests use FP64).
    """
    spec = OPERATORS[operator]
    body = Body(
        operator,
        dict(zip(spec.inputs, shapes, strict=True)),
        attributes,
        rewrites or Rewrites(),
        couplings,
        compute,
    )
    _BUILDERS[operator](body)
    outputs = [*spec.outputs, *(["couplings"] if couplings else [])]
    function = helper.make_function(
        domain,
        operator,
        [body.formal(n) for n in spec.inputs],
        [body.formal(n) for n in outputs],
        body.nodes,
        [helper.make_opsetid("", opset)],
        attributes=list(spec.attributes),
    )
    return function


__all__ = ["Shape", "function_body"]
