"""``capsedge.quantize``: turns a model and images into a smaller model with a report on its accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsedge.calibration import quantize as quantization
from capsedge.calibration.judge import DEFAULT_MAX_ERROR, Gate
from capsedge.calibration.observers import observer
from capsedge.calibration.quantize import Request, Splits, split
from capsedge.calibration.report import QuantizationReport
from capsedge.calibration.sensitivity import Damage
from capsedge.calibration.sensitivity import sensitivity as measure_sensitivity
from capsedge.calibration.source import Progress, Source
from capsedge.datasets import ImageSet
from capsedge.datasets.reading import as_images
from capsedge.errors import UsageError
from capsedge.graph.targets import TARGETS
from capsedge.runtime.files.given import FILE, OUTPUT, GivenModel, as_file, as_path

OPS = ("auto", "fused")
Images: TypeAlias = "ImageSet | NDArray[Any] | Mapping[str, NDArray[Any]] | Path | str"


@dataclass(frozen=True)
class SensitivityReport:
    """The damage that each layer and each routing iteration does alone in 8 bits.

    Attributes:
        damage: the largest first.
        warnings: warnings about the images, for the user.
    """

    damage: tuple[Damage, ...]
    warnings: tuple[str, ...]


def quantize(
    model: GivenModel,
    path: Path | str | None = None,
    *,
    calib_data: Images,
    calib_images: int = 512,
    data: Images | None = None,
    limit: int | None = None,
    precision: str = "int8",
    method: str = "mse",
    target: str = "ort-cpu",
    ops: str = "auto",
    max_drop: float | None = None,
    max_error: float = DEFAULT_MAX_ERROR,
    scores: str | None = None,
    table: Path | None = None,
    prefer: str = "size",
    seed: int = 0,
    progress: Progress | None = None,
) -> QuantizationReport:
    """Quantize a model, subject to a gate.

    Without labels the gate is on the agreement with FP32: the share of answers that change, none of which
    FP32 may have given with more than its median margin. Outputs that decide no class (a regression, a file
    of another tool) are compared by number: mean and largest error in per cent of the output's range.

    Args:
        model: an FP32 ONNX file of ``capsedge.export`` or of any other tool, or its bytes.
        path: the file to write; None for no file: the report has the bytes.
        calib_data: images to calibrate on: a data set folder (its training split), an npz, npy or idx file, a
            folder of images, an `ImageSet`, or an array: pixels ``[N, H, W]`` or ``[N, H, W, C]`` uint8, or
            prepared floats ``[N, C, H, W]``. For a file of another tool: arrays ``[N, ...]`` as the model
            takes them, for several inputs by name.
        calib_images: number of images drawn from them.
        data: images to compare with FP32 on, given in the same ways, with labels to report accuracy; by
            default the test split of a ``calib_data`` folder, or the images that were not drawn.
        limit: the largest number of these to use, drawn at random.
        precision: ``int8``, ``fp16`` or ``mixed``.
        method: how a range is chosen: ``minmax``, ``percentile``, ``entropy`` or ``mse``.
        target: ``ort-cpu``, ``tensorrt``, ``openvino`` or ``litert``.
        ops: ``auto``: capsule operators with function bodies; ``fused``: without, for the operator library.
        max_drop: allowed loss, in points: of accuracy (0.1 by default); without labels, of answers changed
            (1); for numbers, the mean error in per cent of the output's range (1).
        max_error: for numbers, the largest error allowed, in per cent of the output's range.
        scores: the output whose largest value decides the class, for a file that does not say so.
        table: file of the calibration table: read if it exists, otherwise written.
        prefer: which file of the mixed-precision search: the smallest (``size``) or fastest (``speed``).
        seed: seed of the random choice of images.
        progress: called with (stage, done, total).

    Returns:
        The settings and measurements; ``report.model`` is the file's bytes.

    Raises:
        UsageError: an argument or the images are wrong, or the file would be judged on calibration images.
        ParityError: more was lost than the gate allows. Its ``report`` is the
            `QuantizationReport`; the file is kept as ``PATH.rejected``.
        ArtefactError: the model or the table is damaged or stale, or the model is quantized already.
        UnsupportedModelError: nothing in the model can be quantized.

    Example:
        >>> report = capsedge.quantize("digits.onnx", "digits.int8.onnx", calib_data="mnist")
        >>> print(report.size, report.outcome.drop)
    """
    gate = Gate(max_drop, max_error)
    output = None if path is None else as_path(path, OUTPUT)
    table = None if table is None else as_path(table, FILE)
    request = Request(precision, method, target, gate, table, prefer)
    with _prepared(
        model, calib_data, calib_images, data, limit, method, target, ops, seed, scores
    ) as (source, splits):
        return quantization.quantize(source, output, splits, request, progress)


def sensitivity(
    model: GivenModel,
    *,
    calib_data: Images,
    calib_images: int = 512,
    data: Images | None = None,
    limit: int | None = None,
    method: str = "mse",
    target: str = "ort-cpu",
    scores: str | None = None,
    table: Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> SensitivityReport:
    """Rank layers and routing iterations by the damage that each does alone in 8 bits.

    Arguments and errors are those of `quantize`; only the table is written.
    """
    with _prepared(
        model, calib_data, calib_images, data, limit, method, target, "auto", seed, scores
    ) as (source, splits):
        source.check_opset("int8", target)
        doubts = source.check_reference(splits.evaluation, progress)
        ranges = source.calibrate(splits.calibration, method, table, progress)
        damage = measure_sensitivity(source, ranges, splits.evaluation, splits.calibration, target)
        return SensitivityReport(tuple(damage), (*splits.warnings, *doubts))


@contextmanager
def _prepared(
    model: GivenModel,
    calib_data: Images,
    calib_images: int,
    data: Images | None,
    limit: int | None,
    method: str,
    target: str,
    ops: str,
    seed: int,
    scores: str | None,
) -> Iterator[tuple[Source, Splits]]:
    """The model to quantize and the images, after a check of the arguments."""
    observer(method)
    if ops not in OPS:
        raise UsageError(f"Unknown ops '{ops}'.", "", f"Known: {', '.join(OPS)}.")
    runtime = target if target in TARGETS else None
    if runtime is not None and ops == "fused":
        raise UsageError(
            f"A file for {runtime} cannot have the form 'fused'.",
            f"{runtime} does not know the operators of the domain capsedge.",
            "Leave `ops=` out.",
            command="Leave --ops out.",
        )
    with as_file(model) as file:
        source = Source(file, ops == "auto", runtime, scores)
        evaluation = None if data is None else _images(data, source)
        yield (
            source,
            split(source, _images(calib_data, source), evaluation, calib_images, seed, limit),
        )


def _images(given: Images, source: Source) -> Path | ImageSet:
    """Images in a form that `split` accepts; pixels get the model's preprocessing.

    Raises:
        UsageError: arrays do not fit the model.
    """
    if isinstance(given, (str, Path)):
        return Path(given)
    if not isinstance(given, ImageSet):
        given = as_images(given, source.preprocessing, source.inputs)
    if given.preprocessing is None and given.images.dtype == np.uint8:
        return replace(given, preprocessing=source.preprocessing)
    return given
