"""Run steps, each in its own process; every result is a file, written immediately."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsedge.runtime.files.writing import write_bytes

from .steps import OUTPUT, Step

ROOT = Path(__file__).resolve().parents[2]
TAIL = 6000  # characters of a step's output that are kept
MISSING = 3  # exit code of a step that lacks a tool
Result = dict[str, Any]


@dataclass(frozen=True)
class State:
    """The folder of the results: ``NAME.json`` for each step, and ``NAME.result.json`` if it writes one."""

    folder: Path

    def result(self, step: Step) -> Result | None:
        """The result of an earlier run; None if the step still has to run."""
        path = self.folder / f"{step.name}.json"
        if not path.is_file():
            return None
        found: Result = json.loads(path.read_text())
        return found

    def output(self, step: Step) -> Path:
        """The file of the step's own document."""
        return self.folder / f"{step.name}.result.json"

    def save(self, step: Step, result: Result) -> None:
        """Write a result, completely or not at all."""
        text = json.dumps(result, indent=1) + "\n"
        write_bytes(self.folder / f"{step.name}.json", text.encode())

    def document(self, step: Step) -> Any:
        """The step's document; None if it wrote nothing, or was stopped first."""
        path = self.output(step)
        return json.loads(path.read_text()) if path.is_file() else None


def workers() -> int:
    """How many processes run at once if none measures time."""
    return max(1, min(6, (os.cpu_count() or 2) // 2))


def run(
    state: State, steps: Sequence[Step], seconds: float, environment: dict[str, str],
    report: Callable[[str], None],
) -> None:  # fmt: skip
    """Run the remaining steps until the time is used up.

    Steps that measure time run alone; of the others, half as many as there are cores run at once.

    Args:
        seconds: time limit: no new step begins after it, and a running step is stopped there.
        environment: variables of the processes.
        report: called with a line for each step.
    """
    end = time.monotonic() + seconds

    def one(step: Step) -> None:
        if state.result(step) is not None:
            return
        left = end - time.monotonic()
        if left <= 0:
            return
        result = _run(step, state, min(step.limit, left), environment)
        if result["verdict"] == "stopped" and left < step.limit:
            report(f"{step.name}: no time left")  # to be run again
            return
        state.save(step, result)
        report(
            f"{step.name}: {result['verdict']} ({result['seconds']:.1f} s) {result['why']}".rstrip()
        )

    for stage in dict.fromkeys(step.stage for step in steps):
        mine = [step for step in steps if step.stage == stage]
        with ThreadPoolExecutor(workers()) as pool:
            list(pool.map(one, [step for step in mine if not step.timed]))
        for step in mine:
            if step.timed:
                one(step)


def _run(step: Step, state: State, limit: float, environment: dict[str, str]) -> Result:
    missing = _missing(step, state)
    if missing:
        return {"verdict": "not available", "why": missing, "seconds": 0.0, "output": ""}
    words = [str(state.output(step)) if word == OUTPUT else word for word in step.command]
    start = time.monotonic()
    process = subprocess.Popen(
        words, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=limit)
        verdict = {0: "passed", MISSING: "not available"}.get(process.returncode, "failed")
        why = "" if verdict == "passed" else _last_line(text)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        verdict, why = "stopped", f"not finished after {limit:.0f} s"
    return {
        "verdict": verdict,
        "why": why,
        "seconds": time.monotonic() - start,
        "command": " ".join(Path(w).name if w == sys.executable else w for w in words),
        "output": text[-TAIL:],
    }


def _missing(step: Step, state: State) -> str:
    """The first requirement that the inventory did not find."""
    path = state.folder / "inventory.result.json"
    if not step.needs or not path.is_file():
        return ""
    found = json.loads(path.read_text())["found"]
    return next((found[need] for need in step.needs if found.get(need)), "")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"
