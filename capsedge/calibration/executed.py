"""The precision that is actually executed, read back from ONNX Runtime's optimized graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from capsedge.errors import ArtefactError
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.backends.onnxruntime_backend import register_operators
from capsedge.runtime.files.writing import temporary_folder
from capsedge.runtime.reading.onnx_file import summarize
from capsedge.schema.names import DOMAIN, operator_of
from capsedge.schema.operators import OPERATORS

# Nodes that compute with weights or route; all others move or normalize values.
COMPUTING = {"Conv", "FusedConv", "ConvTranspose", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"}
INTEGER = {
    "QLinearConv",
    "QLinearMatMul",
    "QGemm",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "ConvInteger",
    "QuantizedConv",
}
# Nodes that pass values on without changing their type.
MOVING = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Gather", "ReorderOutput"}
NAMES = {
    TensorProto.FLOAT: "fp32",
    TensorProto.FLOAT16: "fp16",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "int8",
    TensorProto.DOUBLE: "fp64",
}


@dataclass(frozen=True)
class Executed:
    """One kind of computing node in the executed graph.

    Attributes:
        op: its type, with its domain if that is not the default.
        precision: of its arithmetic, or ``int8 weights`` for a routing operator that computes in FP32.
        count: number of such nodes.
    """

    op: str
    precision: str
    count: int

    def to_dict(self) -> dict[str, str | int]:
        """JSON values."""
        return {"op": self.op, "precision": self.precision, "count": self.count}


def optimized(data: bytes, name: str = "the file", threads: int = 1) -> onnx.ModelProto:
    """The graph that ONNX Runtime makes of a file on loading; with the operator library, if there is one.

    Args:
        data: the content of the file.
        name: the file's name in errors.

    Raises:
        ArtefactError: ONNX Runtime refuses the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    library = find_library()
    if library is not None:
        register_operators(options, library, summarize(data, name).capsedge_types)
    with temporary_folder() as folder:
        options.optimized_model_filepath = str(folder / "optimized.onnx")
        try:
            onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's errors have no common public base
            raise ArtefactError(
                f"ONNX Runtime cannot load {name}.", str(error).strip().splitlines()[0]
            ) from error
        return onnx.load(options.optimized_model_filepath)


def executed(data: bytes, name: str = "the file") -> list[Executed]:
    """The computing nodes of a file's optimized graph by precision; arguments as for `optimized`."""
    graph = optimized(data, name).graph
    kinds = {t.name: t.data_type for t in graph.initializer}
    kinds |= {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.input)}
    for node in graph.node:
        if node.op_type == "Cast":
            kind = next(a.i for a in node.attribute if a.name == "to")
        elif node.op_type == "DequantizeLinear":
            kind = kinds.get(node.input[1], TensorProto.UNDEFINED)
        elif node.op_type in MOVING:
            kind = kinds.get(node.input[0], TensorProto.UNDEFINED)
        else:
            continue
        kinds.setdefault(node.output[0], kind)
    counts: Counter[tuple[str, str]] = Counter()
    for node in graph.node:
        operator = operator_of(node.op_type)
        name = f"{node.domain}::{operator}" if node.domain not in ("", "ai.onnx") else operator
        if operator in INTEGER:
            counts[name, "int8"] += 1
        elif node.domain == DOMAIN and operator in OPERATORS:
            types = [kinds.get(i, TensorProto.UNDEFINED) for i in node.input]
            precision = next((NAMES[k] for k in types if k in NAMES), "unknown")
            if OPERATORS[operator].in_8_bits:
                precision = "int8 weights"
            counts[name, precision] += 1
        elif node.op_type in COMPUTING:
            types = [kinds.get(i, TensorProto.UNDEFINED) for i in node.input[:2]]
            precision = next((NAMES[k] for k in reversed(types) if k in NAMES), "fp32")
            counts[name, precision] += 1
    return [Executed(op, precision, n) for (op, precision), n in sorted(counts.items())]
