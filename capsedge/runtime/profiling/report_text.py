"""Write a report as tables, Markdown or a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from capsedge.errors import UsageError
from capsedge.runtime.files.text import format_bytes, format_count, format_milliseconds
from capsedge.runtime.files.text import markdown as text
from capsedge.runtime.profiling.compare import Entry, SpeedComparison
from capsedge.runtime.profiling.machine_peaks import Peaks
from capsedge.runtime.profiling.report_data import ReportData, ReportRow, Run
from capsedge.runtime.result_summary import Table

# --- Tables, for Markdown, HTML and the terminal alike ---

FASTEST = "fastest"


def tables(report: ReportData) -> list[Table]:
    """All tables, as the command line prints them."""
    whole = [latency(report.runs), startup(report.runs)]
    makers = (networks, times_by_group, times_by_layer)
    of_runs = [make(run) for run in report.runs for make in makers]
    shown = [table for table in (*whole, *of_runs) if table is not None]
    if report.peaks is not None:
        shown[-1] = replace(shown[-1], notes=[peaks(report.peaks)])
    return [*shown, *map(comparison, report.comparisons)]


def latency(runs: list[Run]) -> Table:
    """One row per run with every statistic."""
    columns = (
        "model",
        "batch",
        "median",
        "mean",
        "min",
        "p90",
        "p95",
        "p99",
        "p99.9",
        "std",
        "cv",
        "images/s",
        "runs",
    )
    rows = []
    for run in runs:
        s = run.latency
        times = (s.median, s.mean, s.min, s.p90, s.p95, s.p99, s.p99_9, s.std)
        rows.append(
            (run.model, str(run.batch), *map(format_milliseconds, times), f"{s.cv:.1%}",
             f"{run.throughput:.0f}", str(s.count))
        )  # fmt: skip
    return Table("Latency, milliseconds per batch", columns, tuple(rows))


def startup(runs: list[Run]) -> Table | None:
    """Cold start and memory; None if nothing was measured."""
    columns = (
        "model",
        "batch",
        "cold start",
        "load",
        "first inference",
        "steady memory",
        "peak memory",
        "of which model",
        "GPU memory",
    )
    rows = []
    for run in runs:
        s = run.startup
        if s is not None:
            times = (f"{s.cold_start_ms:.0f} ms", f"{s.load_ms:.0f} ms", f"{s.first_ms:.1f} ms")
            sizes = map(format_bytes, (s.steady_bytes, s.peak_bytes, s.model_bytes, s.device_bytes))
            rows.append((run.model, str(run.batch), *times, *sizes))
    return Table("Start and memory of a separate process", columns, tuple(rows)) if rows else None


def times_by_group(run: Run) -> Table | None:
    """Stem, votes, routing, classifier."""
    return _rows(run, run.groups, f"Groups, batch {run.batch}", "group")


def networks(run: Run) -> Table | None:
    """The table of a cascade's two networks; None for other models."""
    share = "" if run.escalated is None else f", {run.escalated:.1%} of the images escalated"
    return _rows(run, run.networks, f"Networks, batch {run.batch}{share}", "network")


def times_by_layer(run: Run) -> Table | None:
    """Layers and iterations, or operator types."""
    kind = "layer" if run.named else "operator type"
    return _rows(run, run.layers, f"Time by {kind}, batch {run.batch}", kind)


def _rows(run: Run, rows: list[ReportRow], title: str, kind: str) -> Table | None:
    if not rows or run.operators is None:
        return None
    columns = (kind, "operators", "ms", "share", "operations", "bytes", "at peak, ms", "of peak")
    cells = [_cells(row) for row in rows]
    call = run.operators.call_ms
    cells.append(("call (not operators)", "", format_milliseconds(call), "", "", "", "", ""))
    total = run.operators.sum_ms + call
    name = f"sum (median of runs: {format_milliseconds(run.operators.median_ms)})"
    whole = f"{run.operators.attributed:.0%}"
    cells.append((name, "", format_milliseconds(total), whole, "", "", "", ""))
    return Table(
        title, columns, tuple(cells), (kind, "ms", "share", "operations", "bytes", "of peak")
    )


def _cells(row: ReportRow) -> tuple[str, ...]:
    reached = ""
    if row.attainable is not None and row.milliseconds > 0 and row.attainable > 0:
        reached = f"{row.attainable / row.milliseconds:.0%}"
    counted = bool(
        row.operations or row.bytes
    )  # TensorRT does not report the sizes of an engine's layers
    attainable = "" if row.attainable is None else format_milliseconds(row.attainable)
    return (
        row.name, str(row.operators), format_milliseconds(row.milliseconds), f"{row.share:.1%}",
        format_count(row.operations) if counted else "", format_bytes(row.bytes) if counted else "",
        attainable, reached,
    )  # fmt: skip


def comparison(comparison: SpeedComparison) -> Table:
    """One row per entrant; the fastest is marked, and differences are from the first file."""
    columns = ("backend", "median ms", "p90", "p99", "cv", "against the first", "peak memory",
               "cold start", "difference")  # fmt: skip
    rows = tuple(_entrant(comparison, entry) for entry in comparison.entries)
    threads = comparison.threads or "default"
    title = f"Side by side, batch {comparison.batch}, threads {threads}, {comparison.rounds} rounds in turns"
    essential = ("backend", "median ms", "against the first", "peak memory", "difference")
    return Table(title, columns, rows, essential, notes=[_versions(comparison)])


def _versions(comparison: SpeedComparison) -> str:
    return f"Versions: {'; '.join(dict.fromkeys(entry.version for entry in comparison.entries))}."


def _entrant(comparison: SpeedComparison, entry: Entry) -> tuple[str, ...]:
    off = "-" if entry.from_first_file is None else f"{entry.from_first_file:.1e}"
    if entry.latency is None:
        return (entry.name, "-", "-", "-", "-", entry.problem, "-", "-", off)
    s = entry.latency
    return (
        entry.name, format_milliseconds(s.median), format_milliseconds(s.p90), format_milliseconds(s.p99),
        f"{s.cv:.1%}",
        standing(comparison, entry), format_bytes(entry.peak_bytes), f"{entry.cold_start_ms:.0f} ms", off,
    )  # fmt: skip


def standing(comparison: SpeedComparison, entry: Entry) -> str:
    """``3.7x faster, fastest``: the entry against the first, and whether it is the fastest of all."""
    parts = [comparison.speed_in_words(entry), FASTEST if entry is comparison.fastest else ""]
    return ", ".join(part for part in parts if part)


def beyond_p99(run: Run, drawn: str) -> str:
    """How many runs were slower than a chart's end, and how they are drawn; empty if there is none."""
    count = run.beyond_p99
    if not count:
        return ""
    runs = "1 run" if count == 1 else f"{count} runs"
    return f"{runs} beyond the 99th percentile, up to {format_milliseconds(run.latency.max)} ms: {drawn}."


def peaks(report: Peaks) -> str:
    """The machine's peaks in a sentence."""
    return (
        f"Measured peaks with {report.threads} threads: {report.operations / 1e9:.0f} billion FP32 "
        f"operations per second "
        f"(a matrix product in ONNX Runtime), {report.bandwidth / 1e9:.1f} GB/s (a copy in memory)."
    )


# --- Markdown ---


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
        lines.append(text(peaks(report.peaks)))
    lines.append("")
    lines += _table(latency(report.runs))
    lines += _table(startup(report.runs))
    for run in report.runs:
        lines += [text(f"## {run.model}, batch {run.batch}"), ""]
        lines += _table(networks(run))
        lines += _table(times_by_group(run))
        lines += _table(times_by_layer(run))
        if run.warnings:
            lines += [*(text(f"- {warning}") for warning in run.warnings), ""]
    for compared in report.comparisons:
        table = comparison(compared)
        lines += [*_table(table), *map(text, table.notes), ""]
    return "\n".join(lines)


def _table(table: Table | None) -> list[str]:
    if table is None:
        return []
    lines = [text(f"{table.title}:"), "", _line(table.columns), "|" + "---|" * len(table.columns)]
    return [*lines, *(_line(row) for row in table.rows), ""]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(text, cells)) + " |"


# --- Trace for Perfetto and chrome://tracing (Trace Event Format): a few runs ---

_OPERATORS, _LAYERS = 1, 2  # threads of the trace: one track each


def trace(report: ReportData) -> dict[str, Any]:
    """Complete events (``ph: X``) in microseconds: a process per run, tracks for operators and layers."""
    events: list[dict[str, Any]] = []
    for pid, run in enumerate(report.runs, 1):
        if run.operators is not None and run.operators.spans:
            events += _run(pid, run)
    if not events:
        raise UsageError(
            "There is nothing to trace.",
            "Operator times were switched off, or the backend does not report them.",
            "Leave out --no-operators.",
        )
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": report.machine}


def _run(pid: int, run: Run) -> list[dict[str, Any]]:
    assert run.operators is not None
    events = [
        _name(pid, 0, "process_name", f"{run.model}, batch {run.batch}"),
        _name(pid, _OPERATORS, "thread_name", "operators"),
        _name(pid, _LAYERS, "thread_name", "layers"),
    ]
    layer: dict[str, Any] | None = None
    for span in run.operators.spans:
        operator = run.operators.operators[span.operator]
        args = {
            "layer": operator.label,
            "group": operator.group,
            "operations": operator.operations,
            "bytes": operator.bytes,
            "microseconds without the profiler": round(operator.microseconds, 3),
        }
        common = {"ph": "X", "pid": pid, "cat": operator.group or "operator"}
        events.append(
            {**common, "tid": _OPERATORS, "name": f"{operator.kind} {operator.name}", "ts": span.start,
             "dur": span.duration, "args": args}
        )  # fmt: skip
        label = operator.label if run.named else ""
        if layer is not None and layer["name"] == label and span.operator:
            layer["dur"] = span.start + span.duration - layer["ts"]
        elif label:
            layer = {
                **common,
                "tid": _LAYERS,
                "name": label,
                "ts": span.start,
                "dur": span.duration,
                "args": {},
            }
            events.append(layer)
    return events


def _name(pid: int, tid: int, kind: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}
