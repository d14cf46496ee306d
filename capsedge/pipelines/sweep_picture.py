"""A sweep as a picture: accuracy against time, with its Pareto front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capsedge.pipelines.sweep import Point, Sweep
from capsedge.pipelines.sweep_candidates import FROZEN
from capsedge.runtime.charts import caption, new_figure, save_figure
from capsedge.runtime.profiling.report_html import COLOURS
from capsedge.runtime.quantities import size

_MARKERS = "osD^vP*X"  # one for each checkpoint
_GROUPS = {"fp32": "stem", "fp16": "votes", "int8": "routing"}
_AREA = 240.0  # of the largest file's marker, in points squared


def draw(found: Sweep, path: Path) -> None:
    """Write a PNG or an SVG, by the suffix: the front joined by a line, other points faint.

    Accuracy is that of the search, in which all points are compared; the table gives the test accuracy.

    Raises:
        EnvironmentProblem: matplotlib is not installed.
        UsageError: the path cannot be written.
    """
    figure = new_figure(8, 5)
    axis = figure.subplots()
    largest = max(point.bytes for point in found.points)
    for point in found.points:
        _mark(axis, point, found, largest)
    front = found.front
    axis.plot(
        [p.milliseconds for p in front],
        [100 * p.accuracy for p in front],
        color="#8A8F98",
        zorder=0,
    )
    for point in front:
        axis.annotate(
            f"{point.iterations}{' frozen' if point.couplings == FROZEN else ''}, {size(point.bytes)}",
            (point.milliseconds, 100 * point.accuracy),
            (6, 6),
            textcoords="offset points",
            fontsize=8,
        )
    for precision in dict.fromkeys(p.precision for p in found.points):
        axis.scatter([], [], color=COLOURS[_GROUPS[precision]], label=precision)
    if len(found.models) > 1:
        for number, model in enumerate(found.models):
            axis.scatter([], [], color="black", marker=_marker(number), label=caption(model))
    axis.set_xscale("log")
    times = [point.milliseconds for point in found.points]
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("{x:g}" if max(times) < 10 * min(times) else "")
    axis.tick_params(which="both", labelsize=8)
    axis.set_xlabel("milliseconds per image (numbers: iterations; area: size of the file)")
    axis.set_ylabel(f"accuracy on {found.searched} training images, %")
    axis.set_title("Pareto front of accuracy, latency and size")
    axis.legend(frameon=False, fontsize=8)
    axis.margins(0.12)
    axis.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def _marker(number: int) -> str:
    return _MARKERS[number % len(_MARKERS)]


def _mark(axis: Any, point: Point, found: Sweep, largest: int) -> None:
    axis.scatter(
        [point.milliseconds],
        [100 * point.accuracy],
        s=_AREA * point.bytes / largest + 12,
        color=COLOURS[_GROUPS[point.precision]],
        marker=_marker(found.models.index(point.model)),
        alpha=0.9 if point.front else 0.25,
        edgecolors="none",
    )
