"""FP32 file in, quantized file out, subject to an accuracy gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from capsedge.calibration import mixed
from capsedge.calibration.evaluate import Outcome
from capsedge.calibration.executed import Executed, executed
from capsedge.calibration.judge import AGREEMENT, ERROR, Gate
from capsedge.calibration.report import QuantizationReport
from capsedge.calibration.running import check_fits
from capsedge.calibration.source import MADE, TARGETS, Progress, Source, rounded, uniform
from capsedge.calibration.splits import check_calibration, check_disjoint
from capsedge.calibration.table import Table
from capsedge.calibration.units import Kept, Unit
from capsedge.datasets import ImageSet, read_images
from capsedge.errors import ArtefactError, ParityError, UsageError
from capsedge.graph.stated_shapes import state_shapes
from capsedge.runtime.files.writing import (
    REJECTED,
    beside,
    check_apart,
    check_writable,
    write_bytes,
)
from capsedge.runtime.metadata import ModelMetadata

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

    Without evaluation data, the test split of a folder of calibration data is used; if there is none, the
    images that were not drawn.

    Args:
        count: number of calibration images to draw.
        limit: largest number of evaluation images.

    Raises:
        UsageError: the data cannot be read, is too little, does not fit, or the evaluation overlaps.
    """
    pool = _read(source, calibration, "train")
    drawn = pool.draw(count + SEARCH_IMAGES, seed)
    if evaluation is not None:
        tested = _read(source, evaluation, "test")
    else:
        tested = pool if isinstance(calibration, ImageSet) else _read(source, calibration, "test")
        apart = drawn.without(tested)
        if len(apart) > len(drawn) // 2:
            drawn = apart  # a few images may be in both splits
        else:
            drawn = pool.draw(min(count, len(pool) // 2), seed)
            tested = pool.without(drawn)
    if len(tested) == 0:
        raise UsageError(
            "There is nothing left to compare the file with FP32 on.",
            f"{pool.source} holds {len(pool)} images.",
            "Give other images as `data=`, with labels for the accuracy.",
            command="Give other images with --data, with labels for the accuracy.",
        )
    if limit is not None:
        tested = tested.draw(limit, seed)
    chosen = drawn.draw(count, seed)
    rest = drawn.without(chosen)
    warnings = check_calibration(chosen, len(pool)) + source.judge_on(tested)
    check_disjoint(chosen if len(rest) == 0 else drawn, tested)
    if len(rest) < 100:
        rest = chosen
    return Splits(chosen, rest, tested, tuple(warnings))


def _read(source: Source, data: Path | ImageSet, split: str) -> ImageSet:
    found = data
    if not isinstance(found, ImageSet):
        classes = not source.session.roles.values
        found = read_images(
            found, source.preprocessing, split, inputs=source.inputs, classes=classes
        )
    missing = [name for name in list(source.inputs)[1:] if name not in found.others]
    if missing:
        raise UsageError(
            f"{found.source} has no arrays for the input {missing[0]}.",
            f"The model's inputs are {', '.join(source.inputs)}.",
            "Give one array [N, ...] by the name of each input (numpy.savez in a file).",
        )
    if source.metadata is None:
        check_fits(source.session, found)
    return found


@dataclass(frozen=True)
class Request:
    """What is to be made.

    Attributes:
        precision: ``int8``, ``fp16`` or ``mixed``.
        method: method of the calibration.
        target: ``ort-cpu``, ``tensorrt``, ``openvino`` or ``litert``.
        gate: what may be lost on the evaluation images.
        table: file of the calibration table: read if it exists, otherwise written.
        prefer: which assignment of mixed precision to write: ``size`` or ``speed``.
    """

    precision: str = "int8"
    method: str = "mse"
    target: str = "ort-cpu"
    gate: Gate = field(default_factory=Gate)
    table: Path | None = None
    prefer: str = "size"


@dataclass(frozen=True)
class _Made:
    """A quantized model: the nodes that stay, the precision of every layer, and the search for it."""

    model: onnx.ModelProto
    kept: list[Kept]
    assignment: dict[str, str]
    search: mixed.Search | None = None


def quantize(
    source: Source,
    output: Path | None,
    splits: Splits,
    request: Request,
    progress: Progress | None = None,
) -> QuantizationReport:
    """Make a quantized file and write it if it passes the gate.

    A file that does not pass is written with ``.rejected`` appended to its name.

    Args:
        output: the file to write; None for no file.

    Raises:
        UsageError: an argument is wrong.
        UnsupportedModelError: the file's operators are too old for the target.
        ArtefactError: the table is stale, or nothing runs in the requested precision.
        ParityError: too much is lost; its attribute ``report`` is the report.
    """
    _check_choices(request.precision, request.target, request.prefer)
    source.check_opset(request.precision, request.target)
    outputs = [] if output is None else [output, beside(output, REJECTED)]
    for file in outputs[:1]:
        check_writable(file)
    tables = [] if request.table is None else [request.table]
    check_apart([*outputs, *tables], [source.path])
    doubts = source.check_reference(splits.evaluation, progress)
    splits = replace(splits, warnings=(*splits.warnings, *doubts))
    made = _made(source, splits, request, progress)
    outcome = source.outcome(made.model, splits.evaluation, progress)
    source.described(made.model, request.precision, _description(splits, request, outcome, made))
    state_shapes(made.model)
    content = made.model.SerializeToString()
    runs = executed(content, MADE)
    if request.precision != "fp16" and request.target == "ort-cpu":
        _check_executed(runs, made.assignment, source.units)
    passed = request.gate.passes(outcome)
    place = output if passed or output is None else beside(output, REJECTED)
    report = _report(source, splits, request, made, outcome, place, content, runs)
    if place is not None:
        write_bytes(place, content)
    if not passed:
        raise Rejected(report)
    return report


def _made(source: Source, splits: Splits, request: Request, progress: Progress | None) -> _Made:
    if request.precision == "fp16":
        model, kept = source.half(splits.calibration)
        return _Made(model, kept, uniform(source.units, "fp16"))
    ranges = source.calibrate(splits.calibration, request.method, request.table, progress)
    search: mixed.Search | None = None
    assignment = uniform(source.quantizable(request.target), "int8")
    if request.precision == "mixed":
        search, assignment = _searched(source, ranges, splits, request, progress)
    model, kept = source.emit(assignment, ranges, request.target)
    return _Made(model, kept, assignment, search)


def _report(
    source: Source,
    splits: Splits,
    request: Request,
    made: _Made,
    outcome: Outcome,
    place: Path | None,
    content: bytes,
    runs: list[Executed],
) -> QuantizationReport:
    return QuantizationReport(
        output=place,
        precision=request.precision,
        method=request.method,
        target=request.target,
        size=len(content),
        source_size=len(source.content),
        outcome=outcome,
        kept=made.kept,
        executed=runs,
        executed_fp32=executed(source.content, str(source.path)),
        assignment=made.assignment,
        search=made.search,
        gate=request.gate,
        judged=_judged(source),
        images={
            "calibration": len(splits.calibration),
            "search": len(splits.search) if made.search is not None else 0,
            "evaluation": len(splits.evaluation),
            "evaluated_on": splits.evaluation.described,
        },
        warnings=splits.warnings,
        model=content,
        foreign=source.metadata is None or not source.metadata.architecture,
        own_module=_own_module(source.metadata),
        checkpoint_sha256="" if source.metadata is None else source.metadata.checkpoint_sha256,
    )


def _own_module(metadata: ModelMetadata | None) -> str:
    """The class of the user's module; a model of the package has its configuration in the file."""
    return "" if metadata is None or metadata.configuration else metadata.architecture


def _judged(source: Source) -> str:
    """The outputs that were judged, in words."""
    judge = source.judge
    if judge.scores is not None:
        return f"the class of {judge.scores} ({judge.why})"
    return f"the numbers of {', '.join(judge.numbers)} ({judge.why})"


def _description(splits: Splits, request: Request, outcome: Outcome, made: _Made) -> dict[str, Any]:
    """Data, gate and outcome, for a file's metadata."""
    described: dict[str, Any] = {
        "target": request.target,
        "method": "magnitudes" if request.precision == "fp16" else request.method,
        "images": len(splits.calibration),
        "data": splits.calibration.source,
        "data_sha256": splits.calibration.digest(),
        "evaluation": {
            "data": splits.evaluation.source,
            "split": splits.evaluation.split,
            "sha256": splits.evaluation.digest(),
            **rounded(outcome),
            **request.gate.to_dict(outcome),
        },
        "kept_fp32": len(made.kept),
    }
    return described | ({"assignment": made.assignment} if request.precision == "mixed" else {})


def _check_choices(precision: str, target: str, prefer: str) -> None:
    for kind, value, known in (
        ("precision", precision, PRECISIONS),
        ("target", target, TARGETS),
        ("preference", prefer, PREFERENCES),
    ):
        if value not in known:
            raise UsageError(f"There is no {kind} '{value}'.", "", f"Known: {', '.join(known)}.")


class Rejected(ParityError):
    """More was lost than the gate allows."""

    def __init__(self, report: QuantizationReport) -> None:
        o = report.outcome
        if o.judged_by == AGREEMENT:
            measured = f"{100 * o.agreement:.2f} % of the decisions are those of FP32"
        elif o.judged_by == ERROR or o.accuracy is None or o.reference is None:
            measured = "Compared with FP32"
        else:
            measured = f"{100 * o.reference:.2f} % in FP32, {100 * o.accuracy:.2f} % afterwards,"
        mixed = report.precision == "mixed"
        other, option = ("", "") if mixed else ("`precision='mixed'`, ", "--precision mixed, ")
        super().__init__(
            f"The {report.precision} file loses too much.",
            f"{measured} on {o.images} images ({report.images['evaluated_on']})"
            + (f"; kept as {report.output}. " if report.output is not None else ". ")
            + " ".join(report.gate.failures(o)),
            f"Try {other}another `method=`, more `calib_images=`, or allow more with "
            "`max_drop=`" + (" and `max_error=`." if o.judged_by == ERROR else "."),
            report=report,
            command=f"Try {option}another --method, more --calib-images, or allow more with "
            "--max-drop" + (" and --max-error." if o.judged_by == ERROR else "."),
        )


def _searched(
    source: Source,
    table: Table,
    splits: Splits,
    request: Request,
    progress: Progress | None,
) -> tuple[mixed.Search, dict[str, str]]:
    number = 0

    def tried(_: mixed.Candidate) -> None:
        nonlocal number
        number += 1
        if progress is not None:
            progress("candidates", number, number)

    result = mixed.search(source, table, splits.search, request.target, request.gate, tried=tried)
    best = result.smallest if request.prefer == "size" else result.fastest
    assert best is not None  # FP32 itself is a candidate
    return result, best.assignment


def _check_executed(runs: list[Executed], assignment: Mapping[str, str], units: list[Unit]) -> None:
    """Refuse a file whose layers are not executed in 8 bits as they should; some only store weights."""
    computing = {unit.name for unit in units if unit.kind != "linear"}
    integers = any(assignment.get(name) in ("int8", "int4") for name in computing)
    if integers and not any(e.precision.startswith("int8") for e in runs):
        raise ArtefactError(
            "ONNX Runtime runs nothing of this file in 8 bits.",
            "Its optimized graph has: "
            + ", ".join(f"{e.count} {e.op} {e.precision}" for e in runs),
            "Report this with the version of ONNX Runtime.",
        )
