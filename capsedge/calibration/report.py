"""The report of a quantization."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsedge.calibration import mixed
from capsedge.calibration.evaluate import Outcome
from capsedge.calibration.executed import Executed
from capsedge.calibration.judge import ERROR, Gate
from capsedge.calibration.units import Kept
from capsedge.runtime.quantities import size
from capsedge.runtime.summary import Row, Summarized, Summary, short


@dataclass(frozen=True, repr=False)
class QuantizationReport(Summarized):
    """The settings and measurements of a quantization.

    Attributes:
        output: the file; if it was rejected, the name that it was kept under; None if none was requested.
        precision, method, target: as requested.
        size, source_size: bytes of the file and of the FP32 file.
        outcome: comparison with the FP32 file on the evaluation images, in the same runtime.
        kept: the nodes that stay in FP32, with rule and numbers.
        executed: the computing nodes by precision, read back from ONNX Runtime's optimized graph.
        executed_fp32: the same for the FP32 file.
        assignment: precision of every layer.
        search: all candidates, for mixed precision.
        gate: what the file was allowed to lose.
        judged: the outputs that it was judged by, in words.
        images: numbers of images for calibration, search and evaluation, and what the last are.
        warnings: warnings about the images, for the user.
        model: the file's bytes.
        foreign: whether the FP32 file is another tool's.
        own_module: the class of the user's own module that the FP32 file was exported from; else empty.
        checkpoint_sha256: of the checkpoint that the FP32 file was exported from; empty if not stated.
    """

    output: Path | None
    precision: str
    method: str
    target: str
    size: int
    source_size: int
    outcome: Outcome
    kept: list[Kept]
    executed: list[Executed]
    executed_fp32: list[Executed]
    assignment: dict[str, str]
    search: mixed.Search | None
    gate: Gate
    judged: str
    images: dict[str, Any]
    warnings: tuple[str, ...]
    model: bytes = field(repr=False)
    foreign: bool
    own_module: str
    checkpoint_sha256: str

    def _summary(self) -> Summary:
        verdict = "PASSED" if self.passed else "FAILED"
        name = "not written" if self.output is None else str(self.output)
        ratio = f"{size(self.size)}, {self.size / self.source_size:.0%} of FP32"
        told = f"{verdict}: {self.outcome} on {self.outcome.images} images"
        told += f" ({self.images['evaluated_on']})"
        kept = f"{len(self.kept)} nodes" if self.kept else "nothing"
        rows = [
            Row("file", name),
            Row("precision", f"{self.precision} for {self.target}, method {self.method}"),
            Row("size", ratio),
            Row("against FP32", told),
            Row("judged by", self.judged),
            Row("kept in FP32", kept),
            *(Row("warning", warning) for warning in self.warnings),
        ]
        first = f"{short(Path(name).name)}: {self.precision}, {ratio}"
        return Summary("QuantizationReport", [first, told], rows)

    @property
    def passed(self) -> bool:
        """Whether the file passed the gate."""
        return self.gate.passes(self.outcome)

    @property
    def max_drop(self) -> float:
        """The allowed ``outcome.drop``."""
        return self.gate.limit(self.outcome.judged_by)

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
            "judged": self.judged,
            "max_drop_points": self.max_drop,
            "max_error_percent": self.gate.max_error if self.outcome.judged_by == ERROR else None,
            "outcome": self.outcome.to_dict(),
            "assignment": self.assignment,
            "kept_in_fp32": [k.to_dict() for k in self.kept],
            "executed": [e.to_dict() for e in self.executed],
            "executed_fp32": [e.to_dict() for e in self.executed_fp32],
            "search": None
            if self.search is None
            else {
                "candidates": [c.to_dict() for c in self.search.candidates],
                "pareto": [c.to_dict() for c in self.search.pareto()],
            },
            "images": self.images,
            "warnings": list(self.warnings),
        }
