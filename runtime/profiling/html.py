"""A report as one HTML file: no script, no network, light or dark by the reader's setting."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from capsedge.runtime.profiling import svg, tables
from capsedge.runtime.profiling.comparison import Comparison
from capsedge.runtime.profiling.report_data import ReportData, Row, Run
from capsedge.runtime.profiling.style import STYLE
from capsedge.runtime.profiling.tables import Table
from capsedge.runtime.quantities import milliseconds, size

SHOWN = 14  # layers with a bar; the table lists all


def html(report: ReportData) -> str:
    """The page."""
    title = "Profile: " + ", ".join(dict.fromkeys(run.model for run in report.runs))
    m = report.machine
    facts = f"{m['cpu']}, {m['cores']} cores, {m['simd']}, {m['system']}"
    backends = "; ".join(dict.fromkeys(run.backend for run in report.runs))
    body = [
        f"<header><h1>{escape(title)}</h1><p>{escape(facts)}<br>{escape(backends)}</p></header>",
        *(_comparison(found) for found in report.comparisons),
        *(_run(run, report) for run in report.runs),
        "<section><h2>All numbers</h2>",
        _table(tables.latency(report.runs)),
        _table(tables.startup(report.runs)),
        f"<p>{escape(tables.peaks(report.peaks))}</p>" if report.peaks else "",
        "</section>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _run(run: Run, report: ReportData) -> str:
    charts = []
    if run.operators is not None and run.layers:
        kind = "layer" if run.named else "operator type"
        charts.append(_figure(f"Time by {kind}", _bars(_longest(run.layers))))
        if report.peaks is not None:
            roof = svg.roofline(run.operators.operators, report.peaks)
            if roof:
                note = (
                    "Each circle is an operator; its area is its time. An operator on the roof, "
                    f"{report.peaks.operations / 1e9:.0f} G operations/s and "
                    f"{report.peaks.bandwidth / 1e9:.0f} GB/s, cannot be faster."
                )
                charts.append(_figure("Roofline", roof, note))
    charts += [
        _figure("Latency of all runs", svg.histogram(run), tables.beyond_p99(run, "not drawn")),
        _figure(
            "Latency over time", svg.series(run), tables.beyond_p99(run, "triangles at the top")
        ),
    ]
    groups = _stacked(run) + _legend(run) if run.groups else ""
    warnings = "".join(f"<li>{escape(w)}</li>" for w in run.warnings)
    details = "".join(
        _details(name, table(run))
        for name, table in (
            ("Networks", tables.networks),
            ("Layers", tables.layers),
            ("Groups", tables.groups),
        )
    )
    return (
        f"<section><h2>{escape(run.model)}, batch {run.batch}</h2>{_figures(run)}{groups}"
        + (f'<ul class="warnings">{warnings}</ul>' if warnings else "")
        + f'<div class="charts">{"".join(charts)}</div>{details}</section>'
    )


def _figures(run: Run) -> str:
    cells = [
        ("median", f"{milliseconds(run.latency.median)} ms"),
        ("p99", f"{milliseconds(run.latency.p99)} ms"),
        ("images per second", f"{run.throughput:.0f}"),
        ("variation", f"{run.latency.cv:.1%}"),
    ]
    if run.startup is not None:
        cells += [
            ("cold start", f"{run.startup.cold_start_ms:.0f} ms"),
            ("peak memory", size(run.startup.peak_bytes)),
        ]
    if run.startup is not None and run.startup.device_bytes is not None:
        cells.append(("GPU memory", size(run.startup.device_bytes)))
    return (
        '<dl class="numbers">'
        + "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in cells)
        + "</dl>"
    )


def _stacked(run: Run) -> str:
    """One bar, divided by group."""
    parts = "".join(
        f'<span class="g-{g.group}" style="flex-grow:{g.share:.4f}" title="{g.group} {g.share:.1%}">'
        f"{f'{g.group} {g.share:.0%}' if g.share > 0.15 else ''}</span>"
        for g in run.groups
    )
    return f'<div class="groups" role="img" aria-label="Share of the time by group">{parts}</div>'


def _legend(run: Run) -> str:
    items = "".join(
        f'<li><span class="swatch g-{g.group}"></span>{g.group} {milliseconds(g.milliseconds)} ms, '
        f"{g.share:.0%}</li>"
        for g in run.groups
    )
    return f'<ul class="legend">{items}</ul>'


def _longest(rows: Sequence[Row]) -> list[Row]:
    """The rows worth a bar, in the order in which they run."""
    chosen = sorted(rows, key=lambda r: -r.milliseconds)[:SHOWN]
    return [row for row in rows if row in chosen]


def _bars(rows: Sequence[Row]) -> str:
    longest = max((row.milliseconds for row in rows), default=0.0) or 1.0
    return (
        '<div class="bars">'
        + "".join(
            _bar(
                row.name,
                row.milliseconds / longest,
                f"{milliseconds(row.milliseconds)} ms, {row.share:.0%}",
                row.group,
            )
            for row in rows
        )
        + "</div>"
    )


def _bar(name: str, length: float, value: str, group: str) -> str:
    return (
        f'<div class="row"><span class="name">{escape(name)}</span><span class="track">'
        f'<span class="fill g-{group}" style="width:{100 * length:.1f}%"></span></span>'
        f'<span class="value">{escape(value)}</span></div>'
    )


def _comparison(found: Comparison) -> str:
    timed = [entry for entry in found.entries if entry.latency is not None]
    longest = max((e.latency.median for e in timed if e.latency), default=1.0)
    bars = ""
    for entry in timed:
        assert entry.latency is not None
        standing = tables.standing(found, entry)
        value = f"{milliseconds(entry.latency.median)} ms" + (f", {standing}" if standing else "")
        group = "routing" if entry is found.fastest else "other"
        bars += _bar(entry.name, entry.latency.median / longest, value, group)
    versions = "; ".join(dict.fromkeys(entry.version for entry in found.entries))
    table = tables.comparison(found)
    return (
        f'<section><h2>{escape(table.title)}</h2><div class="bars">{bars}</div>'
        f"<p>Medians of runs in turns on the same inputs, after outputs were compared; ratios are to the "
        f"first row, differences from the first file. {escape(versions)}.</p>"
        f"{_details('Comparison', table)}</section>"
    )


def _figure(title: str, chart: str, note: str = "") -> str:
    caption = f"<p>{escape(note)}</p>" if note else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{chart}{caption}</figure>"


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
    fastest = any(cell.endswith(tables.FASTEST) for cell in cells[1:])
    marked = ' class="fastest"' if fastest else ""
    return f"<tr{marked}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
