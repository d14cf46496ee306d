"""Foreign files: plain PyTorch modules as torch's exporters write them."""

from __future__ import annotations

import io
import logging
import warnings

import onnx
import torch
from torch import Tensor, nn


def exported(
    module: nn.Module, example: Tensor, exporter: str = "script", opset: int = 17, free: bool = True
) -> onnx.ModelProto:
    """The module as an ONNX model of one of torch's exporters, batch free unless told otherwise.

    The graph is not optimized by dynamo's exporter, which would take an epsilon of 1e-8 for zero.
    """
    module.eval()
    stream = io.BytesIO()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if exporter == "script":
            torch.onnx.export(
                module, (example,), stream, dynamo=False, opset_version=opset, input_names=["x"],
                output_names=["y"], dynamic_axes={"x": {0: "N"}, "y": {0: "N"}} if free else None,
            )  # fmt: skip
            return onnx.load_from_string(stream.getvalue())
        batch = torch.export.Dim("N")
        program = torch.onnx.export(
            module, (example,), dynamo=True, optimize=False, opset_version=max(opset, 18),
            dynamic_shapes=({0: batch},) if free else None, input_names=["x"], verbose=False,
        )  # fmt: skip
    assert program is not None
    return program.model_proto
