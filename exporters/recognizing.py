"""Routing that a user wrote as a loop of standard operators, made capsule operators."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from capsedge.errors import ParityError, UnsupportedModelError
from capsedge.exporters.answers import is_foreign
from capsedge.exporters.user_code import first_line
from capsedge.graph.functions import detach_functions
from capsedge.graph.proto import operator_nodes
from capsedge.graph.recognize.improving import improve
from capsedge.graph.recognize.report import Recognition
from capsedge.schema.names import DOMAIN


def recognize_routing(
    model: onnx.ModelProto, progress: Callable[[str], None] = lambda _: None
) -> tuple[onnx.ModelProto, Recognition, tuple[str, ...]]:
    """A model with its routing recognized and without function bodies, what was found, and notes.

    The work is that of ``capsedge.optimize``, and so is its proof against the model that comes in.

    Args:
        progress: told what is being done.
    """
    if operator_nodes(model) or any(n.domain == DOMAIN for f in model.functions for n in f.node):
        return model, Recognition(), ()
    try:
        improved = improve(
            model.SerializeToString(), lambda stage: _told(stage, progress), batch="keep"
        )
    except (ParityError, UnsupportedModelError) as error:
        return model, Recognition(), (f"routing was not looked for: {error.what} {error.why}",)
    except Exception as error:
        if not is_foreign(error):
            raise
        return model, Recognition(), (f"routing was not looked for: {first_line(error)}",)
    better = onnx.load_model_from_string(improved.model)
    detach_functions(better)
    return better, improved.recognition, improved.notes


def _told(stage: str, progress: Callable[[str], None]) -> None:
    """Pass on the stages that take long."""
    said = {"recognizing": "looking for routing", "proving": "proving what replaces it"}
    if stage in said:
        progress(said[stage])
