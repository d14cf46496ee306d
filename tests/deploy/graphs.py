"""ONNX files of other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import helper

Ports = Mapping[str, tuple[int, list[int | str] | None]]  # type and shape


def graph(
    path: Path,
    inputs: Ports,
    outputs: Ports,
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> Path:
    """Write a file of these nodes; returns its path."""
    ports = [
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in each.items()]
        for each in (inputs, outputs)
    ]
    made = helper.make_graph(nodes, "g", *ports, initializers)
    model = helper.make_model(made, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    onnx.save(model, path)
    return path
