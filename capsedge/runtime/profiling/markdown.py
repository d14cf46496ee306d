"""A report as Markdown."""

from __future__ import annotations

from capsedge.runtime.files.text import markdown as text
from capsedge.runtime.profiling import tables
from capsedge.runtime.profiling.report_data import ReportData
from capsedge.runtime.profiling.tables import Table


def markdown(report: ReportData) -> str:
    """Machine, latency, start and memory; groups, layers and warnings of each run; then comparisons."""
    m = report.machine
    lines = [
        "# Profile",
        "",
        text(f"{m['cpu']}, {m['cores']} cores, {m['simd']}, {m['system']}."),
        *(text(f"{line}.") for line in dict.fromkeys(run.backend for run in report.runs)),
    ]
    if report.peaks is not None:
        lines.append(text(tables.peaks(report.peaks)))
    lines.append("")
    lines += _table(tables.latency(report.runs))
    lines += _table(tables.startup(report.runs))
    for run in report.runs:
        lines += [text(f"## {run.model}, batch {run.batch}"), ""]
        lines += _table(tables.networks(run))
        lines += _table(tables.groups(run))
        lines += _table(tables.layers(run))
        if run.warnings:
            lines += [*(text(f"- {warning}") for warning in run.warnings), ""]
    for found in report.comparisons:
        lines += _table(tables.comparison(found))
        versions = "; ".join(dict.fromkeys(entry.version for entry in found.entries))
        lines += [text(f"Versions: {versions}."), ""]
    return "\n".join(lines)


def _table(table: Table | None) -> list[str]:
    if table is None:
        return []
    lines = [text(f"{table.title}:"), "", _line(table.columns), "|" + "---|" * len(table.columns)]
    return [*lines, *(_line(row) for row in table.rows), ""]


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(map(text, cells)) + " |"
