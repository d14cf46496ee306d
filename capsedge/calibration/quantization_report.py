"""Report a quantization, with the precision that ONNX Runtime actually executes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import onnx
from onnx import TensorProto

from capsedge.calibration import mixed_precision
from capsedge.calibration.accuracy import AGREEMENT, DICE, ERROR, MEASURES, Gate, Outcome
from capsedge.calibration.quantizable_layers import KeptNode, QuantizableLayer
from capsedge.errors import ArtefactError, ParityError
from capsedge.metrics import OutputError
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.backends.onnxruntime_session import multiply_exactly, register_operators
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.files.writing import temporary_folder
from capsedge.runtime.onnx_file.summary import summarize
from capsedge.runtime.result_summary import Report, Table, outcome_word, shortened_name
from capsedge.runtime.session.masks import OverlapDocument
from capsedge.spec.operators import DOMAIN, OPERATORS, operator_of

# --- Executed precision, read back from ONNX Runtime's optimized graph ---

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
class ExecutedPrecision:
    """One kind of computing node in the executed graph.

    Attributes:
        op: the node's type, with its domain if that is not the default.
        precision: the arithmetic's precision, or ``int8 weights`` for a routing operator computing in FP32.
        count: number of such nodes.
    """

    op: str
    precision: str
    count: int

    def to_dict(self) -> dict[str, str | int]:
        """JSON values."""
        return {"op": self.op, "precision": self.precision, "count": self.count}


def optimized_graph(data: bytes, name: str = "the file", threads: int = 1) -> onnx.ModelProto:
    """The graph into which ONNX Runtime optimizes a file, with the operator library if there is one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    multiply_exactly(options)
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


def executed_precision(data: bytes, name: str = "the file") -> list[ExecutedPrecision]:
    """The computing nodes of a file's optimized graph by precision; arguments as for `optimized`."""
    graph = optimized_graph(data, name).graph
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
    return [ExecutedPrecision(op, precision, n) for (op, precision), n in sorted(counts.items())]


def check_executed(
    runs: list[ExecutedPrecision], assignment: Mapping[str, str], layers: list[QuantizableLayer]
) -> None:
    """Refuse a file whose layers are not executed in 8 bits as they should; some only store weights."""
    computing = {layer.name for layer in layers if layer.kind not in ("linear", "table")}
    integers = any(assignment.get(name) in ("int8", "int4") for name in computing)
    if integers and not any(e.precision.startswith("int8") for e in runs):
        raise ArtefactError(
            "ONNX Runtime runs no part of this file in 8 bits.",
            "Its optimized graph has: "
            + ", ".join(f"{e.count} {e.op} {e.precision}" for e in runs),
            "Report this with the version of ONNX Runtime.",
        )


# --- The report ---

LISTED = 12  # kept nodes shown; `to_dict` lists all


@dataclass(frozen=True, repr=False)
class QuantizationReport(Report):
    """The settings and measurements of a quantization.

    Attributes:
        output: the file; if it was rejected, the name that it was kept under; None if none was requested.
        precision, method, target: as requested.
        size, source_size: bytes of the file and of the FP32 file.
        outcome: comparison with the FP32 file on the evaluation images, in the same runtime.
        kept: the nodes that stay in FP32, with the rule and its numbers.
        executed_precision: the computing nodes by precision, read back from ONNX Runtime's optimized graph.
        executed_precision_fp32: the same for the FP32 file.
        assignment: precision of every layer.
        search: all candidates, for mixed precision.
        gate: the loss that the file was allowed.
        criterion: the outputs that were compared, in words.
        images: numbers of images for calibration, search and evaluation, with a description of the last.
        noun: what messages call them: ``images`` or ``rows``.
        warnings: warnings about the images.
        model: the file's bytes.
        foreign: whether the FP32 file was written by another tool.
        user_module: the class of the user's module from which the FP32 file was exported; empty otherwise.
        checkpoint_sha256: checksum of the checkpoint from which the FP32 file was exported; empty if not
            stated.
    """

    output: Path | None
    precision: str
    method: str
    target: str
    size: int
    source_size: int
    outcome: Outcome
    kept: list[KeptNode]
    executed_precision: list[ExecutedPrecision]
    executed_precision_fp32: list[ExecutedPrecision]
    assignment: dict[str, str]
    search: mixed_precision.PrecisionSearch | None
    gate: Gate
    criterion: str
    images: dict[str, Any]
    noun: str
    warnings: tuple[str, ...]
    model: bytes = field(repr=False)
    foreign: bool
    user_module: str
    checkpoint_sha256: str

    heading: ClassVar[str] = "Quantized"

    def _lines(self) -> list[str]:
        name = "not written" if self.output is None else self.output.name
        outcome = (
            f"{outcome_word(self.passed)}: {self.outcome} on {self.outcome.images} {self.noun}"
        )
        share = f"{format_bytes(self.size)}, {self.size / self.source_size:.0%} of FP32"
        return [
            f"{shortened_name(name)}: {self.precision}, {share}",
            f"{outcome} ({self.images['evaluated_on']})",
        ]

    def rows(self) -> list[tuple[str, str]]:
        """The file, its size, and its comparison with the FP32 file."""
        ratio = self.size / self.source_size
        return [
            ("file", "not written" if self.output is None else str(self.output)),
            ("precision", f"{self.precision} for {self.target}"),
            (
                "size",
                f"{format_bytes(self.size)}, {ratio:.3f} of FP32 ({1 / ratio:.2f} times smaller)",
            ),
            ("calibration", f"{self.images['calibration']} {self.noun}, {self.method}"),
            ("judged by", self.criterion),
            ("judged on", self.images["evaluated_on"]),
            *self._verdict(),
        ]

    def _verdict(self) -> list[tuple[str, str]]:
        """The loss, and the allowed loss."""
        o, allowed = self.outcome, f"allowed {self.max_drop:g}"
        if o.outputs:
            return [(e.name, self._loss(e)) for e in o.outputs]
        if o.masks is not None:
            return self._of_masks(o.masks)
        agreement = f"{100 * o.agreement:.2f} % of {o.images} {self.noun}"
        if o.accuracy is None or o.reference is None:
            agreement += f": {o.drop:.2f} points of answers changed ({allowed})"
            changed = f"changed answers up to {o.largest_changed_margin:.3g}"
            margins = f"{changed}, median of all {o.median_margin:.3g}"
            return [("agreement", agreement), ("FP32's margins", margins)]
        accuracy = (
            f"{100 * o.accuracy:.2f} %, FP32 {100 * o.reference:.2f} %: {o.change} ({allowed})"
        )
        return [("agreement", agreement), ("accuracy", accuracy)]

    def _of_masks(self, masks: OverlapDocument) -> list[tuple[str, str]]:
        """The overlap of the masks with those of FP32 and of the data."""
        o, allowed = self.outcome, f"allowed {self.max_drop:g}"
        measure = MEASURES[o.overlap]
        both = f"{measure} {o.agreement:.4f} on {o.images} {self.noun}"
        if o.accuracy is None or o.reference is None:
            return [("with FP32's masks", f"{both}: {o.change} ({allowed})")]
        found = f"{o.accuracy:.4f}, FP32 {o.reference:.4f}: {o.change} ({allowed})"
        other = (
            ("mean IoU", f"{masks['mean_iou']:.4f}")
            if o.overlap == DICE
            else ("mean Dice", f"{masks['mean_dice']:.4f}")
        )
        return [("with FP32's masks", both), (measure, found), other]

    def _loss(self, error: OutputError) -> str:
        """The errors of an output of a regression."""
        text = (
            f"mean error {error.mean:.4g}, {100 * error.mean_share:.3f} % of its range "
            f"(allowed {self.max_drop:g}); largest {error.largest:.4g}, {100 * error.largest_share:.2f} % "
            f"(allowed {self.gate.max_error:g}); {self.outcome.images} {self.noun}"
        )
        if error.cosine is not None:
            text += f"; mean cosine of its vectors {error.cosine:.5f} (at least {self.gate.min_cosine:g})"
        return text

    def tables(self) -> list[Table]:
        """The nodes as executed, those kept in FP32, and the candidates of a search."""
        unlisted = len(self.kept) - LISTED
        return [
            Table(
                "Executed by ONNX Runtime on this machine (read back from its optimized graph)",
                ("operator", "precision", "nodes"),
                [(e.op, e.precision, str(e.count)) for e in self.executed_precision],
            ),
            Table(
                "Kept in FP32",
                ("node", "operator", "rule", "numbers"),
                [(k.node, k.op, k.rule, k.numbers) for k in self.kept[:LISTED]],
                notes=[f"and {unlisted} more (--json lists all)"] if unlisted > 0 else (),
            ),
            *([] if self.search is None else [self.search.table()]),
        ]

    @property
    def passed(self) -> bool:
        """Whether the file passed the gate."""
        return self.gate.passes(self.outcome)

    @property
    def max_drop(self) -> float:
        """The allowed ``outcome.drop``."""
        return self.gate.limit(self.outcome.metric)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "output": None if self.output is None else str(self.output),
            "passed": self.passed,
            "precision": self.precision,
            "method": self.method,
            "target": self.target,
            "bytes": self.size,
            "bytes_fp32": self.source_size,
            "size_ratio": self.size / self.source_size,
            "criterion": self.criterion,
            "max_drop_points": self.max_drop,
            "max_error_percent": self.gate.max_error if self.outcome.metric == ERROR else None,
            "min_cosine": self.gate.min_cosine if self.outcome.metric == ERROR else None,
            "outcome": self.outcome.to_dict(),
            "assignment": self.assignment,
            "kept_in_fp32": [k.to_dict() for k in self.kept],
            "executed_precision": [e.to_dict() for e in self.executed_precision],
            "executed_precision_fp32": [e.to_dict() for e in self.executed_precision_fp32],
            "search": None
            if self.search is None
            else {
                "candidates": [c.to_dict() for c in self.search.candidates],
                "pareto": [c.to_dict() for c in self.search.pareto()],
            },
            "images": self.images,
            "warnings": list(self.warnings),
        }


class QuantizationRejected(ParityError):
    """The loss exceeds the gate."""

    def __init__(self, report: QuantizationReport) -> None:
        o = report.outcome
        if o.masks is not None:
            measured = f"{o}"
        elif o.metric == AGREEMENT:
            measured = f"{100 * o.agreement:.2f} % of the decisions are those of FP32"
        elif o.metric == ERROR or o.accuracy is None or o.reference is None:
            measured = "Compared with FP32"
        else:
            measured = f"{100 * o.reference:.2f} % in FP32, {100 * o.accuracy:.2f} % afterwards,"
        mixed = report.precision == "mixed"
        other, option = ("", "") if mixed else ("`precision='mixed'`, ", "--precision mixed, ")
        super().__init__(
            f"The {report.precision} file loses too much.",
            f"{measured} on {o.images} {report.noun} ({report.images['evaluated_on']})"
            + (f"; kept as {report.output}. " if report.output is not None else ". ")
            + " ".join(report.gate.failures(o)),
            f"Try {other}another `method=`, more `calib_images=`, or allow more with "
            "`max_drop=`" + (", `max_error=` or `min_cosine=`." if o.metric == ERROR else "."),
            report=report,
            command=f"Try {option}another --method, more --calib-images, or allow more with "
            "--max-drop" + (", --max-error or --min-cosine." if o.metric == ERROR else "."),
        )
