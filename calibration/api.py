"""``capsedge.quantize``: turns a model and images into a smaller model with a report on its accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsedge.calibration import quantize as quantization
from capsedge.calibration.observers import observer
from capsedge.calibration.quantize import QuantizationReport, Splits, split
from capsedge.calibration.sensitivity import Damage
from capsedge.calibration.sensitivity import sensitivity as measure_sensitivity
from capsedge.calibration.source import Progress, Source
from capsedge.datasets import ImageSet
from capsedge.datasets.imageset import check_finite
from capsedge.errors import UsageError
from capsedge.graph.targets import TARGETS
from capsedge.runtime.files.given import GivenModel, as_file
from capsedge.runtime.metadata import Preprocessing

OPS = ("auto", "fused")
Images: TypeAlias = "ImageSet | NDArray[Any] | Path | str"


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
    max_drop: float = 0.1,
    table: Path | None = None,
    prefer: str = "size",
    seed: int = 0,
    progress: Progress | None = None,
) -> QuantizationReport:
    """Quantize an exported model, subject to an accuracy gate.

    Args:
        model: the FP32 ONNX file of ``capsedge.export``, or its bytes.
        path: the file to write; None for no file: the report has the bytes.
        calib_data: images to calibrate on: a data set folder (its training split), an npz or idx file, a
            folder of images, an `ImageSet`, or an array: pixels ``[N, H, W]`` or ``[N, H, W, C]`` uint8, or
            prepared floats ``[N, C, H, W]``.
        calib_images: number of images drawn from them.
        data: labelled images to report accuracy on, given in the same ways; by default the test split of a
            ``calib_data`` folder, or the images of a file that were not drawn.
        limit: the largest number of these to use, drawn at random.
        precision: ``int8``, ``fp16`` or ``mixed``.
        method: how a range is chosen: ``minmax``, ``percentile``, ``entropy`` or ``mse``.
        target: ``ort-cpu``, ``tensorrt``, ``openvino`` or ``litert``.
        ops: ``auto``: capsule operators with function bodies; ``fused``: without, for the operator library.
        max_drop: allowed loss of accuracy, in points.
        table: file of the calibration table: read if it exists, otherwise written.
        prefer: which file of the mixed-precision search: the smallest (``size``) or fastest (``speed``).
        seed: seed of the random choice of images.
        progress: called with (stage, done, total).

    Returns:
        The settings and measurements; ``report.model`` is the file's bytes.

    Raises:
        UsageError: an argument or the images are wrong, or accuracy would be reported on calibration images.
        ParityError: the accuracy fell by more than ``max_drop``. Its ``report`` is the
            `QuantizationReport`; the file is kept as ``PATH.rejected``.
        ArtefactError: the model or the table is damaged, not from capsedge, or stale.
        UnsupportedModelError: nothing in the model can be quantized.

    Example:
        >>> report = capsedge.quantize("digits.onnx", "digits.int8.onnx", calib_data="mnist")
        >>> print(report.size, report.outcome.drop)
    """
    if not max_drop >= 0:
        raise UsageError(
            f"Bad --max-drop {max_drop:g}.", "It must be 0 points or more.", "Use for example 0.1."
        )
    with _prepared(
        model, calib_data, calib_images, data, limit, method, target, ops, seed
    ) as prepared:
        source, splits = prepared
        return quantization.quantize(
            source,
            None if path is None else Path(path),
            splits,
            precision=precision,
            method=method,
            target=target,
            max_drop=max_drop,
            table=table,
            prefer=prefer,
            progress=progress,
        )


def sensitivity(
    model: GivenModel,
    *,
    calib_data: Images,
    calib_images: int = 512,
    data: Images | None = None,
    limit: int | None = None,
    method: str = "mse",
    target: str = "ort-cpu",
    table: Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> SensitivityReport:
    """Rank layers and routing iterations by the damage that each does alone in 8 bits.

    Arguments and errors are those of `quantize`; only the table is written.
    """
    with _prepared(
        model, calib_data, calib_images, data, limit, method, target, "auto", seed
    ) as prepared:
        source, splits = prepared
        ranges = source.calibrate(splits.calibration, method, table, progress)
        damage = measure_sensitivity(source, ranges, splits.evaluation, splits.calibration, target)
        return SensitivityReport(tuple(damage), splits.warnings)


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
            "Leave --ops out.",
        )
    with as_file(model) as file:
        source = Source(file, ops == "auto", runtime)
        prep = source.preprocessing
        evaluation = None if data is None else _images(data, prep)
        yield (
            source,
            split(source, _images(calib_data, prep), evaluation, calib_images, seed, limit),
        )


def _images(given: Images, prep: Preprocessing | None) -> Path | ImageSet:
    """Images in a form that `split` accepts; pixels get the model's preprocessing.

    Raises:
        UsageError: an array is neither pixels nor prepared images.
    """
    if isinstance(given, (str, Path)):
        return Path(given)
    if isinstance(given, np.ndarray):
        if given.dtype == np.uint8 and given.ndim in (3, 4):
            given = ImageSet("an array", given if given.ndim == 4 else given[..., None])
        elif given.dtype.kind == "f" and given.ndim == 4:
            check_finite(given, "The array")
            given = ImageSet("an array", given.astype(np.float32))
        else:
            raise UsageError(
                f"The images are an array of {given.dtype} {list(given.shape)}.",
                "It must be uint8 pixels [N, H, W] or [N, H, W, C], or prepared floats [N, C, H, W].",
                "Convert the array, or give an image set of `capsedge.datasets`.",
            )
    if given.preprocessing is None and given.images.dtype == np.uint8:
        return replace(given, preprocessing=prep)
    return given
