"""Files of other tools in the form that the rest of this room expects; what they compute stays the same."""

from __future__ import annotations

import onnx
import onnx.inliner
from onnx import TensorProto

from capsedge.errors import UnsupportedModelError
from capsedge.graph.proto import copy_of, replace
from capsedge.schema.names import DOMAIN

IR_VERSION = 8  # weights need not be inputs from IR version 4 on


def plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without functions of other domains, without weights among its inputs (as in IR version 3), and
    with FP32 constants as initializers.

    Raises:
        UnsupportedModelError: it has sparse weights, or imports no standard operators.
    """
    if not any(e.domain in ("", "ai.onnx") for e in model.opset_import):
        raise UnsupportedModelError(
            "The file imports no standard operators.", "", "Export it again with a standard opset."
        )
    if model.graph.sparse_initializer:
        raise UnsupportedModelError(
            "The file has sparse weights.",
            f"The first is '{model.graph.sparse_initializer[0].values.name}'.",
            "Export it again with dense weights.",
        )
    functions = [(f.domain, f.name) for f in model.functions if f.domain != DOMAIN]
    made = onnx.inliner.inline_selected_functions(model, functions) if functions else copy_of(model)
    graph = made.graph
    stored = {t.name for t in graph.initializer}
    replace(graph.input, [i for i in graph.input if i.name not in stored])
    nodes = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if (
            node.op_type == "Constant"
            and value is not None
            and value.data_type == TensorProto.FLOAT
        ):
            value.name = node.output[0]
            graph.initializer.append(value)
        else:
            nodes.append(node)
    for (
        node
    ) in nodes:  # ONNX Runtime's own rewrites trip over outputs that are named empty at the end
        while node.output and not node.output[-1]:
            del node.output[-1]
    replace(graph.node, [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes])
    made.ir_version = max(made.ir_version, IR_VERSION)
    return made
