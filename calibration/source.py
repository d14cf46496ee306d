"""The FP32 file to quantize, and everything that is derived from it once."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from capsedge.calibration import collect, evaluate, half, ort_cpu, qdq
from capsedge.calibration.evaluate import Outcome, Scores
from capsedge.calibration.table import Table
from capsedge.calibration.units import (
    Kept,
    Unit,
    calibrated_tensors,
    find_units,
    float_tensors,
)
from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError, UnsupportedModelError, UsageError
from capsedge.graph.quantized_file import finish
from capsedge.graph.wiring import Graph
from capsedge.runtime.files import opening
from capsedge.runtime.loading import load_bytes
from capsedge.runtime.metadata import ModelMetadata, Preprocessing
from capsedge.runtime.reading.onnx_file import read_bytes

QDQ = ("tensorrt", "openvino", "litert")  # quantized by Q/DQ pairs around convolutions
TARGETS = ("ort-cpu", *QDQ)
MADE = "the file that was made"
Progress = Callable[[str, int, int], None]
_QUANTIZED = {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "MatMulInteger", "ConvInteger"}


class Source:
    """An FP32 file, and the files that can be made from it.

    Args:
        path: the file.
        bodies: whether the files made from it contain function bodies; without them, they run only with the
            operator library.
        runtime: runtime that the files made from it are for, a key of ``graph.targets.TARGETS``; None for
            ONNX Runtime and TensorRT.

    Attributes:
        content: the bytes of the file, which is read once.
        sha256: of the content.
        session: a session that runs it.
        model: the graph.

    Raises:
        ArtefactError: the file has no metadata, is not in FP32, or is damaged.
    """

    def __init__(self, path: Path | str, bodies: bool = True, runtime: str | None = None) -> None:
        self.path = Path(path)
        self.content = read_bytes(self.path)
        self.sha256 = hashlib.sha256(self.content).hexdigest()
        session = load_bytes(self.content, self.path)
        if session.metadata is None:
            raise ArtefactError(
                f"{path} was not made by capsedge: it does not state how to prepare images.",
                "The file has no metadata under 'capsedge.'.",
                "Export the model with `capsedge export`.",
            )
        self.session = session
        self.metadata: ModelMetadata = session.metadata
        self.model = onnx.load_model_from_string(self.content)
        nodes = [*self.model.graph.node, *(n for f in self.model.functions for n in f.node)]
        quantized = {n.op_type for n in nodes} & _QUANTIZED
        if self.metadata.precision != "fp32" or quantized:
            raise ArtefactError(
                f"{path} is already quantized.",
                f"Its precision is {self.metadata.precision}"
                + (f"; it has {', '.join(sorted(quantized))} nodes." if quantized else "."),
                "Quantize the FP32 file of `capsedge export`.",
            )
        if session.inputs[0].dtype != "float32":
            raise ArtefactError(
                f"{path} takes {session.inputs[0].dtype} images.", "", "Quantize an FP32 file."
            )
        self.graph = Graph(self.model)
        self.units, self.kept = find_units(self.graph)
        if not self.units:
            raise UnsupportedModelError(
                f"{path} has no layer that can be quantized.",
                "; ".join(f"{k.node}: {k.numbers}" for k in self.kept),
            )
        self._bodies, self._runtime = bodies, runtime
        self._scores: dict[int, tuple[ImageSet, Scores]] = {}

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How images are prepared for the input."""
        return self.metadata.preprocessing

    def calibrate(
        self, data: ImageSet, method: str, path: Path | None, progress: Progress | None = None
    ) -> Table:
        """The table of this file on these images; read from ``path`` if it exists, otherwise written there.

        Raises:
            ArtefactError: the table at ``path`` is stale or damaged, or the model computes NaN.
        """
        checksum = data.digest()
        tensors = calibrated_tensors(self.graph, self.units)
        if path is not None and opening.kind(path) is not None:
            table = Table.load(path)
            table.check(self.sha256, checksum, method, tensors, path)
            return table
        step = None if progress is None else (lambda k, n: progress("calibrating", k, n))
        histograms = collect.histograms(self.model, tensors, data, step)
        table = Table.from_histograms(
            self.sha256, checksum, method, len(data), data.source, histograms
        )
        if path is not None:
            table.save(path)
        return table

    def half(self, data: ImageSet) -> tuple[onnx.ModelProto, list[Kept]]:
        """The file in FP16, and the nodes that stay in FP32."""
        tensors = float_tensors(self.model)
        limits = collect.magnitudes(self.model, tensors, data)
        model, kept = half.emit(self.model, limits)
        finish(model, self._bodies, self._runtime)
        return model, kept

    def emit(
        self, assignment: Mapping[str, str], table: Table, target: str
    ) -> tuple[onnx.ModelProto, list[Kept]]:
        """The file with every unit as assigned, and the nodes that stay in FP32.

        Raises:
            UsageError: there is no such target.
        """
        if target == "ort-cpu":
            model, kept = ort_cpu.emit(self.model, self.units, assignment, table), list(self.kept)
        elif target in QDQ:
            chosen, kept = qdq.placement(self.graph, self.units, target)
            model = qdq.emit(self.model, chosen, assignment, table)
            kept = [*self.kept, *kept]
        else:
            raise UsageError(f"There is no target '{target}'.", "", f"Known: {', '.join(TARGETS)}.")
        kept += [
            Kept(u.name, u.kind, "assigned", "the search keeps it in FP32")
            for u in self.units
            if assignment.get(u.name, "fp32") == "fp32" and u.name not in {k.node for k in kept}
        ]
        finish(model, self._bodies, self._runtime)
        return model, kept

    def quantizable(self, target: str) -> list[Unit]:
        """The units that are faster or smaller in INT8 on a target."""
        if target in QDQ:
            return qdq.placement(self.graph, self.units, target)[0]
        return self.units

    def scores(self, data: ImageSet, progress: Progress | None = None) -> Scores:
        """The FP32 file's scores, computed once per set of images."""
        if id(data) not in self._scores:
            step = None if progress is None else (lambda k, n: progress("FP32", k, n))
            self._scores[id(data)] = data, evaluate.scores(self.session, data, step)
        return self._scores[id(data)][1]

    def outcome(
        self, model: onnx.ModelProto, data: ImageSet, progress: Progress | None = None
    ) -> Outcome:
        """Compare a model made from this file with this file."""
        reference = self.scores(data, progress)
        step = None if progress is None else (lambda k, n: progress("quantized", k, n))
        session = load_bytes(model.SerializeToString(), MADE)
        scores = evaluate.scores(session, data, step)
        return evaluate.compare(reference, scores, data, self.session)

    def described(
        self, model: onnx.ModelProto, precision: str, calibration: Mapping[str, Any]
    ) -> None:
        """Write the precision and origin of a model into its metadata."""
        merged = {
            **self.metadata.calibration,
            "source": {
                "file": self.path.name,
                "sha256": self.sha256,
                "bytes": len(self.content),
            },
            **calibration,
        }
        described = dataclasses.replace(self.metadata, precision=precision, calibration=merged)
        onnx.helper.set_model_props(model, described.to_properties())


def uniform(units: list[Unit], level: str) -> dict[str, str]:
    """Every unit in the same precision."""
    return {u.name: level for u in units}


def rounded(outcome: Outcome) -> dict[str, Any]:
    """An outcome for a file's metadata, rounded, since metadata adds noticeably to a small file."""
    return {
        k: round(float(v), 6) if isinstance(v, (float, np.floating)) else v
        for k, v in outcome.to_dict().items()
    }
