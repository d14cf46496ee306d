"""The last steps of a new file, and its proof against the original."""

from __future__ import annotations

import onnx

from capsedge.graph.exact_sigmoid import write_exact_sigmoids
from capsedge.graph.functions import attach_functions
from capsedge.graph.layer_norm import replace_layer_norms
from capsedge.graph.proto import copy_of
from capsedge.graph.recognize.half import store_halves
from capsedge.graph.recognize.proof import Comparison, Original, prove
from capsedge.graph.recognize.values import Values, first_line
from capsedge.graph.views import merge_views

IR_VERSION = 10


def finished(
    original: Original, model: onnx.ModelProto, recognized: bool, graph: Values
) -> tuple[onnx.ModelProto, list[Comparison]]:
    """A copy with views merged and function bodies, and its comparisons with the original.

    Args:
        model: the cleaned graph, with the operators put in.
        recognized: whether there are any.
        graph: tells inputs and batch.

    Returns:
        The file, and the comparisons; the excess is infinite where it does not run.
    """
    finished = copy_of(model)
    described = list(finished.graph.value_info)
    try:
        inferred = onnx.shape_inference.infer_shapes(finished, data_prop=True)
        known = {v.name for v in described}
        finished.graph.value_info.extend(
            v for v in inferred.graph.value_info if v.name not in known
        )
        if recognized:
            replace_layer_norms(finished)
        write_exact_sigmoids(finished)
        merged = copy_of(finished)
        merge_views(merged)
        finished = merged
    except onnx.shape_inference.InferenceError:
        pass  # views stay as they are
    try:
        if recognized:
            finished.ir_version = max(finished.ir_version, IR_VERSION)
            attach_functions(finished)
        if original.truth is not None:
            store_halves(finished)
        return finished, prove(original, finished, graph)
    except Exception as error:  # ONNX Runtime's errors have no common public base
        infinite = float("inf")
        return finished, [Comparison(first_line(error), "", infinite, infinite)]
