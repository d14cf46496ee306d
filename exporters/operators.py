"""The operators as ONNX sees them: names of inputs, outputs and attributes (docs/operators.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import AttributeProto

DOMAIN = "capsedge"
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


OPERATORS = {
    o.name: o
    for o in (
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
        Operator(
            "QuantizedDynamicRouting",
            ("u", "weight", "weight_scale", "log_prior", "bias"),
            ("v",),
            {
                "iterations": AttributeProto.INT,
                "leaky": AttributeProto.INT,
                "epsilon": AttributeProto.FLOAT,
            },
            couplings=False,
        ),
        Operator(
            "QuantizedEMRouting",
            ("pose", "a", "weight", "weight_scale", "beta_u", "beta_a"),
            ("pose_out", "a_out"),
            {
                "iterations": AttributeProto.INT,
                "strides": AttributeProto.INTS,
                "inverse_temperatures": AttributeProto.FLOATS,
                "coordinate_addition": AttributeProto.INT,
                "shared": AttributeProto.INT,
                "epsilon": AttributeProto.FLOAT,
            },
            couplings=False,
        ),
        Operator(
            "QuantizedAttentionRouting",
            ("pose", "parent", "weight", "weight_scale", "scale", "bias"),
            ("pose_out",),
            {
                "strides": AttributeProto.INTS,
                "matrix_pose": AttributeProto.INT,
                "agreement_scale": AttributeProto.FLOAT,
                "epsilon": AttributeProto.FLOAT,
            },
            couplings=False,
        ),
        Operator(
            "QuantizedUniformRouting",
            ("pose", "weight", "weight_scale", "scale", "bias"),
            ("pose_out",),
            {
                "strides": AttributeProto.INTS,
                "matrix_pose": AttributeProto.INT,
                "epsilon": AttributeProto.FLOAT,
            },
            couplings=False,
        ),
        Operator(
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
        ),
    )
}


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node as Python values."""
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
