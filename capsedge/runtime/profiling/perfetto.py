"""A trace for Perfetto and chrome://tracing (Trace Event Format): a few runs, operator by operator."""

from __future__ import annotations

from typing import Any

from capsedge.errors import UsageError
from capsedge.runtime.profiling.report_data import ReportData, Run

_OPERATORS, _LAYERS = 1, 2  # threads of the trace: one track each


def trace(report: ReportData) -> dict[str, Any]:
    """Complete events (``ph: X``), times in microseconds: a process per run, tracks for operators and layers.

    Raises:
        UsageError: no operator was timed.
    """
    events: list[dict[str, Any]] = []
    for pid, run in enumerate(report.runs, 1):
        if run.operators is not None and run.operators.spans:
            events += _run(pid, run)
    if not events:
        raise UsageError(
            "There is nothing to trace.",
            "Time by operator was left out, or the backend does not report it.",
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
