"""Draw a report's charts with matplotlib, as one picture or within one HTML page.

The page has no scripts, links or addresses, and follows the reader's choice of light or dark. Names
in it come from untrusted files: every one is escaped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from capsedge.runtime.files.text import format_bytes, format_count, format_milliseconds, printable
from capsedge.runtime.files.writing import write_text
from capsedge.runtime.profiling import report_text
from capsedge.runtime.profiling.compare import SpeedComparison
from capsedge.runtime.profiling.machine_peaks import Peaks
from capsedge.runtime.profiling.operator_times import TimedOperator
from capsedge.runtime.profiling.report_data import OTHER, ReportData, ReportRow, Run
from capsedge.runtime.result_summary import (
    TIP,
    Table,
    check_chart,
    escape_formulas,
    inline_svg,
    new_figure,
    save_figure,
)

COLOURS = {  # Okabe and Ito's palette, safe for colour blindness
    "stem": "#0072B2",
    "votes": "#E69F00",
    "routing": "#009E73",
    "classifier": "#CC79A7",
    "decoder": "#56B4E9",
    "other": "#8A8F98",
}
HIGHLIGHT = "#D55E00"
SHOWN = 14  # layers with a bar; the table lists all
BINS = 60  # number of bins in a histogram
MOST_POINTS = 400  # most points of a series; longer ones are thinned out, keeping their extremes
LAYER, ENTRANT = 44, 28  # characters on a line of a name
WIDTH = 4.6  # inches, of a chart on the page

_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--card:#f6f7f9;--text:#1b1f24;--soft:#57606a;--line:#d0d7de;
--good:#00785a}
@media (prefers-color-scheme:dark){:root{--bg:#0f1216;--card:#181c22;--text:#e6edf3;--soft:#9aa4af;
--line:#30363d;--good:#3fc39b}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--text);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:20px 16px 60px}
h1{font-size:1.5rem;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:34px 0 12px;
overflow-wrap:anywhere}
header p,figure p,section>p:not(.caption){color:var(--soft);margin:4px 0}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(118px,1fr));gap:10px;margin:0 0 16px}
.numbers div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 12px}
.numbers dt{color:var(--soft);font-size:.8rem}.numbers dd{margin:0;font-size:1.2rem;font-weight:650;
font-variant-numeric:tabular-nums;white-space:nowrap}
.groups{display:flex;gap:2px;height:36px;border-radius:6px;overflow:hidden}
.groups span{flex:0 1 0;min-width:2px;color:#fff;font-weight:650;font-size:.85rem;text-align:center;
line-height:36px;overflow:hidden;white-space:nowrap}
@media (max-width:560px){.groups span{font-size:0}}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;margin:6px 0 16px;padding:0;
font-size:.88rem}
.swatch{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
.warnings{border-left:3px solid #D55E00;margin:0 0 16px;padding:8px 12px 8px 30px;background:var(--card);
font-size:.9rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;
min-width:0}
figcaption{font-weight:650;margin-bottom:8px}figure p{font-size:.82rem}
svg{display:block;width:100%;height:auto;max-width:520px;fill:currentColor;stroke-linejoin:round}
details{margin-top:12px}summary{cursor:pointer;color:var(--soft)}
.scroll{overflow-x:auto;margin:8px 0}table{border-collapse:collapse;font-size:.84rem;
font-variant-numeric:tabular-nums}
.caption{font-weight:650;margin:10px 0 0;color:var(--text)}th,td{text-align:right;padding:4px 10px;
border-bottom:1px solid var(--line);white-space:nowrap}th:first-child,td:first-child{text-align:left;
position:sticky;left:0;background:var(--bg);white-space:normal;overflow-wrap:anywhere;
min-width:min(34vw,24ch);max-width:min(40vw,42ch)}.fastest td{font-weight:650;color:var(--good)}
th{color:var(--soft);font-weight:600}
.groups .g-votes,.groups .g-decoder{color:#10151b}
""" + "".join(f".g-{name}{{background:{colour}}}" for name, colour in COLOURS.items())


@dataclass(frozen=True)
class Chart:
    """A chart of the picture and of the page.

    Attributes:
        title: what it shows.
        draw: draws it on a matplotlib axis.
        note: what the page says below it.
        height: inches, on the page.
    """

    title: str
    draw: Callable[[Any], None]
    note: str = ""
    height: float = 3.0


def save_png(report: ReportData, path: Path) -> None:
    """Draw one row per run: layers, latencies, roofline; and every comparison below."""
    check_chart(path)
    rows = len(report.runs) + len(report.comparisons)
    figure = new_figure(13, 3.6 * rows)
    parts = figure.subfigures(rows, 1, squeeze=False)[:, 0]
    for run, part in zip(report.runs, parts, strict=False):
        memory = f", peak memory {format_bytes(run.startup.peak_bytes)}" if run.startup else ""
        median = format_milliseconds(run.latency.median)
        title = f"{escape_formulas(run.model)}, batch {run.batch}: median {median} ms"
        title += f", {run.throughput:.0f} images/s{memory}"
        part.suptitle(title, fontsize=11, fontweight="bold")
        _row_of_charts(part, _charts(run, report.peaks))
    for compared, part in zip(report.comparisons, parts[len(report.runs) :], strict=True):
        _row_of_charts(part, [_side_by_side(compared)])
    save_figure(figure, path)


def _row_of_charts(part: Any, charts: Sequence[Chart]) -> None:
    axes = part.subplots(1, len(charts), squeeze=False)[0]
    for chart, axis in zip(charts, axes, strict=True):
        chart.draw(axis)
        axis.set_title(chart.title, fontsize=9)
        if axis.get_legend_handles_labels()[0]:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17)}
            axis.legend(fontsize=7, ncols=5, frameon=False, **below)


def write_html_report(report: ReportData, path: Path) -> None:
    """Write one HTML file that contains its charts."""
    check_chart(path)
    title = escape("Profile: " + ", ".join(dict.fromkeys(run.model for run in report.runs)))
    m = report.machine
    facts = f"{m['cpu']}, {m['cores']} cores, {m['simd']}, {m['system']}"
    backends = "; ".join(dict.fromkeys(run.backend for run in report.runs))
    body = [
        f"<header><h1>{title}</h1><p>{escape(facts)}<br>{escape(backends)}</p></header>",
        *map(_comparison, report.comparisons),
        *(_run(run, report.peaks) for run in report.runs),
        "<section><h2>All numbers</h2>",
        _table(report_text.latency(report.runs)),
        _table(report_text.startup(report.runs)),
        f"<p>{escape(report_text.peaks(report.peaks))}</p>" if report.peaks else "",
        "</section>",
    ]
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )
    write_text(path, page)


def _run(run: Run, peaks: Peaks | None) -> str:
    stable = "" if run.stable.start is None else "The stable window is shaded. "
    note = stable + report_text.beyond_p99(run, "triangles at the top")
    over_time = Chart("Latency over time", partial(_series, run), note)
    charts = "".join(map(_figure, [*_charts(run, peaks), over_time]))
    warnings = "".join(f"<li>{escape(w)}</li>" for w in run.warnings)
    return (
        f"<section><h2>{escape(run.model)}, batch {run.batch}</h2>{_figures(run)}{_groups(run)}"
        + (f'<ul class="warnings">{warnings}</ul>' if warnings else "")
        + f'<div class="charts">{charts}</div>'
        + _details("Networks", report_text.networks(run))
        + _details("Layers", report_text.times_by_layer(run))
        + _details("Groups", report_text.times_by_group(run))
        + "</section>"
    )


def _comparison(comparison: SpeedComparison) -> str:
    table = report_text.comparison(comparison)
    versions = "; ".join(dict.fromkeys(entry.version for entry in comparison.entries))
    return (
        f"<section><h2>{escape(table.title)}</h2>{_figure(_side_by_side(comparison), captioned=False)}"
        "<p>Medians of runs in turns on the same inputs, after outputs were compared; ratios are to the "
        f"first row, differences from the first file. {escape(versions)}.</p>"
        f"{_details('Comparison', table)}</section>"
    )


def _figures(run: Run) -> str:
    cells = [
        ("median", f"{format_milliseconds(run.latency.median)} ms"),
        ("p99", f"{format_milliseconds(run.latency.p99)} ms"),
        ("images per second", f"{run.throughput:.0f}"),
        ("variation", f"{run.latency.cv:.1%}"),
    ]
    if run.startup is not None:
        cells += [
            ("cold start", f"{run.startup.cold_start_ms:.0f} ms"),
            ("peak memory", format_bytes(run.startup.peak_bytes)),
        ]
    if run.startup is not None and run.startup.device_bytes is not None:
        cells.append(("GPU memory", format_bytes(run.startup.device_bytes)))
    return (
        '<dl class="numbers">'
        + "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in cells)
        + "</dl>"
    )


def _groups(run: Run) -> str:
    """One bar, divided by group, and its legend; empty without groups."""
    if not run.groups:
        return ""
    parts = "".join(
        f'<span class="g-{g.group}" style="flex-grow:{g.share:.4f}" title="{g.group} {g.share:.1%}">'
        f"{f'{g.group} {g.share:.0%}' if g.share > 0.15 else ''}</span>"
        for g in run.groups
    )
    legend = "".join(
        f'<li><span class="swatch g-{g.group}"></span>{g.group} {format_milliseconds(g.milliseconds)} ms, '
        f"{g.share:.0%}</li>"
        for g in run.groups
    )
    bar = f'<div class="groups" role="img" aria-label="Share of the time by group">{parts}</div>'
    return f'{bar}<ul class="legend">{legend}</ul>'


def _figure(chart: Chart, captioned: bool = True) -> str:
    figure = new_figure(WIDTH, chart.height)
    chart.draw(figure.subplots())
    title = f"<figcaption>{escape(chart.title)}</figcaption>" if captioned else ""
    note = f"<p>{escape(chart.note)}</p>" if chart.note else ""
    return f"<figure>{title}{inline_svg(figure, chart.title)}{note}</figure>"


def _details(name: str, table: Table | None) -> str:
    if table is None:
        return ""
    return f"<details><summary>{escape(name)} as a table</summary>{_table(table)}</details>"


def _table(table: Table | None) -> str:
    if table is None:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(map(_row, table.rows))
    title = escape(table.title)
    return (
        f'<p class="caption">{title}</p><div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(cells: Sequence[str]) -> str:
    fastest = any(cell.endswith(report_text.FASTEST) for cell in cells[1:])
    marked = ' class="fastest"' if fastest else ""
    return f"<tr{marked}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _charts(run: Run, peaks: Peaks | None) -> list[Chart]:
    """The part of a run that the picture shows; the page adds the series."""
    beyond = f", {run.beyond_p99} beyond p99" if run.beyond_p99 else ""
    charts = [
        Chart(
            f"Latency of {len(run.samples)} runs{beyond}",
            partial(_histogram, run),
            report_text.beyond_p99(run, "not drawn"),
        )
    ]
    if run.operators is None:
        return charts
    if run.layers:
        names = [_folded(row.name, LAYER) for row in _longest(run)]
        height = max(3.0, 0.8 + 0.17 * sum(map(_lines, names)))
        kind = "layer" if run.named else "operator type"
        charts.insert(0, Chart(f"Time by {kind}", partial(_layers, run, names), height=height))
    shown = [o for o in run.operators.operators if o.operations and o.bytes and o.microseconds > 0]
    if peaks is not None and shown:
        roof = f"{peaks.operations / 1e9:.0f} G operations/s, {peaks.bandwidth / 1e9:.0f} GB/s"
        note = "Each circle is an operator; its area is its time. One on the roof cannot be faster."
        charts.append(Chart(f"Roofline: {roof}", partial(_roofline, shown, peaks), note))
    return charts


def _side_by_side(comparison: SpeedComparison) -> Chart:
    timed = [entry for entry in comparison.entries if entry.latency is not None]
    names = [_folded(entry.name, ENTRANT) for entry in timed]
    lines = max([2, *map(_lines, names)])
    return Chart(
        f"Side by side, batch {comparison.batch}",
        partial(_entrants, comparison, names),
        height=0.7 + 0.16 * lines * len(names),
    )


def _entrants(comparison: SpeedComparison, names: Sequence[str], axis: Any) -> None:
    timed = [
        (entry, entry.latency.median) for entry in comparison.entries if entry.latency is not None
    ]
    colours = [COLOURS["routing" if e is comparison.fastest else OTHER] for e, _ in timed]
    bars = axis.barh(range(len(timed)), [median for _, median in timed], color=colours)
    texts = [
        f"{format_milliseconds(m)} ms\n{report_text.standing(comparison, e)}".strip()
        for e, m in timed
    ]
    labels = axis.bar_label(bars, texts, padding=3, fontsize=8)
    for label, (entry, _) in zip(labels, timed, strict=True):
        label.set_fontweight("bold" if entry is comparison.fastest else "normal")
    _names(axis, names)
    # Bars and the texts behind them share the width that the names leave.
    room = 72 * axis.figure.bbox.width / axis.figure.dpi - _points(names) - 20
    scales = [max(room - _points([text]), 1) / m for text, (_, m) in zip(texts, timed, strict=True)]
    axis.set_xlim(0, room / min(scales, default=room))
    _plain(axis, "milliseconds (median)")


def _lines(name: str) -> int:
    return name.count("\n") + 1


def _points(texts: Sequence[str]) -> float:
    """About the width of texts of size 8."""
    return 5.2 * max((len(line) for text in texts for line in text.split("\n")), default=0)


def _longest(run: Run) -> list[ReportRow]:
    """The rows worth a bar, in the order in which they run."""
    longest = sorted(run.layers, key=lambda r: -r.milliseconds)[:SHOWN]
    return [row for row in run.layers if row in longest]


def _layers(run: Run, names: Sequence[str], axis: Any) -> None:
    rows = _longest(run)
    bars = axis.barh(
        range(len(rows)), [r.milliseconds for r in rows], color=[COLOURS[r.group] for r in rows]
    )
    for bar, row in zip(bars, rows, strict=True):
        bar.set_gid(f"{TIP}{printable(row.name)}: {format_milliseconds(row.milliseconds)} ms")
    axis.bar_label(bars, [f"{r.share:.0%}" for r in rows], padding=2, fontsize=8)
    for group in dict.fromkeys(r.group for r in rows if run.named):
        axis.barh(0, 0, color=COLOURS[group], label=group)
    _names(axis, names)
    axis.margins(x=0.15)
    _plain(axis, "milliseconds")


def _histogram(run: Run, axis: Any) -> None:
    """Latencies up to the 99th percentile, with the median marked."""
    ms = 1e3 * np.asarray(run.samples)
    counts, edges, bars = axis.hist(ms[ms <= run.latency.p99], bins=BINS, color=COLOURS["stem"])
    for count, low, high, bar in zip(counts, edges, edges[1:], bars, strict=False):
        bar.set_gid(
            f"{TIP}{format_milliseconds(low)} to {format_milliseconds(high)} ms: {count:.0f} runs"
        )
        bar.set_visible(count > 0)
    axis.margins(y=0.2)  # for the texts
    middle = (edges[0] + edges[-1]) / 2
    marks = ("median", run.latency.median), ("p99", run.latency.p99)
    for line, (name, value) in enumerate(marks):
        axis.axvline(value, color=HIGHLIGHT, linestyle="--", linewidth=1.2)
        side, shift = ("left", 4) if value <= middle else ("right", -4)
        axis.annotate(
            f"{name} {format_milliseconds(value)}", (value, 1), (shift, -2 - 11 * line), ha=side, va="top",
            xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8,
        )  # fmt: skip
    _plain(axis, "milliseconds", "runs")


def _series(run: Run, axis: Any) -> None:
    """Latency of each run in order, up to the 99th percentile; slower runs are triangles at the top."""
    ms = 1e3 * np.asarray(run.samples)
    shown = _thinned(ms)
    if run.stable.start is not None:
        axis.axvspan(run.stable.start, len(ms), color="#8A8F98", alpha=0.15, linewidth=0)
    below = shown[ms[shown] <= run.latency.p99]
    beyond = shown[ms[shown] > run.latency.p99]
    axis.plot(below, ms[below], ".", color=COLOURS["stem"], markersize=3)
    top = np.full(len(beyond), run.latency.p99 + 0.03 * np.ptp(ms[below]))
    axis.plot(beyond, top, "^", color=COLOURS["stem"], markersize=4, markeredgewidth=0)
    axis.margins(x=0.01)
    _plain(axis, "run", "milliseconds")


def _thinned(values: np.ndarray) -> np.ndarray:
    """Indices of at most `MOST_POINTS` values, evenly spread, with the largest of every fourth block."""
    if len(values) <= MOST_POINTS:
        return np.arange(len(values))
    blocks = np.array_split(np.arange(len(values)), MOST_POINTS)
    return np.array([b[np.argmax(values[b])] if k % 4 == 0 else b[0] for k, b in enumerate(blocks)])


def _roofline(shown: Sequence[TimedOperator], peaks: Peaks, axis: Any) -> None:
    """Operations per second over operations per byte, below the machine's roof."""
    for o in sorted(shown, key=lambda o: -o.share):
        speed = o.operations / o.microseconds  # million per second
        axis.scatter(
            [o.operations / o.bytes], [1e-3 * speed], s=[12 + 500 * o.share],
            c=[COLOURS[o.group or OTHER]], alpha=0.7, edgecolors="none",
        ).set_gid(
            f"{TIP}{printable(f'{o.kind} {o.label if o.group else o.name}')}: {o.microseconds:.1f} µs, "
            f"{o.share:.1%}, {format_count(1e6 * speed).strip()} operations/s"
        )  # fmt: skip
    ridge = peaks.operations / peaks.bandwidth
    intensities = [ridge, *(o.operations / o.bytes for o in shown)]
    across = np.array([min(intensities) / 2, ridge, max(intensities) * 3])
    roof = np.minimum(across * peaks.bandwidth, peaks.operations)
    axis.plot(across, roof / 1e9, color="black", linewidth=1.4)
    axis.loglog()
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_formatter("{x:g}")
        scale.set_minor_formatter("")
    _plain(axis, "operations per byte", "G operations per second")


def _folded(name: str, width: int) -> str:
    """A name on lines short enough for an axis."""
    return "\n".join(map(escape_formulas, textwrap.wrap(name, width) or [name]))


def _names(axis: Any, names: Sequence[str]) -> None:
    """Names of bars, from the top."""
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()


def _plain(axis: Any, across: str, up: str = "") -> None:
    axis.set_xlabel(across, fontsize=8)
    axis.set_ylabel(up, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
