"""Run pieces of another tool's graph unchanged in ONNX Runtime, in FP32 or converted to FP64."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.runtime.backends.onnxruntime_session import (
    keep_to_itself,
    multiply_exactly,
    without_spinning,
)

if TYPE_CHECKING:
    import onnxruntime

Session: TypeAlias = "onnxruntime.InferenceSession"


def session_options() -> onnxruntime.SessionOptions:
    """Options of sessions that are compared: no other files, exact products, threads that sleep."""
    options: onnxruntime.SessionOptions = import_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    keep_to_itself(options)
    multiply_exactly(options)
    without_spinning(options)
    return options


def session_of(model: onnx.ModelProto, optimized: bool = False, arena: bool = False) -> Session:
    """Load a model in ONNX Runtime on the CPU.

    Args:
        arena: whether the session keeps its memory, so that the next run need not allocate any.
    """
    onnxruntime = import_onnxruntime()
    options = session_options()
    options.enable_cpu_mem_arena = arena
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def one_line_message(error: BaseException) -> str:
    """The message of another library's error, on one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def to_fp64(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes in FP64; Softplus and Sigmoid, missing or imprecise in ONNX Runtime, are decomposed."""
    for node in nodes:
        if node.op_type in ("Softplus", "Sigmoid") and not node.domain:
            yield from _written_out(node)
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for attribute in copy.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
                wide = numpy_helper.to_array(attribute.t).astype(np.float64)
                attribute.t.CopyFrom(numpy_helper.from_array(wide))
        yield copy


def _written_out(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """``1/(1 + exp -x)`` or ``log(1 + exp x)``."""
    x, y = node.input[0], node.output[0]
    soft = node.op_type == "Softplus"
    one = numpy_helper.from_array(np.array(1.0))
    yield helper.make_node("Constant", [], [f"{y}/one"], value=one)
    if not soft:
        yield helper.make_node("Neg", [x], [f"{y}/negative"])
    yield helper.make_node("Exp", [x if soft else f"{y}/negative"], [f"{y}/power"])
    yield helper.make_node("Add", [f"{y}/power", f"{y}/one"], [f"{y}/sum"])
    yield helper.make_node("Log" if soft else "Reciprocal", [f"{y}/sum"], [y])
