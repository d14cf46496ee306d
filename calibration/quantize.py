"""FP32 file in, quantized file out, subject to an accuracy gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsedge.calibration import mixed
from capsedge.calibration.evaluate import Outcome
from capsedge.calibration.executed import Executed, executed
from capsedge.calibration.source import MADE, TARGETS, Progress, Source, rounded, uniform
from capsedge.calibration.splits import check_calibration, check_disjoint
from capsedge.calibration.table import Table
from capsedge.calibration.units import Kept
from capsedge.datasets import ImageSet, read_images
from capsedge.errors import ArtefactError, ParityError, UsageError
from capsedge.runtime.files.writing import (
    REJECTED,
    beside,
    check_apart,
    check_writable,
    write_bytes,
)
from capsedge.runtime.metadata import Preprocessing

PRECISIONS = ("int8", "fp16", "mixed")
PREFERENCES = ("size", "speed")
SEARCH_IMAGES = 2000


@dataclass(frozen=True)
class Splits:
    """Three sets of images; the evaluation shares no image with the others.

    Attributes:
        calibration: images that ranges are taken from.
        search: images that assignments of mixed precision are compared on.
        evaluation: images that accuracy is reported on.
        warnings: warnings about the images, for the user.
    """

    calibration: ImageSet
    search: ImageSet
    evaluation: ImageSet
    warnings: tuple[str, ...]


def split(
    source: Source,
    calibration: Path | ImageSet,
    evaluation: Path | ImageSet | None,
    count: int,
    seed: int = 0,
    limit: int | None = None,
) -> Splits:
    """Draw the calibration images and find the evaluation images.

    Without evaluation data, the test split of the calibration data is used; if there is none, the images
    that were not drawn.

    Args:
        count: number of calibration images to draw.
        limit: largest number of evaluation images.

    Raises:
        UsageError: the data cannot be read, is too little, has no labels, or the evaluation overlaps.
    """
    prep = source.preprocessing
    pool = _read(calibration, prep, "train")
    drawn = pool.draw(count + SEARCH_IMAGES, seed)
    if evaluation is not None:
        tested = _read(evaluation, prep, "test")
    elif isinstance(calibration, ImageSet):
        raise UsageError(
            "There is nothing to report accuracy on.", "", "Give evaluation images with labels."
        )
    else:
        tested = read_images(calibration, prep, "test")
        apart = drawn.without(tested)
        if len(apart) > len(drawn) // 2:
            drawn = apart  # a few images may be in both splits
        else:
            drawn = pool.draw(min(count, len(pool) // 2), seed)
            tested = pool.without(drawn)
    _check_evaluation(tested, pool)
    if limit is not None:
        tested = tested.draw(limit, seed)
    chosen = drawn.draw(count, seed)
    rest = drawn.without(chosen)
    warnings = check_calibration(chosen)
    check_disjoint(chosen if len(rest) == 0 else drawn, tested)
    if len(rest) < 100:
        rest = chosen
    return Splits(chosen, rest, tested, tuple(warnings))


def _read(data: Path | ImageSet, prep: Preprocessing | None, split: str) -> ImageSet:
    return data if isinstance(data, ImageSet) else read_images(data, prep, split)


def _check_evaluation(tested: ImageSet, pool: ImageSet) -> None:
    """Refuse images on which accuracy cannot be measured."""
    if len(tested) == 0:
        raise UsageError(
            "There is nothing to report accuracy on.",
            f"{pool.source} holds {len(pool)} images.",
            "Give labelled images that are not calibrated on with --data.",
        )
    if tested.labels is None:
        raise UsageError(
            f"{tested.source} has no labels, so accuracy cannot be measured.",
            "",
            "Give labelled images with --data: one sub-folder per class, or an npz file with 'labels'.",
        )


@dataclass(frozen=True)
class QuantizationReport:
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
        max_drop: the gate: allowed loss of accuracy, in points.
        images: numbers of images for calibration, search and evaluation.
        warnings: warnings about the images, for the user.
        model: the file's bytes.
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
    max_drop: float
    images: dict[str, Any]
    warnings: tuple[str, ...]
    model: bytes = field(repr=False)
    checkpoint_sha256: str

    @property
    def passed(self) -> bool:
        """Whether the file passed the accuracy gate."""
        return self.outcome.drop <= self.max_drop

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
            "max_drop_points": self.max_drop,
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


def quantize(
    source: Source,
    output: Path | None,
    splits: Splits,
    *,
    precision: str = "int8",
    method: str = "mse",
    target: str = "ort-cpu",
    max_drop: float = 0.1,
    table: Path | None = None,
    prefer: str = "size",
    threads: int = 2,
    progress: Progress | None = None,
) -> QuantizationReport:
    """Make a quantized file and write it if it passes the accuracy gate.

    A file that does not pass is written with ``.rejected`` appended to its name.

    Args:
        output: the file to write; None for no file.
        precision: ``int8``, ``fp16`` or ``mixed``.
        method: method of the calibration.
        target: ``ort-cpu``, ``tensorrt``, ``openvino`` or ``litert``.
        max_drop: allowed loss of accuracy on the evaluation images, in points.
        table: file of the calibration table: read if it exists, otherwise written.
        prefer: which assignment of mixed precision to write: ``size`` or ``speed``.

    Raises:
        UsageError: an argument is wrong.
        ArtefactError: the table is stale, or nothing runs in the requested precision.
        ParityError: the accuracy fell too far; its attribute ``report`` is the report.
    """
    _check_choices(precision, target, prefer)
    outputs = [] if output is None else [output, beside(output, REJECTED)]
    for file in outputs[:1]:
        check_writable(file)
    check_apart([*outputs, *([table] if table is not None else [])], [source.path])
    search: mixed.Search | None = None
    if precision == "fp16":
        model, kept = source.half(splits.calibration)
        assignment = uniform(source.units, "fp16")
    else:
        ranges = source.calibrate(splits.calibration, method, table, progress)
        assignment = uniform(source.quantizable(target), "int8")
        if precision == "mixed":
            search, assignment = _searched(
                source, ranges, splits, target, max_drop, prefer, progress
            )
        model, kept = source.emit(assignment, ranges, target)
    outcome = source.outcome(model, splits.evaluation, progress)
    described = {
        "target": target,
        "method": "magnitudes" if precision == "fp16" else method,
        **_data(splits, max_drop, outcome),
        "kept_fp32": len(kept),
    }
    if precision == "mixed":
        described["assignment"] = assignment
    source.described(model, precision, described)
    content = model.SerializeToString()
    runs = executed(content, MADE)
    if precision != "fp16" and target == "ort-cpu":
        _check_executed(runs, assignment)
    passed = outcome.drop <= max_drop
    place = output if passed or output is None else beside(output, REJECTED)
    report = QuantizationReport(
        place, precision, method, target, len(content), len(source.content), outcome, kept, runs,
        executed(source.content, str(source.path)), assignment, search, max_drop,
        {
            "calibration": len(splits.calibration),
            "search": len(splits.search) if search is not None else 0,
            "evaluation": len(splits.evaluation),
        },
        splits.warnings, content, source.metadata.checkpoint_sha256,
    )  # fmt: skip
    if place is not None:
        write_bytes(place, content)
    if not passed:
        raise Rejected(report)
    return report


def _check_choices(precision: str, target: str, prefer: str) -> None:
    for kind, value, known in (
        ("precision", precision, PRECISIONS),
        ("target", target, TARGETS),
        ("preference", prefer, PREFERENCES),
    ):
        if value not in known:
            raise UsageError(f"There is no {kind} '{value}'.", "", f"Known: {', '.join(known)}.")


def _data(splits: Splits, max_drop: float, outcome: Outcome) -> dict[str, Any]:
    """The calibration and evaluation data and the outcome, for a file's metadata."""
    return {
        "images": len(splits.calibration),
        "data": splits.calibration.source,
        "data_sha256": splits.calibration.digest(),
        "evaluation": {
            "data": splits.evaluation.source,
            "sha256": splits.evaluation.digest(),
            "max_drop": max_drop,
            **rounded(outcome),
        },
    }


class Rejected(ParityError):
    """The accuracy fell too far."""

    def __init__(self, report: QuantizationReport) -> None:
        o = report.outcome
        if o.accuracy is not None and o.reference is not None:
            measured = f"{100 * o.reference:.2f} % in FP32, {100 * o.accuracy:.2f} % afterwards,"
        else:
            measured = f"{100 * o.agreement:.2f} % of the decisions are those of FP32"
        super().__init__(
            f"The {report.precision} file loses {o.drop:.2f} points, more than {report.max_drop:g}.",
            f"{measured} on {o.images} images"
            + (f"; kept as {report.output}." if report.output is not None else "."),
            "Try --precision mixed, another --method, more --calib-images, or allow more with --max-drop.",
            report=report,
        )


def _searched(
    source: Source,
    table: Table,
    splits: Splits,
    target: str,
    max_drop: float,
    prefer: str,
    progress: Progress | None,
) -> tuple[mixed.Search, dict[str, str]]:
    number = 0

    def tried(_: mixed.Candidate) -> None:
        nonlocal number
        number += 1
        if progress is not None:
            progress("candidates", number, number)

    result = mixed.search(source, table, splits.search, target, max_drop, tried=tried)
    best = result.smallest if prefer == "size" else result.fastest
    assert best is not None  # FP32 itself is a candidate
    return result, best.assignment


def _check_executed(runs: list[Executed], assignment: Mapping[str, str]) -> None:
    integers = any(level in ("int8", "int4") for level in assignment.values())
    if integers and not any(e.precision.startswith("int8") for e in runs):
        raise ArtefactError(
            "ONNX Runtime runs nothing of this file in 8 bits.",
            "Its optimized graph has: "
            + ", ".join(f"{e.count} {e.op} {e.precision}" for e in runs),
            "Report this with the version of ONNX Runtime.",
        )
