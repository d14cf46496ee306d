"""Refuse files whose stored values are NaN, or whose weights are infinite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from capsedge.errors import ArtefactError
from capsedge.runtime.finite import DIVERGED, listed, not_finite
from capsedge.spec.operators import DOMAIN

# Inputs behind the first are weights. Elsewhere, an infinite constant is a mask or a bound.
_WEIGHTED = (
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "BatchNormalization",
    "PRelu",
    "LSTM",
    "GRU",
)


def refuse_not_finite(model: onnx.ModelProto, name: str) -> None:
    """Refuse weights that training leaves behind when it diverges.

    Raises:
        ArtefactError: it has the tensors' names, how many values, and the first one's position.
    """
    weights = {
        value
        for node in _nodes(model)
        if node.op_type in _WEIGHTED or node.domain == DOMAIN
        for value in node.input[1:]
    }
    wrong = []
    for label, tensor in _stored(model):
        values = numpy_helper.to_array(tensor)
        if not np.issubdtype(values.dtype, np.floating):
            continue
        if line := not_finite(label, values, infinite=label not in weights):
            wrong.append(line)
    if wrong:
        raise ArtefactError(
            f"The weights in {name} are not finite.",
            f"NaN or infinite: {'; '.join(listed(wrong))}.",
            DIVERGED,
        )


def _nodes(model: onnx.ModelProto) -> Iterable[onnx.NodeProto]:
    yield from model.graph.node
    for function in model.functions:
        yield from function.node


def _stored(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """The stored tensors of a file, with the names of the values that they give."""
    for tensor in model.graph.initializer:
        yield tensor.name, tensor
    for node in _nodes(model):
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield node.output[0], attribute.t
