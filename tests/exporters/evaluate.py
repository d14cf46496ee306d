"""Running exported graphs in tests: ONNX's own reference evaluator in FP64, ONNX Runtime in FP32."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from capsedge.exporters import subject as modules
from capsedge.exporters.module_graph import to_graph
from capsedge.graph import Rewrites
from capsedge.graph.cleanup import remove_dead_nodes
from capsedge.graph.functions import attach_functions
from capsedge.graph.rewrites import replace_uniform_passes
from capsedge.models import CapsuleModel
from capsedge.spec.operators import DOMAIN


def as_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph in FP64."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        _double(tensor)
    for node in copy.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _double(attribute.t)
    for value in (*copy.graph.input, *copy.graph.output, *copy.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return copy


def _double(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        value = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def captured(model: CapsuleModel) -> onnx.ModelProto:
    """The model's graph of ``capsedge`` nodes with every pass kept and nothing rewritten."""
    subject = modules.of_capsule_model(model, (), None, "")
    return to_graph(subject, 20, None, Rewrites.none(), "fused").lowered.model


def rewritten(graph: onnx.ModelProto, rewrites: Rewrites, double: bool) -> onnx.ModelProto:
    """A copy of a captured graph with some rewrites, in standard operators."""
    copy = onnx.ModelProto()
    copy.CopyFrom(as_double(graph) if double else graph)
    if rewrites.first_pass_uniform:
        replace_uniform_passes(copy)
    remove_dead_nodes(copy, None if rewrites.light_cone else DOMAIN)
    compute = TensorProto.DOUBLE if double else TensorProto.FLOAT
    attach_functions(copy, rewrites, compute=compute)
    return onnx.inliner.inline_local_functions(copy)


def run_double(model: onnx.ModelProto, images: np.ndarray) -> list[np.ndarray]:
    """Outputs in FP64, by numpy."""
    found = ReferenceEvaluator(model).run(None, {"images": images.astype(np.float64)})
    assert all(f.dtype == np.float64 for f in found)
    return list(found)


def run(model: onnx.ModelProto | bytes, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs in FP32, by ONNX Runtime."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def count(model: onnx.ModelProto, op_type: str) -> int:
    """Nodes of one type in the graph, in functions too."""
    bodies = [n for f in model.functions for n in f.node]
    return sum(n.op_type == op_type for n in (*model.graph.node, *bodies))


__all__ = ["as_double", "captured", "count", "rewritten", "run", "run_double"]
