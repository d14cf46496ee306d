"""Routing that a user wrote as a loop of standard operators, made capsule operators."""

from __future__ import annotations

import onnx

from capsedge.errors import ParityError, UnsupportedModelError
from capsedge.graph.functions import detach_functions
from capsedge.graph.proto import operator_nodes
from capsedge.graph.recognize.improving import improve
from capsedge.graph.recognize.report import Recognition
from capsedge.schema.names import DOMAIN


def recognize_routing(
    model: onnx.ModelProto,
) -> tuple[onnx.ModelProto, Recognition, tuple[str, ...]]:
    """A model with its routing recognized and without function bodies, what was found, and notes.

    The work is that of ``capsedge.optimize``, and so is its proof against the model that comes in.
    """
    if operator_nodes(model) or any(n.domain == DOMAIN for f in model.functions for n in f.node):
        return model, Recognition(), ()
    try:
        improved = improve(model.SerializeToString(), batch="keep")
    except (ParityError, UnsupportedModelError) as error:
        return model, Recognition(), (f"routing was not looked for: {error.what} {error.why}",)
    better = onnx.load_model_from_string(improved.model)
    detach_functions(better)
    return better, improved.recognition, improved.notes
