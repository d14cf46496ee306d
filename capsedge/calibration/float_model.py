"""The FP32 file to quantize, and everything that is derived from it once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from capsedge.calibration import accuracy as evaluate
from capsedge.calibration import collect, fp16, int8_cpu, int8_qdq
from capsedge.calibration.accuracy import Criterion, CriterionOutputs, Outcome
from capsedge.calibration.quantizable_layers import (
    LEAST_ELEMENTS,
    KeptNode,
    LayerGraph,
    QuantizableLayer,
    calibrated_tensors,
    find_layers,
    float_tensors,
)
from capsedge.calibration.ranges import CalibrationTable
from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError, UnsupportedModelError, UsageError
from capsedge.graph.check import checked
from capsedge.graph.cleanup import to_normal_form
from capsedge.graph.functions import attach_short_functions
from capsedge.graph.ir import opset_of
from capsedge.graph.rewrites import write_standard_convolutions
from capsedge.graph.target_runtimes import fit_to_runtime
from capsedge.metrics import check_above_chance
from capsedge.runtime.files import reading
from capsedge.runtime.load import load_bytes
from capsedge.runtime.metadata.metadata import ModelMetadata, Preprocessing, how_to_export_again
from capsedge.runtime.metadata.scores import why_scores_are_mask
from capsedge.runtime.onnx_file.summary import read_harmless
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.score_checks import score_warnings
from capsedge.spec.fields import QUANTIZATION_KEY
from capsedge.spec.vocabularies import QDQ_TARGETS as QDQ
from capsedge.spec.vocabularies import QUANTIZE_TARGETS as TARGETS

INT4_FROM = 20  # the exporter's opset; opset 21 only adds types
MADE_BY = "the file that was made"
RECORD = QUANTIZATION_KEY  # key in files from other tools; ours have metadata
LEAST_OPSET = {"ort-cpu": 10, **dict.fromkeys(QDQ, 13)}  # for QLinearConv; for scales by channel
_QUANTIZED = {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "MatMulInteger", "ConvInteger"}


class FloatModel:
    """An FP32 file, and the files that can be made from it.

    Args:
        bodies: whether the files made from it contain function bodies; without them, they run only with the
            operator library.
        runtime: runtime that the files made from it are for, a key of ``graph.target_runtimes.TARGETS``; None
            for ONNX Runtime and TensorRT.
        scores: the output that decides the class, if the user names it.

    Attributes:
        content: the bytes of the file, which is read once, with its nodes in order.
        sha256: SHA-256 of the file.
        session: a session that runs it.
        metadata: metadata of the file; None for a file from another tool.
        model: the graph.
        criterion: how files made from it are judged.

    Raises:
        ArtefactError: the file is quantized already, or damaged.
        UnsupportedModelError: nothing in it can be quantized.
    """

    def __init__(
        self,
        path: Path | str,
        bodies: bool = True,
        runtime: str | None = None,
        scores: str | None = None,
        overlap: str = evaluate.DICE,
    ) -> None:
        self.path = Path(path)
        content, _ = read_harmless(self.path)
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.content = checked(content, str(path))
        self.session = load_bytes(self.content, self.path)
        self.metadata: ModelMetadata | None = self.session.metadata
        self.model = onnx.load_model_from_string(self.content)
        write_standard_convolutions(self.model)
        self._check_single()
        self._check_not_quantized()
        if self.metadata is None:
            self.model = to_normal_form(self.model)
        self.graph = LayerGraph(self.model)
        self.layers, self.kept = find_layers(self.graph)
        if not self.layers:
            raise UnsupportedModelError(
                f"{path} has no layer that can be quantized.",
                _why_not_quantizable(self.graph, self.kept),
                "Quantize an FP32 file with convolutions, matrix products or capsule operators.",
            )
        self._bodies, self._runtime, self._named = bodies, runtime, scores
        self.criterion = Criterion.of(self.session, scores, overlap=overlap)
        self._outputs: dict[int, tuple[ImageSet, CriterionOutputs]] = {}

    @property
    def user_module(self) -> str:
        """The class of the user's module; a model of the package has its configuration in the file."""
        metadata = self.metadata
        return "" if metadata is None or metadata.configuration else metadata.architecture

    @property
    def criterion_in_words(self) -> str:
        """The outputs that are compared, in words."""
        judge = self.criterion
        if judge.classes:
            return f"the masks of {judge.scores} ({judge.reason})"
        if judge.scores is not None:
            return f"the class of {judge.scores} ({judge.reason})"
        return f"the numbers of {', '.join(judge.numbers)} ({judge.reason})"

    def _check_single(self) -> None:
        if self.metadata is not None and self.metadata.cascade is not None:
            small = self.metadata.cascade.small.file
            raise UsageError(
                f"{self.path} is a cascade of two networks.",
                "Its measured agreement holds only for these two networks as they are.",
                f"Quantize {small} or the large network, then join them again with `capsedge.cascade`.",
                command=f"Quantize {small} or the large network, then join them again with "
                "`capsedge cascade`.",
            )

    def _check_not_quantized(self) -> None:
        model = self.model
        nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
        quantized = {n.op_type for n in nodes} & _QUANTIZED
        precision = "fp32" if self.metadata is None else self.metadata.precision
        for entry in model.metadata_props:
            if entry.key == RECORD:
                precision = "stated in its property " + RECORD
        if precision != "fp32" or quantized:
            raise ArtefactError(
                f"{self.path} is already quantized.",
                f"Its precision is {precision}"
                + (f"; it has {', '.join(sorted(quantized))} nodes." if quantized else "."),
                "Quantize the FP32 file that it was made from.",
            )

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How images are prepared for the input; None if the file does not state it."""
        return None if self.metadata is None else self.metadata.preprocessing

    @property
    def inputs(self) -> dict[str, str]:
        """The type of every input, by name."""
        return {port.name: port.dtype for port in self.session.inputs}

    def choose_criterion(self, data: ImageSet) -> list[str]:
        """Choose the criterion, with the help of labels; return warnings."""
        labels = data.labels
        classes = 0 if labels is None or len(labels) == 0 else int(labels.max()) + 1
        self.criterion = Criterion.of(
            self.session,
            self._named,
            classes,
            lambda: evaluate.sample_outputs(self.session, data),
            self.criterion.overlap,
        )
        if self.criterion.scores is None and (labels is not None or data.ignored):
            return [f"the labels are not used: {self.criterion.reason}"]
        known = self.criterion.scores == self.session.roles.scores
        warnings = list(score_warnings(self.session)) if known else []
        if self.metadata is None and self.criterion.scores is not None:
            mask = why_scores_are_mask(
                self.criterion.scores, evaluate.sample_outputs(self.session, data)
            )
            warnings += [f"{self.criterion.scores} is {mask}"] if mask else []
        if labels is None:
            return warnings
        port = next(p for p in self.session.outputs if p.name == self.criterion.scores)
        wide = port.shape[-1] if len(port.shape) == 2 else None
        if isinstance(wide, int) and classes > wide:
            raise UsageError(
                f"{data.source} has labels up to {classes - 1}.",
                f"'{port.name}' has {wide} scores, for the classes 0 to {wide - 1}.",
                "Number the labels from 0, in the order of the model's classes.",
            )
        return warnings

    def check_reference(self, data: ImageSet, progress: Progress = silent) -> list[str]:
        """Refuse an accuracy no better than chance; return warnings if the images are too few."""
        outputs = self.criterion_outputs(data, progress)
        accuracy = evaluate.compare(outputs, outputs, data, self.criterion).reference
        if accuracy is None or self.criterion.scores is None or self.criterion.classes:
            return []
        classes = outputs[self.criterion.scores][0].shape[1]
        return check_above_chance(
            accuracy, len(data), classes, self.criterion.scores, data.source, str(self.path)
        )

    def check_opset(self, precision: str, target: str) -> None:
        """Refuse a file whose operators are older than those that a target needs."""
        least, opset = (
            (1 if precision == "fp16" else LEAST_OPSET.get(target, 1)),
            opset_of(self.model),
        )
        if opset < least:
            new = self.path.with_suffix(".fused.onnx").name
            convert = f"Convert it first: `capsedge.optimize({str(self.path)!r}, {new!r})`."
            command = (
                f"Convert it first: `capsedge optimize {shlex.quote(str(self.path))} -o {new}`."
            )
            if self.graph.fused:  # `optimize` leaves such files as they are
                convert = command = how_to_export_again(self.metadata)
            raise UnsupportedModelError(
                f"{self.path} has opset {opset}, too old for {precision} and {target}.",
                f"The required nodes exist from opset {least} on.",
                convert,
                command=command,
            )

    def calibrate(
        self, data: ImageSet, method: str, path: Path | None, progress: Progress = silent
    ) -> CalibrationTable:
        """The table of this file on these images; read from ``path`` if it exists, else written there."""
        checksum = data.digest()
        tensors = calibrated_tensors(self.graph, self.layers)
        if path is not None and reading.path_kind(path) is not None:
            table = CalibrationTable.load(path)
            table.check(self.sha256, checksum, method, tensors, path)
            return table
        histograms = collect.histograms(self.model, tensors, data, progress)
        table = CalibrationTable.from_histograms(
            self.sha256, checksum, method, len(data), data.source, histograms
        )
        if path is not None:
            table.save(path)
        return table

    def to_fp16(self, data: ImageSet) -> tuple[onnx.ModelProto, list[KeptNode]]:
        """The file in FP16, and the nodes that stay in FP32."""
        tensors = float_tensors(self.model)
        limits = collect.magnitudes(self.model, tensors, data, finite=False)
        model, kept = fp16.emit(self.model, limits)
        self._finalize(model)
        return model, kept

    def _finalize(self, model: onnx.ModelProto) -> None:
        """Attach what the file needs to run; a file from another tool is checked by running it."""
        if self.metadata is not None:
            self._write_bodies(model)
        elif self._runtime is not None or self.graph.fused:
            try:
                self._write_bodies(model)
            except Exception as error:  # onnx raises many kinds, none of them ours
                clean = f"Clean it up first: `capsedge.optimize({str(self.path)!r}, 'clean.onnx')`."
                command = f"Clean it up first: `capsedge optimize {shlex.quote(str(self.path))}`."
                if self.graph.fused:  # `optimize` leaves such files as they are
                    clean = command = how_to_export_again(self.metadata)
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise UnsupportedModelError(
                    f"{self.path} cannot be written for this target.",
                    f"ONNX says: {first[:300]}",
                    clean,
                    command=command,
                ) from error

    def emit(
        self, assignment: Mapping[str, str], table: CalibrationTable, target: str
    ) -> tuple[onnx.ModelProto, list[KeptNode]]:
        """The file with every unit in its assigned precision, and the nodes that stay in FP32."""
        if target == "ort-cpu":
            model = int8_cpu.emit(self.model, self.layers, assignment, table)
            kept = list(self.kept)
        elif target in QDQ:
            chosen, kept = int8_qdq.qdq_placement(self.graph, self.layers, target)
            model = int8_qdq.emit(self.model, chosen, assignment, table)
            kept = [*self.kept, *kept]
        else:
            raise UsageError(
                f"Unknown target '{target}'.", "", f"Choose one of: {', '.join(TARGETS)}."
            )
        kept += [
            KeptNode(u.name, u.kind, "assigned", "the search keeps it in FP32")
            for u in self.layers
            if assignment.get(u.name, "fp32") == "fp32" and u.name not in {k.node for k in kept}
        ]
        self._finalize(model)
        return model, kept

    def _write_bodies(self, model: onnx.ModelProto) -> None:
        if self._runtime is None:
            attach_short_functions(model, self._bodies)
        else:
            fit_to_runtime(model, self._runtime)

    def quantizable(self, target: str) -> list[QuantizableLayer]:
        """The units that are faster or smaller in INT8 on a target."""
        if target in QDQ:
            return int8_qdq.qdq_placement(self.graph, self.layers, target)[0]
        return self.layers

    def levels(self, target: str) -> tuple[str, ...]:
        """The precisions to choose from; 4-bit weights need operators of a newer opset."""
        int4 = target == "ort-cpu" and opset_of(self.model) >= INT4_FROM
        return ("fp32", "int8", "int4") if int4 else ("fp32", "int8")

    def criterion_outputs(self, data: ImageSet, progress: Progress = silent) -> CriterionOutputs:
        """The FP32 file's outputs, computed once per set of images."""
        if id(data) not in self._outputs:
            outputs = evaluate.criterion_outputs(
                self.session, data, self.criterion, progress, "FP32"
            )
            self._outputs[id(data)] = data, outputs
        return self._outputs[id(data)][1]

    def outcome(
        self, model: onnx.ModelProto, data: ImageSet, progress: Progress = silent
    ) -> Outcome:
        """Compare a model made from this file with this file."""
        reference = self.criterion_outputs(data, progress)
        session = load_bytes(model.SerializeToString(), MADE_BY)
        outputs = evaluate.criterion_outputs(session, data, self.criterion, progress, "quantized")
        return evaluate.compare(reference, outputs, data, self.criterion)

    def with_metadata(
        self, model: onnx.ModelProto, precision: str, calibration: Mapping[str, Any]
    ) -> None:
        """Write the precision and origin of a model into its metadata."""
        merged = {
            **({} if self.metadata is None else self.metadata.calibration),
            "source": {
                "file": self.path.name,
                "sha256": self.sha256,
                "bytes": len(self.content),
            },
            **calibration,
        }
        if self.metadata is None:
            properties = {e.key: e.value for e in model.metadata_props}
            properties[RECORD] = json.dumps({"precision": precision, **merged}, sort_keys=True)
        else:
            described = dataclasses.replace(self.metadata, precision=precision, calibration=merged)
            properties = described.to_properties()
        onnx.helper.set_model_props(model, properties)


def _why_not_quantizable(graph: LayerGraph, kept: list[KeptNode]) -> str:
    if kept:
        return "; ".join(f"{k.node}: {k.numbers}" for k in kept[:5]) + "."
    weights = [t for t in graph.initializers.values() if math.prod(t.dims) >= LEAST_ELEMENTS]
    types = {onnx.helper.tensor_dtype_to_string(t.data_type).split(".")[-1] for t in weights}
    if types and "FLOAT" not in types:
        return f"Its weights are {', '.join(sorted(types))}, not FP32."
    return "It has no convolution, matrix product or capsule operator whose weight is an FP32 constant."


def uniform_assignment(layers: list[QuantizableLayer], level: str) -> dict[str, str]:
    """The same precision for every unit."""
    return {u.name: level for u in layers}


def rounded_outcome(outcome: Outcome) -> dict[str, Any]:
    """An outcome for a file's metadata, rounded, since metadata adds noticeably to a small file."""
    return {k: _rounded(v) for k, v in outcome.to_dict().items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return round(float(value), 6) if np.isfinite(value) else None
    if isinstance(value, list):
        return [{k: _rounded(v) for k, v in each.items()} for each in value]
    return value
