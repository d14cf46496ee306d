"""Charts as SVG for an HTML page; colours are the page's CSS variables, so that they follow its scheme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from capsedge.runtime.profiling.machine import Peaks
from capsedge.runtime.profiling.operator_times import Operator
from capsedge.runtime.profiling.report_data import OTHER, Run
from capsedge.runtime.quantities import milliseconds, quantity

WIDTH, HEIGHT = 480, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 14, 16, 46
BINS = 60
MOST_POINTS = 400  # of a series; longer ones are thinned out, with their extremes kept


def histogram(run: Run) -> str:
    """Histogram of the latencies up to the 99th percentile, with the median marked."""
    ms = 1e3 * np.asarray(run.samples)
    low, high = float(ms.min()), run.latency.p99
    if high <= low:
        high = low * 1.01 + 1e-6
    counts, edges = np.histogram(ms[ms <= high], bins=BINS, range=(low, high))
    x, y = Linear(low, high, *_across()), Linear(0, float(counts.max()), *_up())
    bars = [
        f'<rect class="bar" x="{x(a):.1f}" y="{y(n):.1f}" width="{max(x(b) - x(a) - 0.5, 0.5):.1f}" '
        f'height="{y(0) - y(n):.1f}"><title>{milliseconds(a)} to {milliseconds(b)} ms: {n} '
        f"runs</title></rect>"
        for n, a, b in zip(counts, edges, edges[1:], strict=False)
        if n
    ]
    for value, name in ((run.latency.median, "median"), (run.latency.p99, "p99")):
        if low <= value <= high:
            anchor, dx = ("end", -4) if x(value) > WIDTH - 110 else ("start", 4)
            below = name == "median" and x(value) > WIDTH / 2  # the label of p99
            top = _TOP + (28 if below else 10)
            bars.append(
                f'<line class="mark" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{_TOP}" y2="{y(0):.1f}"/>'
                f'<text class="label" text-anchor="{anchor}" x="{x(value) + dx:.1f}" y="{top}">{name} '
                f"{milliseconds(value)}</text>"
            )
    ticks = _axis_x(x, _ticks(low, high), "milliseconds") + _axis_y(
        y, _ticks(0, counts.max()), "runs"
    )
    shown = f"Histogram of {counts.sum()} of {len(ms)} latencies, up to the 99th percentile"
    return _svg(ticks + "".join(bars), shown)


def series(run: Run) -> str:
    """Latency of each run in order, up to the 99th percentile; slower runs are triangles at the top."""
    ms = 1e3 * np.asarray(run.samples)
    low, high = float(ms.min()), run.latency.p99 * 1.02 + 1e-9
    x, y = Linear(0, max(len(ms) - 1, 1), *_across()), Linear(low, high, *_up())
    points = "".join(
        f'<circle class="dot" cx="{x(k):.1f}" cy="{y(ms[k]):.1f}" r="1.6"/>'
        if ms[k] <= run.latency.p99
        else f'<path class="dot" d="M{x(k) - 3:.1f} {_TOP + 4}h6l-3 -5z"/>'
        for k in _thinned(ms)
    )
    stable = ""
    if run.stable.start is not None:
        start = x(run.stable.start)
        stable = (
            f'<rect class="stable" x="{start:.1f}" y="{_TOP}" width="{x(len(ms) - 1) - start:.1f}" '
            f'height="{y(low) - _TOP:.1f}"><title>stable window</title></rect>'
        )
    ticks = _axis_x(x, _ticks(0, len(ms) - 1), "run") + _axis_y(
        y, _ticks(low, high), "milliseconds"
    )
    return _svg(
        stable + ticks + points, "Latency of each run in order; the stable window is shaded"
    )


def roofline(operators: Sequence[Operator], peaks: Peaks) -> str:
    """Operations per second over operations per byte, below the machine's roof."""
    shown = [o for o in operators if o.operations and o.bytes and o.microseconds > 0]
    if not shown:
        return ""
    intensity = [o.operations / o.bytes for o in shown]
    speed = [1e6 * o.operations / o.microseconds for o in shown]
    x_low, x_high = _decades([*intensity, peaks.operations / peaks.bandwidth])
    y_low, y_high = _decades([*speed, peaks.operations])
    x, y = Logarithmic(x_low, x_high, *_across()), Logarithmic(y_low, y_high, *_up())
    ridge = peaks.operations / peaks.bandwidth
    left = max(x_low, y_low / peaks.bandwidth)
    roof = (
        f'<polyline class="roof" points="{x(left):.1f},{y(left * peaks.bandwidth):.1f} '
        f'{x(ridge):.1f},{y(peaks.operations):.1f} {x(x_high):.1f},{y(peaks.operations):.1f}"/>'
    )
    points = "".join(
        f'<circle class="g-{o.group or OTHER}" cx="{x(i):.1f}" cy="{y(s):.1f}" '
        f'r="{3 + 9 * math.sqrt(o.share):.1f}">'
        f"<title>{escape(f'{o.kind} {o.label if o.group else o.name}')}: {o.microseconds:.1f} µs, "
        f"{o.share:.1%}, "
        f"{quantity(s)}operations/s</title></circle>"
        for o, i, s in sorted(
            zip(shown, intensity, speed, strict=True), key=lambda item: -item[0].share
        )
    )
    ticks = _axis_x(x, _powers(x_low, x_high), "operations per byte", log=True)
    ticks += _axis_y(y, _powers(y_low, y_high), "operations per second", log=True)
    return _svg(ticks + roof + points, "Roofline: each operator against the measured peaks")


def _svg(content: str, label: str, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{content}</svg>'


def _across() -> tuple[float, float]:
    return _LEFT, WIDTH - _RIGHT


def _up() -> tuple[float, float]:
    return HEIGHT - _BOTTOM, _TOP


class Linear:
    """A scale from values to pixels."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self.low, self.first = low, first
        self.slope = (last - first) / ((high - low) or 1.0)

    def __call__(self, value: float) -> float:
        return self.first + (value - self.low) * self.slope


class Logarithmic(Linear):
    """A scale over decades."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        super().__init__(math.log10(low), math.log10(high), first, last)

    def __call__(self, value: float) -> float:
        return super().__call__(math.log10(value))


def _axis_x(scale: Linear, ticks: Sequence[float], title: str, log: bool = False) -> str:
    bottom = HEIGHT - _BOTTOM
    out = [f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>']
    for value in ticks:
        out.append(
            f'<text class="tick" text-anchor="middle" x="{scale(value):.1f}" '
            f'y="{bottom + 19}">{_tick(value, log)}</text>'
        )
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    out.append(
        f'<text class="title" text-anchor="middle" x="{middle:.0f}" y="{HEIGHT - 6}">{title}</text>'
    )
    return "".join(out)


def _axis_y(scale: Linear, ticks: Sequence[float], title: str, log: bool = False) -> str:
    out = []
    for value in ticks:
        y = scale(value)
        out.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" text-anchor="end" x="{_LEFT - 5}" y="{y + 4:.1f}">{_tick(value, log)}</text>'
        )
    middle = (HEIGHT - _BOTTOM + _TOP) / 2
    out.append(
        f'<text class="title" text-anchor="middle" transform="translate(14 {middle:.0f}) '
        f'rotate(-90)">{title}</text>'
    )
    return "".join(out)


def _tick(value: float, log: bool) -> str:
    if log:
        return quantity(value).strip() if value >= 1 else f"{value:g}"
    return f"{value:g}"


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers between two."""
    span = float(high - low)
    if span <= 0:
        return [float(low)]
    step = 10 ** math.floor(math.log10(span / 3))
    for factor in (1, 2, 5, 10):
        if span / (step * factor) <= 6:
            step *= factor
            break
    first = math.ceil(low / step)
    return [round(k * step, 10) for k in range(first, math.floor(high / step) + 1)]


def _decades(values: Sequence[float]) -> tuple[float, float]:
    return 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values) * 1.3))


def _powers(low: float, high: float) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    step = max(1, (last - first) // 5)
    return [10.0**k for k in range(first, last + 1, step)]


def _thinned(values: np.ndarray) -> Sequence[int]:
    """Indices of at most `MOST_POINTS` values, evenly spread, each the largest of its neighbourhood in
    turn."""
    if len(values) <= MOST_POINTS:
        return range(len(values))
    blocks = np.array_split(np.arange(len(values)), MOST_POINTS)
    return [int(b[np.argmax(values[b])]) if k % 4 == 0 else int(b[0]) for k, b in enumerate(blocks)]
