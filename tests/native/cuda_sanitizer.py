"""compute-sanitizer over chosen cases: ``python -m tests.native.cuda_sanitizer TOOL SCHEME``.

Each tensor is an allocation of its own, so memcheck sees where it ends; for initcheck, outputs and workspace
are left unwritten. The cases are small ones of every operator and both precisions.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conformance import modes
from tests.conformance.cases import ON_GPU, Case
from tests.conformance.cuda import CudaKernels
from tests.native import cuda_library

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SECONDS = 300
CASES_EACH = 3  # of an operator and a precision
FOUND = 9  # compute-sanitizer's exit code where it finds something


def find() -> str | None:
    """Where compute-sanitizer is; None if it is not installed."""
    return shutil.which("compute-sanitizer", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")


def chosen(operator: str) -> Sequence[Case]:
    """Small cases of different sizes, the first with more than one image."""
    cases = [c for c in ON_GPU if c.operator == operator and not c.heavy and c.kind == "normal"]
    cases = [c for c in cases if c.dims.get("N", 1) > 0]
    cases.sort(key=lambda case: case.dims.get("N", 1) < 2)
    return cases[:: max(1, len(cases) // CASES_EACH)][:CASES_EACH]


def run(sanitizer: str, tool: str, scheme: str, seconds: float = SECONDS) -> str:
    """The chosen cases in a process under one tool.

    Returns:
        What is wrong: the tool's report, a failed case, or that time ran out; empty if nothing.
    """
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND)]
    command += [sys.executable, "-m", "tests.native.cuda_sanitizer", "--inside", tool, scheme]
    fill = {cuda_library.FILL: "0"} if tool == "initcheck" else {}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **fill}, capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not finished after {seconds:.0f} s"
    return "" if done.returncode == 0 else done.stdout[-4000:] + done.stderr[-2000:]


def inside(scheme: str) -> int:
    """Runs in the process that is watched."""
    backend, ran, failed = CudaKernels(scheme), 0, []
    for operator in cuda_library.OPERATORS:
        for case in chosen(operator):
            for dtype in ("float32", "float16"):
                if dtype not in case.dtypes or backend.unsupported(case, dtype):
                    continue
                row = modes.check(backend, case, dtype)
                ran += row.verdict == "ok"
                if row.verdict != "ok":
                    failed.append(str(row))
    print(f"{ran} cases ran", *failed, sep="\n")
    return 1 if failed or not ran else 0


def main() -> int:
    """Exit code 0 if nothing was found, 1 if something was, 3 where the tool is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("scheme", choices=list(cuda_library.SCHEMES))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    if options.inside:
        return inside(options.scheme)
    sanitizer = find()
    if sanitizer is None:
        print("compute-sanitizer is not installed: it comes with the CUDA toolkit")
        return 3
    problem = run(sanitizer, options.tool, options.scheme, options.seconds)
    print(problem or "nothing found")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
