"""Run models on runtimes, one process each, and collect the rows of a submission."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.capsbench import rules
from benchmarks.capsbench.files import DATA, PRECISIONS, RUNTIMES, Files
from benchmarks.portability import interpreter
from capsedge.errors import CapsedgeError
from capsedge.runtime.files.writing import sha256

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        models, runtimes, precisions, scenarios: what to measure, by name.
        data: folders, by name of the data set.
        checkpoints: files, by name of the model.
        environments: folder with a virtual environment per runtime; None for this one.
        threads: number of threads for each runtime.
        seconds: minimum duration of a performance run.
        images: maximum number of images; None for all.
    """

    models: Sequence[str]
    runtimes: Sequence[str]
    precisions: Sequence[str]
    scenarios: Sequence[str]
    data: dict[str, Path]
    checkpoints: dict[str, Path]
    environments: Path | None
    threads: int
    seconds: float
    images: int | None


def run(plan: Plan, note: Callable[[str], None]) -> Iterator[list[dict[str, Any]]]:
    """The rows for each model, runtime and precision: one per scenario, or one with an error."""
    for model in plan.models:
        with tempfile.TemporaryDirectory() as folder:
            note(f"{model}: exporting, answers of PyTorch")
            data = plan.data.get(DATA[model])
            files = Files(model, plan.checkpoints.get(model), data, Path(folder), plan.images)
            wanted = files.reference()
            for precision in PRECISIONS:
                for runtime in plan.runtimes:
                    takes = precision == "fp32" or RUNTIMES[runtime].int8
                    if precision not in plan.precisions or not takes:
                        continue
                    rows = _measure(plan, model, runtime, precision, files, wanted)
                    for row in rows:
                        note(f"{model}, {runtime}, {precision}: {_summary(row)}")
                    yield rows


def _measure(
    plan: Plan, model: str, runtime: str, precision: str, files: Files, wanted: NDArray[np.float32]
) -> list[dict[str, Any]]:
    about: dict[str, Any] = {
        "model": model,
        "trained": files.trained,
        "weights_sha256": sha256(files.checkpoint),
        "iterations": files.model.config.iterations,
        "runtime": runtime,
        "precision": precision,
        "threads": plan.threads,
    }
    try:
        file = files.of(runtime, precision)
    except CapsedgeError as error:
        return [{**about, "error": f"no file: {error}"}]
    about |= {"file_sha256": sha256(file), "bytes": file.stat().st_size}
    with tempfile.TemporaryDirectory() as folder:
        said = list(_ask(plan, runtime, file, files, wanted.shape[1], Path(folder)))
        for document in said:
            if "version" in document:
                about |= document
            if "answered" in document:
                scores = np.load(Path(folder) / "scores.npy")
                about |= _accuracy(scores, wanted, files.labels if files.trained else None)
    # A runtime that fails in its second scenario still has the row for the first.
    return [{**about, **d} for d in said if "scenario" in d or "error" in d]


def _accuracy(
    scores: NDArray[np.float32], wanted: NDArray[np.float32], labels: NDArray[Any] | None
) -> dict[str, Any]:
    found = scores.argmax(1)
    right = None if labels is None else float((found == labels).mean())
    agreement = float((found == wanted.argmax(1)).mean())
    return {"test_images": len(scores), "accuracy": right, "agreement": agreement}


def _ask(
    plan: Plan, runtime: str, file: Path, files: Files, classes: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """The worker's answer; a crash is an error like any other."""
    wanted = {
        "runtime": runtime,
        "model": str(file),
        "inputs": str(files.inputs),
        "outputs": files.outputs,
        "classes": classes,
        "free": RUNTIMES[runtime].free,
        "threads": plan.threads,
        "seconds": plan.seconds,
        "warm_up": min(rules.WARM_UP, plan.seconds),
        "scenarios": list(plan.scenarios),
        "folder": str(folder),
    }
    python = interpreter(runtime, plan.environments)
    command = [python, "-m", "benchmarks.capsbench.worker", json.dumps(wanted)]
    documents, problem = said_by(command, rules.LIMIT)
    yield from documents
    if problem:
        yield {"error": problem}


def said_by(command: Sequence[str], limit: float) -> tuple[list[dict[str, Any]], str]:
    """The JSON documents that a worker prints, one per line, and what went wrong; empty if nothing did."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
            # another interpreter must not see this one's packages
            env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")},
        )
    except subprocess.TimeoutExpired as error:
        printed: Any = error.stdout or b""  # bytes, even if text was requested
        text = printed if isinstance(printed, str) else printed.decode(errors="replace")
        return _documents(text), f"no answer within {limit:g} s"
    except OSError as error:
        return [], f"cannot start {command[0]}: {error.strerror}"
    found = _documents(done.stdout)
    if found and not done.returncode:
        return found, ""
    last = "".join(done.stderr.strip().splitlines()[-1:]).strip()[:300]
    return found, f"ended with code {done.returncode}" + (f": {last}" if last else "")


def _documents(printed: str) -> list[dict[str, Any]]:
    """The documents among the lines; runtimes print too, and truncated lines are skipped."""
    lines = [line for line in printed.splitlines() if line.startswith("{") and line.endswith("}")]
    return [json.loads(line) for line in lines]


def _summary(row: dict[str, Any]) -> str:
    if "error" in row:
        return str(row["error"])
    validity = "VALID" if row["valid"] else f"INVALID ({row['reason']})"
    value = (
        f"{1e-6 * row['result']:.3f} ms" if row["unit"] == "ns" else f"{row['result']:.1f} images/s"
    )
    return f"{row['scenario']} {value}, {validity}"


def log(text: str) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)
