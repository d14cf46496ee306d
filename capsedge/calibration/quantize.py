"""Quantize an FP32 file, subject to an accuracy gate (``capsedge.quantize``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from capsedge.calibration import mixed_precision
from capsedge.calibration.accuracy import Gate, Outcome
from capsedge.calibration.collect import check_calibration, check_disjoint, check_fits
from capsedge.calibration.float_model import (
    MADE_BY,
    FloatModel,
    rounded_outcome,
    uniform_assignment,
)
from capsedge.calibration.mixed_precision import SensitivityReport
from capsedge.calibration.mixed_precision import sensitivity as measure_sensitivity
from capsedge.calibration.quantizable_layers import KeptNode
from capsedge.calibration.quantization_report import (
    ExecutedPrecision,
    QuantizationRejected,
    QuantizationReport,
    check_executed,
    executed_precision,
)
from capsedge.calibration.quantize_options import QuantizeOptions
from capsedge.calibration.ranges import CalibrationTable
from capsedge.datasets import ImageSet, read_images
from capsedge.datasets.mask_folders import has_masks, read_mask_split
from capsedge.datasets.read import image_set_from_arrays
from capsedge.errors import UsageError
from capsedge.graph.target_runtimes import TARGETS as RUNTIMES
from capsedge.graph.write_shapes import write_shapes
from capsedge.options import takes_options
from capsedge.runtime.files.writing import (
    OUTPUT,
    REJECTED,
    ModelLike,
    as_file,
    as_path,
    check_apart,
    check_writable,
    with_suffix_appended,
    write_bytes,
)
from capsedge.runtime.progress import Progress, silent

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import QuantizeKeywords

# --- From the FP32 file to the quantized one ---

SEARCH_IMAGES = 2000


@dataclass(frozen=True)
class QuantizationSplits:
    """Three sets of images; the evaluation shares no image with the others.

    Attributes:
        calibration: images that determine the ranges.
        search: images that assignments of mixed precision are compared on.
        evaluation: images that accuracy is reported on.
        warnings: warnings about the images.
    """

    calibration: ImageSet
    search: ImageSet
    evaluation: ImageSet
    warnings: tuple[str, ...]


def split(
    source: FloatModel,
    calibration: Path | ImageSet,
    evaluation: Path | ImageSet | None,
    count: int,
    seed: int = 0,
    limit: int | None = None,
) -> QuantizationSplits:
    """Draw the calibration images and find the evaluation images.

    Without evaluation data, the test split of a folder of calibration data is used; if there is none, the
    images that were not drawn.

    Args:
        count: number of calibration images to draw.
        limit: largest number of evaluation images.
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
            f"No {pool.noun} are left for the comparison with FP32.",
            f"{pool.source} holds {len(pool)} {pool.noun}.",
            f"Pass other {pool.noun} as `data=`, with labels to measure the accuracy.",
            command=f"Pass other {pool.noun} with --data, with labels to measure the accuracy.",
        )
    if limit is not None:
        tested = tested.draw(limit, seed)
    chosen = drawn.draw(count, seed)
    rest = drawn.without(chosen)
    warnings = check_calibration(chosen, len(pool)) + source.choose_criterion(tested)
    check_disjoint(chosen if len(rest) == 0 else drawn, tested)
    if len(rest) < 100:
        rest = chosen
    return QuantizationSplits(chosen, rest, tested, tuple(warnings))


def _read(source: FloatModel, data: Path | ImageSet, split: str) -> ImageSet:
    images, roles, prep = data, source.session.roles, source.preprocessing
    rule = None if source.metadata is None else source.metadata.training_split
    if not isinstance(images, ImageSet) and roles.segmentation and prep and has_masks(images):
        return read_mask_split(images, split, prep, roles.mask_classes, None, rule)
    if not isinstance(images, ImageSet):
        classes = not source.session.roles.values
        images = read_images(
            images,
            source.preprocessing,
            split,
            inputs=source.inputs,
            classes=classes,
            rule=rule,
            named=() if source.metadata is None else source.metadata.class_names,
        )
    missing = [name for name in list(source.inputs)[1:] if name not in images.others]
    if missing:
        raise UsageError(
            f"{images.source} has no arrays for the input {missing[0]}.",
            f"The model's inputs are {', '.join(source.inputs)}.",
            "Save one array [N, ...] for each input, under its name, with numpy.savez.",
        )
    if source.metadata is None:
        check_fits(source.session, images)
    return images


def gate_of(options: QuantizeOptions) -> Gate:
    """The loss that a file is allowed."""
    return Gate(options.max_drop, options.max_error, options.min_cosine)


@dataclass(frozen=True)
class _QuantizationJob:
    """What to quantize, on which images, and how; all checked."""

    float_model: FloatModel
    output: Path | None
    splits: QuantizationSplits
    options: QuantizeOptions


def _checked(
    float_model: FloatModel,
    output: Path | None,
    splits: QuantizationSplits,
    options: QuantizeOptions,
    progress: Progress,
) -> _QuantizationJob:
    """Check the arguments."""
    float_model.check_opset(options.precision, options.target)
    outputs = [] if output is None else [output, with_suffix_appended(output, REJECTED)]
    for file in outputs[:1]:
        check_writable(file)
    tables = [] if options.table is None else [options.table]
    check_apart([*outputs, *tables], [float_model.path])
    warnings = float_model.check_reference(splits.evaluation, progress)
    splits = replace(splits, warnings=(*splits.warnings, *warnings))
    return _QuantizationJob(float_model, output, splits, options)


@dataclass(frozen=True)
class _QuantizedModel:
    """A quantized model: the nodes that stay, the precision of every layer, and the search for it."""

    model: onnx.ModelProto
    kept: list[KeptNode]
    assignment: dict[str, str]
    search: mixed_precision.PrecisionSearch | None = None


def _quantized(job: _QuantizationJob, progress: Progress) -> _QuantizedModel:
    float_model, calibration, options = job.float_model, job.splits.calibration, job.options
    if options.precision == "fp16":
        model, kept = float_model.to_fp16(calibration)
        return _QuantizedModel(model, kept, uniform_assignment(float_model.layers, "fp16"))
    ranges = float_model.calibrate(calibration, options.method, options.table, progress)
    search: mixed_precision.PrecisionSearch | None = None
    assignment = uniform_assignment(float_model.quantizable(options.target), "int8")
    if options.precision == "mixed":
        search, assignment = _searched(job, ranges, progress)
    model, kept = float_model.emit(assignment, ranges, options.target)
    return _QuantizedModel(model, kept, assignment, search)


def _searched(
    job: _QuantizationJob, table: CalibrationTable, progress: Progress
) -> tuple[mixed_precision.PrecisionSearch, dict[str, str]]:
    number = 0

    def tried(_: mixed_precision.PrecisionCandidate) -> None:
        nonlocal number
        number += 1
        progress("candidates", number, number)

    options = job.options
    result = mixed_precision.search(
        job.float_model,
        table,
        job.splits.search,
        options.target,
        gate_of(options),
        on_candidate=tried,
    )
    best = result.smallest if options.prefer == "size" else result.fastest
    assert best is not None  # FP32 itself is a candidate
    return result, best.assignment


@dataclass(frozen=True)
class _MeasuredModel:
    """A quantized model measured against FP32: the result, its bytes, and the precision in which it runs."""

    outcome: Outcome
    content: bytes
    runs: list[ExecutedPrecision]


def _measured(
    job: _QuantizationJob, quantized: _QuantizedModel, progress: Progress
) -> _MeasuredModel:
    """Measure a model, and describe it in its metadata."""
    float_model, options, model = job.float_model, job.options, quantized.model
    outcome = float_model.outcome(model, job.splits.evaluation, progress)
    float_model.with_metadata(model, options.precision, _description(job, quantized, outcome))
    write_shapes(model)
    content = model.SerializeToString()
    runs = executed_precision(content, MADE_BY)
    if options.precision != "fp16" and options.target == "ort-cpu":
        check_executed(runs, quantized.assignment, float_model.layers)
    return _MeasuredModel(outcome, content, runs)


def _description(
    job: _QuantizationJob, quantized: _QuantizedModel, outcome: Outcome
) -> dict[str, Any]:
    """Data, gate and outcome, for a file's metadata."""
    splits, options = job.splits, job.options
    described: dict[str, Any] = {
        "target": options.target,
        "method": "magnitudes" if options.precision == "fp16" else options.method,
        "images": len(splits.calibration),
        "data": splits.calibration.source,
        "data_sha256": splits.calibration.digest(),
        "evaluation": {
            "data": splits.evaluation.source,
            "split": splits.evaluation.split,
            "measured_on": splits.evaluation.described,
            "sha256": splits.evaluation.digest(),
            **rounded_outcome(outcome),
            **gate_of(options).to_dict(outcome),
        },
        "kept_fp32": len(quantized.kept),
    }
    mixed = options.precision == "mixed"
    return described | ({"assignment": quantized.assignment} if mixed else {})


def _finished(
    job: _QuantizationJob, quantized: _QuantizedModel, measured: _MeasuredModel
) -> QuantizationReport:
    """Write the file. Raises ParityError if it does not pass the gate, and is written under another name."""
    passed, path = gate_of(job.options).passes(measured.outcome), job.output
    if path is not None and not passed:
        path = with_suffix_appended(path, REJECTED)
    report = _report(job, quantized, measured, path)
    if path is not None:
        write_bytes(path, measured.content)
    if not passed:
        raise QuantizationRejected(report)
    return report


def _report(
    job: _QuantizationJob, quantized: _QuantizedModel, measured: _MeasuredModel, path: Path | None
) -> QuantizationReport:
    float_model, splits, options = job.float_model, job.splits, job.options
    metadata = float_model.metadata
    return QuantizationReport(
        output=path,
        precision=options.precision,
        method=options.method,
        target=options.target,
        size=len(measured.content),
        source_size=len(float_model.content),
        outcome=measured.outcome,
        kept=quantized.kept,
        executed_precision=measured.runs,
        executed_precision_fp32=executed_precision(float_model.content, str(float_model.path)),
        assignment=quantized.assignment,
        search=quantized.search,
        gate=gate_of(options),
        criterion=float_model.criterion_in_words,
        images={
            "calibration": len(splits.calibration),
            "search": len(splits.search) if quantized.search is not None else 0,
            "evaluation": len(splits.evaluation),
            "evaluated_on": splits.evaluation.described,
        },
        noun=splits.evaluation.noun,
        warnings=splits.warnings,
        model=measured.content,
        foreign=metadata is None or not metadata.architecture,
        user_module=float_model.user_module,
        checkpoint_sha256="" if metadata is None else metadata.checkpoint_sha256,
    )


# --- ``capsedge.quantize``, and the sensitivity of layers and iterations ---

Images: TypeAlias = "ImageSet | NDArray[Any] | Mapping[str, NDArray[Any]] | Path | str"


@takes_options(QuantizeOptions)
def quantize(
    model: ModelLike,
    path: Path | str | None = None,
    options: QuantizeOptions = QuantizeOptions(),
    *,
    calib_data: Images,
    data: Images | None = None,
    progress: Progress = silent,
    **_keywords: Unpack[QuantizeKeywords],
) -> QuantizationReport:
    """Quantize a model, subject to a gate.

    Without labels, the gate limits the share of decisions that differ from FP32's; none of those may have a
    margin above FP32's median. Outputs that decide no class (a regression, a file from another tool) are
    compared by value: mean and largest error as percentages of the output's range.

    Args:
        model: an FP32 ONNX file from ``capsedge.export`` or any other tool, or its bytes.
        path: the file to write; None writes no file; the report holds the bytes.
        calib_data: images to calibrate on: a data set folder (its training split), an npz, npy or idx file, a
            folder of images, an `ImageSet`, or an array: pixels ``[N, H, W]`` or ``[N, H, W, C]`` uint8, or
            prepared floats ``[N, C, H, W]``. For a file from another tool: arrays ``[N, ...]`` as the model
            takes them, for several inputs by name.
        data: images to compare with FP32 on, given in the same ways, with labels to report accuracy; by
            default the test split of a ``calib_data`` folder, or the images that were not drawn.
        progress: called with (stage, done, total).

    Returns:
        The settings and measurements; ``report.model`` is the file's bytes.

    Raises:
        UsageError: an argument or the images are wrong, or the file would be evaluated on calibration images.
        ParityError: more was lost than the gate allows. Its ``report`` is the
            `QuantizationReport`; the file is kept as ``PATH.rejected``.
        ArtefactError: the model or the table is damaged or stale, or the model is already quantized.
        UnsupportedModelError: nothing in the model can be quantized.

    Example:
        >>> report = capsedge.quantize("digits.onnx", "digits.int8.onnx", calib_data="mnist")
        >>> print(report.size, report.outcome.drop)
    """
    output = None if path is None else as_path(path, OUTPUT)
    with _prepared(model, calib_data, data, options) as (float_model, splits):
        job = _checked(float_model, output, splits, options, progress)
        quantized = _quantized(job, progress)
        measured = _measured(job, quantized, progress)
        return _finished(job, quantized, measured)


def sensitivity(
    model: ModelLike,
    options: QuantizeOptions = QuantizeOptions(),
    *,
    calib_data: Images,
    data: Images | None = None,
    progress: Progress = silent,
) -> SensitivityReport:
    """Rank layers and routing iterations by the error of each alone in 8 bits; only writes the table."""
    with _prepared(model, calib_data, data, replace(options, ops="auto")) as (float_model, splits):
        float_model.check_opset("int8", options.target)
        warnings = float_model.check_reference(splits.evaluation, progress)
        ranges = float_model.calibrate(splits.calibration, options.method, options.table, progress)
        damage = measure_sensitivity(
            float_model, ranges, splits.evaluation, splits.calibration, options.target
        )
        return SensitivityReport(tuple(damage), (*splits.warnings, *warnings))


@contextmanager
def _prepared(
    model: ModelLike, calib_data: Images, data: Images | None, options: QuantizeOptions
) -> Iterator[tuple[FloatModel, QuantizationSplits]]:
    """The model to quantize and the images, after a check of the arguments."""
    runtime = options.target if options.target in RUNTIMES else None
    if runtime is not None and options.ops == "fused":
        raise UsageError(
            f"A file for {runtime} cannot use ops 'fused'.",
            f"{runtime} does not support the operators of the capsedge domain.",
            "Leave `ops=` out.",
            command="Leave --ops out.",
        )
    with as_file(model) as file:
        float_model = FloatModel(
            file, options.ops == "auto", runtime, options.scores, options.overlap
        )
        evaluation = None if data is None else _images(data, float_model)
        images = _images(calib_data, float_model)
        yield (
            float_model,
            split(
                float_model, images, evaluation, options.calib_images, options.seed, options.limit
            ),
        )


def _images(images: Images, float_model: FloatModel) -> Path | ImageSet:
    """Images in a form that `split` accepts; pixels get the model's preprocessing."""
    if isinstance(images, (str, Path)):
        return Path(images)
    if not isinstance(images, ImageSet):
        images = image_set_from_arrays(images, float_model.preprocessing, float_model.inputs)
    if images.preprocessing is None and images.images.dtype == np.uint8:
        return replace(images, preprocessing=float_model.preprocessing)
    return images
