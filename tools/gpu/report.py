"""Write a JSON and a Markdown report on everything that has run so far."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from benchmarks import gpu, gpu_ops
from capsedge.runtime.files.writing import write_bytes

from . import against_ptx
from .running import State
from .steps import STAGES, Step

VERDICTS = ("passed", "failed", "stopped", "not available", "open")


def write(state: State, steps: Sequence[Step], emulated: bool) -> None:
    """Write ``report.json`` and ``report.md`` into the state's folder."""
    document = collect(state, steps, emulated)
    text = json.dumps(document, indent=1) + "\n"
    write_bytes(state.folder / "report.json", text.encode())
    write_bytes(state.folder / "report.md", markdown(document).encode())


def collect(state: State, steps: Sequence[Step], emulated: bool) -> dict[str, Any]:
    """Every step, with its verdict and document."""
    rows = []
    for step in steps:
        result = state.result(step) or {"verdict": "open", "why": "", "seconds": 0.0}
        kept = {key: result.get(key, "") for key in ("verdict", "why", "seconds", "command")}
        if result["verdict"] in ("failed", "stopped"):
            kept["output"] = result["output"]
        if "conformance" in step.name and result["verdict"] != "open":
            kept["counts"] = _counts(result["output"])
        rows.append(
            {"step": step.name, "stage": step.stage, **kept, "document": state.document(step)}
        )
    return {"emulated": emulated, "steps": rows}


def _counts(output: str) -> dict[str, int]:
    """Cases by verdict, from the last line of the conformance tests."""
    line = next((x for x in reversed(output.splitlines()) if x.startswith("test: ")), "")
    return {name: int(n) for n, name in re.findall(r"(\d+) (\w+)", line)}


def markdown(document: dict[str, Any]) -> str:
    """The report as a page."""
    steps = document["steps"]
    lines = ["# capsedge on a GPU", ""]
    if document["emulated"]:
        lines += ["**A rehearsal on an emulated GPU: no time below is that of a GPU.**", ""]
    lines += _machine(steps)
    lines += ["", "| stage | " + " | ".join(VERDICTS) + " |", "| --- " * (len(VERDICTS) + 1) + "|"]
    for stage in STAGES:
        mine = [row["verdict"] for row in steps if row["stage"] == stage]
        lines.append(f"| {stage} | " + " | ".join(str(mine.count(v)) for v in VERDICTS) + " |")
    lines += ["", *_conformance(steps)]
    wrong = [row for row in steps if row["verdict"] in ("failed", "stopped", "not available")]
    if wrong:
        lines += ["", "## Not passed", "", "| step | verdict | why |", "| --- | --- | --- |"]
        lines += [f"| {r['step']} | {r['verdict']} | {_cell(r['why'])} |" for r in wrong]
    lines += ["", *_latency(steps), *_counters(steps), *_against_ptx(steps)]
    lines += [*_provider(steps), *_torch(steps), *_models(steps)]
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _documents(steps: Sequence[dict[str, Any]], stage: str) -> list[dict[str, Any]]:
    return [row["document"] for row in steps if row["stage"] == stage and row["document"]]


def _machine(steps: Sequence[dict[str, Any]]) -> list[str]:
    facts = next(iter(_documents(steps, "inventory")), None)
    if facts is None:
        return ["The inventory has not run."]
    found, packages = facts["gpu"], facts["packages"]
    if not found:
        return [f"No GPU: {facts['found']['gpu']}"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    return [
        f"{found['name']}, compute capability {found['compute_capability']}, "
        f"{found['multiprocessors']} multiprocessors; driver for CUDA {facts['driver']}, libcudart "
        f"{found['cudart']}; {facts['machine']['cpu']}, Python {facts['machine']['python']}; {versions}."
    ]


def _conformance(steps: Sequence[dict[str, Any]]) -> list[str]:
    rows = [row for row in steps if row.get("counts")]
    if not rows:
        return []
    ok = sum(row["counts"].get("ok", 0) for row in rows)
    failed = sum(row["counts"].get("FAILED", 0) for row in rows)
    return [f"Conformance: {ok} cases right, {failed} wrong, in {len(rows)} schemes and types."]


def _latency(steps: Sequence[dict[str, Any]]) -> list[str]:
    documents = _documents(steps, "latency")
    if not documents:
        return []
    merged = {**documents[0], "operators": []}
    for found in documents:
        merged["operators"] += found["operators"]
    return ["## Latency", "", gpu.markdown(merged), ""]


def _counters(steps: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for found in _documents(steps, "counters"):
        for launch in found["launches"]:
            values = {k: v["value"] for k, v in launch.items() if isinstance(v, dict)}
            lines.append(
                f"| {found['layer']} | {found['batch']} | `{launch['kernel'].partition('(')[0]}` | "
                + " | ".join(f"{values[name]:g}" for name in values)
                + " |"
            )
            names = list(values)
    if not lines:
        return []
    head = f"| layer | batch | kernel | {' | '.join(names)} |"
    return ["## Counts by Nsight Compute", "", head, "| --- " * (3 + len(names)) + "|", *lines, ""]


def _against_ptx(steps: Sequence[dict[str, Any]]) -> list[str]:
    facts = next(iter(_documents(steps, "inventory")), None)
    if facts is None or not facts["gpu"]:
        return []
    found = list(against_ptx.rows(facts["gpu"], _documents(steps, "counters")))
    if not found:
        return []
    table = [list(against_ptx.HEADER), ["---"] * len(against_ptx.HEADER), *found]
    lines = [f"| {' | '.join(row)} |" for row in table]
    return ["## Nsight Compute against the executed PTX", "", *lines, ""]


def _provider(steps: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        f"| {model} | {check} | {_cell(str(value))} |"
        for row in steps
        for model, checks in (row["document"] or {}).get("provider", {}).items()
        for check, value in checks.items()
    ]
    if not lines:
        return []
    head = ["| model | check | found |", "| --- | --- | --- |"]
    return ["## ONNX Runtime's CUDA provider", "", *head, *lines, ""]


def _torch(steps: Sequence[dict[str, Any]]) -> list[str]:
    rows = [row for found in _documents(steps, "torch") for row in found["operators"]]
    return ["## Layers in torch, ms", "", gpu_ops.markdown(rows), ""] if rows else []


def _models(steps: Sequence[dict[str, Any]]) -> list[str]:
    lines, missing = [], dict[str, None]()
    for found in _documents(steps, "models"):
        for row in found["models"]:
            for peer, time in row["times"].items():
                if "median_ms" in time:
                    shown = f"{time['median_ms']:.3f}"
                    lines.append(f"| {row['model']} | {row['batch']} | {peer} | {shown} |")
                else:
                    missing[f"- {peer}: {time['failed']}"] = None  # said once, however many rows
    if not lines and not missing:
        return []
    head = ["## Models", "", "| model | batch | peer | ms |", "| --- | --- | --- | --- |"]
    return [*head, *lines, "", *(["Not measured:", "", *missing, ""] if missing else [])]
