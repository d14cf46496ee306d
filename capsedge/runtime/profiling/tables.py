"""The tables of a report, as text: for Markdown, HTML and the terminal alike."""

from __future__ import annotations

from dataclasses import dataclass

from capsedge.runtime.profiling.compare import Comparison, Entry
from capsedge.runtime.profiling.machine import Peaks
from capsedge.runtime.profiling.report_data import Row, Run
from capsedge.runtime.quantities import milliseconds, quantity, size

FASTEST = "fastest"


@dataclass(frozen=True)
class Table:
    """A title, the column headings, and the rows.

    Attributes:
        essential: the columns that a narrow terminal shows; empty for all.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    essential: tuple[str, ...] = ()


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
            (run.model, str(run.batch), *map(milliseconds, times), f"{s.cv:.1%}",
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
            sizes = map(size, (s.steady_bytes, s.peak_bytes, s.model_bytes, s.device_bytes))
            rows.append((run.model, str(run.batch), *times, *sizes))
    return Table("Start and memory of a separate process", columns, tuple(rows)) if rows else None


def groups(run: Run) -> Table | None:
    """Stem, votes, routing, classifier."""
    return _rows(run, run.groups, f"Groups, batch {run.batch}", "group")


def networks(run: Run) -> Table | None:
    """The two networks of a cascade."""
    share = "" if run.long_way is None else f", {run.long_way:.1%} of the images on the long way"
    return _rows(run, run.networks, f"Networks, batch {run.batch}{share}", "network")


def layers(run: Run) -> Table | None:
    """Layers and iterations, or operator types."""
    kind = "layer" if run.named else "operator type"
    return _rows(run, run.layers, f"Time by {kind}, batch {run.batch}", kind)


def _rows(run: Run, rows: list[Row], title: str, kind: str) -> Table | None:
    if not rows or run.operators is None:
        return None
    columns = (kind, "operators", "ms", "share", "operations", "bytes", "at peak, ms", "of peak")
    cells = [_cells(row) for row in rows]
    call = run.operators.call_ms
    cells.append(("call (not operators)", "", milliseconds(call), "", "", "", "", ""))
    total = run.operators.sum_ms + call
    name = f"sum (median of runs: {milliseconds(run.operators.median_ms)})"
    whole = f"{run.operators.attributed:.0%}"
    cells.append((name, "", milliseconds(total), whole, "", "", "", ""))
    return Table(
        title, columns, tuple(cells), (kind, "ms", "share", "operations", "bytes", "of peak")
    )


def _cells(row: Row) -> tuple[str, ...]:
    reached = ""
    if row.attainable is not None and row.milliseconds > 0 and row.attainable > 0:
        reached = f"{row.attainable / row.milliseconds:.0%}"
    counted = bool(
        row.operations or row.bytes
    )  # TensorRT does not report the sizes of an engine's layers
    attainable = "" if row.attainable is None else milliseconds(row.attainable)
    return (
        row.name, str(row.operators), milliseconds(row.milliseconds), f"{row.share:.1%}",
        quantity(row.operations) if counted else "", size(row.bytes) if counted else "", attainable, reached,
    )  # fmt: skip


def comparison(found: Comparison) -> Table:
    """One row per entrant; the fastest is marked, and differences are from the first file."""
    columns = ("backend", "median ms", "p90", "p99", "cv", "against the first", "peak memory",
               "cold start", "difference")  # fmt: skip
    rows = tuple(_entrant(found, entry) for entry in found.entries)
    threads = found.threads or "default"
    title = f"Side by side, batch {found.batch}, threads {threads}, {found.rounds} rounds in turns"
    essential = ("backend", "median ms", "against the first", "peak memory", "difference")
    return Table(title, columns, rows, essential)


def _entrant(found: Comparison, entry: Entry) -> tuple[str, ...]:
    off = "-" if entry.from_first_file is None else f"{entry.from_first_file:.1e}"
    if entry.latency is None:
        return (entry.name, "-", "-", "-", "-", entry.problem, "-", "-", off)
    s = entry.latency
    return (
        entry.name, milliseconds(s.median), milliseconds(s.p90), milliseconds(s.p99), f"{s.cv:.1%}",
        standing(found, entry), size(entry.peak_bytes), f"{entry.cold_start_ms:.0f} ms", off,
    )  # fmt: skip


def standing(found: Comparison, entry: Entry) -> str:
    """``3.7x faster, fastest``: the entry against the first, and whether it is the fastest of all."""
    parts = [found.against_first(entry), FASTEST if entry is found.fastest else ""]
    return ", ".join(part for part in parts if part)


def beyond_p99(run: Run, drawn: str) -> str:
    """How many runs were slower than a chart's end, and how they are drawn; empty for none."""
    count = run.beyond_p99
    if not count:
        return ""
    runs = "1 run" if count == 1 else f"{count} runs"
    return f"{runs} beyond the 99th percentile, up to {milliseconds(run.latency.max)} ms: {drawn}."


def peaks(found: Peaks) -> str:
    """The machine's peaks in a sentence."""
    return (
        f"Measured peaks with {found.threads} threads: {found.operations / 1e9:.0f} billion FP32 "
        f"operations per second "
        f"(a matrix product in ONNX Runtime), {found.bandwidth / 1e9:.1f} GB/s (a copy in memory)."
    )
