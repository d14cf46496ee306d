"""A report's charts as a picture, drawn by matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from capsedge.runtime.charts import caption, check_chart, new_figure, save_figure
from capsedge.runtime.profiling.comparison import Comparison
from capsedge.runtime.profiling.machine import Peaks
from capsedge.runtime.profiling.report_data import OTHER, ReportData, Run
from capsedge.runtime.profiling.style import COLOURS
from capsedge.runtime.profiling.tables import standing
from capsedge.runtime.quantities import milliseconds, size

SHOWN = 14  # layers with a bar
LAYER, ENTRANT = 44, 28  # characters on a line of a name


def save_png(report: ReportData, path: Path) -> None:
    """Draw one row per run: layers, latencies, roofline; and every comparison below.

    Raises:
        EnvironmentProblem: matplotlib is not installed.
        UsageError: the path cannot be written.
    """
    check_chart(path)
    rows = len(report.runs) + len(report.comparisons)
    figure = new_figure(13, 3.6 * rows)
    parts = figure.subfigures(rows, 1, squeeze=False)[:, 0]
    for run, part in zip(report.runs, parts, strict=False):
        _run(part, run, report.peaks)
    for found, part in zip(report.comparisons, parts[len(report.runs) :], strict=True):
        _comparison(part.subplots(), found)
    save_figure(figure, path)


def _comparison(axis: Any, found: Comparison) -> None:
    timed = [(entry, entry.latency.median) for entry in found.entries if entry.latency is not None]
    colours = [COLOURS["routing" if e is found.fastest else OTHER] for e, _ in timed]
    bars = axis.barh(range(len(timed)), [median for _, median in timed], color=colours)
    axis.set_yticks(
        range(len(timed)), [_folded(entry.name, ENTRANT) for entry, _ in timed], fontsize=8
    )
    texts = [(f"{milliseconds(m)} ms", standing(found, e)) for e, m in timed]
    labels = axis.bar_label(bars, [", ".join(filter(None, t)) for t in texts], padding=3)
    for label, (entry, _) in zip(labels, timed, strict=True):
        label.set_fontweight("bold" if entry is found.fastest else "normal")
    axis.invert_yaxis()
    axis.margins(x=0.3)
    _plain(axis, f"Side by side, batch {found.batch}", "milliseconds (median)")


def _folded(name: str, width: int) -> str:
    """A name on lines short enough for an axis."""
    return "\n".join(map(caption, textwrap.wrap(name, width) or [name]))


def _run(part: Any, run: Run, peaks: Peaks | None) -> None:
    wanted: list[Callable[[Any, Run, Peaks | None], None]] = [_latencies]
    if run.operators is not None and run.layers:
        wanted.insert(0, _layers)
    if run.operators is not None and peaks is not None:
        wanted.append(_roofline)
    axes = part.subplots(1, len(wanted), squeeze=False)[0]
    for draw, axis in zip(wanted, axes, strict=True):
        draw(axis, run, peaks)
    memory = f", peak memory {size(run.startup.peak_bytes)}" if run.startup else ""
    part.suptitle(
        f"{caption(run.model)}, batch {run.batch}: median {milliseconds(run.latency.median)} ms, "
        f"{run.throughput:.0f} images/s{memory}",
        fontsize=11,
        fontweight="bold",
    )


def _layers(axis: Any, run: Run, _: Peaks | None) -> None:
    longest = sorted(run.layers, key=lambda r: -r.milliseconds)[:SHOWN]
    rows = [row for row in run.layers if row in longest]
    bars = axis.barh(
        range(len(rows)), [r.milliseconds for r in rows], color=[COLOURS[r.group] for r in rows]
    )
    axis.bar_label(bars, [f"{r.share:.0%}" for r in rows], padding=2, fontsize=8)
    axis.set_yticks(range(len(rows)), [_folded(r.name, LAYER) for r in rows], fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    for group in dict.fromkeys(r.group for r in rows):
        axis.barh(0, 0, color=COLOURS[group], label=group)
    if run.named:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17)}
        axis.legend(fontsize=7, ncols=5, frameon=False, **below)
    _plain(axis, f"Time by {'layer' if run.named else 'operator type'}", "milliseconds")


def _latencies(axis: Any, run: Run, _: Peaks | None) -> None:
    ms = 1e3 * np.asarray(run.samples)
    axis.hist(ms[ms <= run.latency.p99], bins=60, color=COLOURS["stem"])
    for value, name, side in (
        (run.latency.median, "median", "left"),
        (run.latency.p99, "p99", "right"),
    ):
        axis.axvline(value, color="#D55E00", linestyle="--", linewidth=1.2)
        axis.annotate(
            f"{name} {milliseconds(value)}", (value, 1), (4 if side == "left" else -4, -2),
            xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8, ha=side, va="top",
        )  # fmt: skip
    beyond = f", {run.beyond_p99} beyond p99" if run.beyond_p99 else ""
    _plain(axis, f"{len(ms)} runs{beyond}", "milliseconds")


def _roofline(axis: Any, run: Run, peaks: Peaks | None) -> None:
    assert peaks is not None
    assert run.operators is not None
    shown = [o for o in run.operators.operators if o.operations and o.bytes and o.microseconds > 0]
    if shown:
        axis.scatter(
            [o.operations / o.bytes for o in shown],
            [1e-3 * o.operations / o.microseconds for o in shown],
            s=[12 + 500 * o.share for o in shown],
            c=[COLOURS[o.group or OTHER] for o in shown],
            alpha=0.7,
            edgecolors="none",
        )
    ridge = peaks.operations / peaks.bandwidth
    intensities = [o.operations / o.bytes for o in shown]
    left, right = min([*intensities, ridge]) / 2, max([*intensities, ridge]) * 3
    axis.plot(
        [left, ridge, right],
        [left * peaks.bandwidth / 1e9, peaks.operations / 1e9, peaks.operations / 1e9],
        color="black",
        linewidth=1.4,
    )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylabel("G operations per second", fontsize=8)
    _plain(
        axis,
        f"Roofline ({peaks.operations / 1e9:.0f} G/s, {peaks.bandwidth / 1e9:.0f} GB/s)",
        "operations per byte",
    )


def _plain(axis: Any, title: str, label: str) -> None:
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(label, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
