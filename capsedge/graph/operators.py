"""The operators as ONNX sees them: names of inputs, outputs and attributes (docs/operators.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import AttributeProto

VERSION = 1
TORCH_DOMAIN = "capsedge.torch"  # of the nodes made while torch exports; in no file


@dataclass(frozen=True)
class Operator:
    """One operator of the domain.

    Attributes:
        name: its type in ONNX.
        inputs: formal inputs, in order.
        outputs: outputs of the ONNX node, in order.
        attributes: attribute names and their ``AttributeProto`` types; every node carries them all.
        couplings: whether the PyTorch operator returns couplings after the outputs.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeProto.AttributeType]
    couplings: bool = True


_FLOAT = (
    Operator(
        "Squash",
        ("x",),
        ("y",),
        {"axis": AttributeProto.INT, "epsilon": AttributeProto.FLOAT},
        couplings=False,
    ),
    Operator(
        "DynamicRouting",
        ("u", "weight", "log_prior", "bias"),
        ("v",),
        {
            "iterations": AttributeProto.INT,
            "leaky": AttributeProto.INT,
            "epsilon": AttributeProto.FLOAT,
        },
    ),
    Operator(
        "EMRouting",
        ("pose", "a", "weight", "beta_u", "beta_a"),
        ("pose_out", "a_out"),
        {
            "iterations": AttributeProto.INT,
            "strides": AttributeProto.INTS,
            "inverse_temperatures": AttributeProto.FLOATS,
            "coordinate_addition": AttributeProto.INT,
            "shared": AttributeProto.INT,
            "epsilon": AttributeProto.FLOAT,
        },
    ),
    Operator(
        "AttentionRouting",
        ("pose", "parent", "weight", "scale", "bias"),
        ("pose_out",),
        {
            "strides": AttributeProto.INTS,
            "matrix_pose": AttributeProto.INT,
            "agreement_scale": AttributeProto.FLOAT,
            "epsilon": AttributeProto.FLOAT,
        },
    ),
    Operator(
        "UniformRouting",
        ("pose", "weight", "scale", "bias"),
        ("pose_out",),
        {
            "strides": AttributeProto.INTS,
            "matrix_pose": AttributeProto.INT,
            "epsilon": AttributeProto.FLOAT,
        },
        couplings=False,
    ),
    Operator(
        "PoseNormalization",
        ("x", "scale", "bias"),
        ("y",),
        {"epsilon": AttributeProto.FLOAT},
        couplings=False,
    ),
)
_QUANTIZED_CONV = Operator(
    "QuantizedConv",
    (
        "x",
        "x_scale",
        "x_zero_point",
        "weight",
        "weight_scale",
        "weight_zero_point",
        "y_scale",
        "y_zero_point",
        "bias",
    ),
    ("y",),
    {
        "strides": AttributeProto.INTS,
        "pads": AttributeProto.INTS,
        "dilations": AttributeProto.INTS,
    },
    couplings=False,
)


def _quantized(o: Operator) -> Operator:
    """The operator with INT8 weights, whose scale is an input behind them."""
    place = o.inputs.index("weight") + 1
    inputs = (*o.inputs[:place], "weight_scale", *o.inputs[place:])
    return Operator(f"Quantized{o.name}", inputs, o.outputs, o.attributes, couplings=False)


OPERATORS = {
    o.name: o
    for o in (
        *_FLOAT,
        *(_quantized(o) for o in _FLOAT if "weight" in o.inputs),
        _QUANTIZED_CONV,
    )
}


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node as Python values."""
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
