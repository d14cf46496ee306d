"""Accuracy against latency and size, over routing iterations and precisions. Needs torch to export."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsedge.calibration.evaluate import latency
from capsedge.calibration.quantize import Splits, split
from capsedge.calibration.source import MADE, Source, uniform
from capsedge.datasets import ImageSet
from capsedge.errors import UsageError
from capsedge.exporters.to_onnx import export
from capsedge.pipelines.find import FoundModel
from capsedge.runtime.charts import caption, new_figure, save_figure
from capsedge.runtime.files.writing import temporary_folder
from capsedge.runtime.loading import load_bytes

PRECISIONS = ("fp32", "fp16", "int8")
CALIBRATION_IMAGES = 512


@dataclass(frozen=True)
class Point:
    """One file of the sweep.

    Attributes:
        iterations, precision: its routing iterations and precision.
        accuracy: share of correct decisions.
        milliseconds: median time per image.
        bytes: size of the file.
    """

    iterations: int
    precision: str
    accuracy: float
    milliseconds: float
    bytes: int


@dataclass(frozen=True)
class Sweep:
    """All files of a sweep.

    Attributes:
        model: name of the model.
        trained_iterations: routing iterations that it was trained with.
        images, data: number and source of the images that accuracy was measured on.
        threads: threads of one inference.
        points: the points, in the order in which they were measured.
        warnings: warnings about the images, for the user.
    """

    model: str
    trained_iterations: int
    images: int
    data: str
    threads: int
    points: tuple[Point, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        document = dataclasses.asdict(self)
        del document["warnings"]
        return {"schema": 1, **document, "points": [dataclasses.asdict(p) for p in self.points]}


def sweep(
    found: FoundModel,
    data: Path | ImageSet,
    iterations: Sequence[int],
    precisions: Sequence[str],
    *,
    limit: int | None = None,
    threads: int = 2,
    progress: Callable[[Point], None] = lambda _: None,
) -> Sweep:
    """Export and quantize a model for several iterations; measure each file.

    Args:
        found: a trained single-label model.
        data: data set folder: calibrated on its training split, evaluated on its test split.
        iterations: numbers of routing iterations.
        precisions: any of `PRECISIONS`.
        limit: largest number of test images, drawn at random.
        threads: threads of one inference.
        progress: called with every point.

    Raises:
        UsageError: the model is not trained or is multi-label, or the data is wrong.
    """
    config = found.model.config
    if not found.trained:
        raise UsageError(
            f"{found.name} has no trained weights in this package.",
            "The accuracy of random weights is meaningless.",
            "Give a checkpoint with --checkpoint.",
        )
    if config.task == "multi-label":
        raise UsageError(
            f"{found.name} is a multi-label model.",
            "Data sets have one label per image, so its accuracy cannot be measured on them.",
            "Compare its files with `capsedge quantize` and `capsedge verify`.",
        )
    points: list[Point] = []
    splits: Splits | None = None
    with temporary_folder() as folder:
        for count in iterations:
            path = folder / f"{count}.onnx"
            export(found.model, path, iterations=count)
            source = Source(path)
            if splits is None:
                splits = split(source, data, None, CALIBRATION_IMAGES, limit=limit)
            for precision in precisions:
                points.append(_point(source, splits, count, precision, threads))
                progress(points[-1])
    assert splits is not None
    return Sweep(
        model=found.name,
        trained_iterations=config.iterations,
        images=len(splits.evaluation),
        data=splits.evaluation.source,
        threads=threads,
        points=tuple(points),
        warnings=splits.warnings,
    )


def _point(source: Source, splits: Splits, iterations: int, precision: str, threads: int) -> Point:
    if precision == "fp32":
        made = source.model
    elif precision == "fp16":
        made, _ = source.half(splits.calibration)
    else:
        table = source.calibrate(splits.calibration, "mse", None)
        made, _ = source.emit(uniform(source.units, "int8"), table, "ort-cpu")
    outcome = source.outcome(made, splits.evaluation)
    content = made.SerializeToString()
    milliseconds = latency(load_bytes(content, MADE, threads=threads), splits.evaluation)
    return Point(iterations, precision, float(outcome.accuracy or 0), milliseconds, len(content))


def plot(found: Sweep, path: Path) -> None:
    """Plot accuracy against time as a PNG: one line per precision, with the iterations beside the points.

    Raises:
        EnvironmentProblem: matplotlib is not installed.
        UsageError: the path cannot be written.
    """
    figure = new_figure(7, 4)
    axis = figure.subplots()
    largest = max(p.bytes for p in found.points)
    for precision in dict.fromkeys(p.precision for p in found.points):
        mine = [p for p in found.points if p.precision == precision]
        xs, ys = [p.milliseconds for p in mine], [100 * p.accuracy for p in mine]
        axis.plot(xs, ys, "-", linewidth=0.8)
        axis.scatter(xs, ys, [200 * p.bytes / largest + 10 for p in mine], label=precision)
        for p in mine:
            axis.annotate(str(p.iterations), (p.milliseconds, 100 * p.accuracy), fontsize=8)
    axis.set_xlabel("milliseconds per image (area: size of the file; numbers: iterations)")
    axis.set_ylabel("accuracy, %")
    axis.set_title(caption(found.model))
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path, 110)
