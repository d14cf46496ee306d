"""Conformance cases through ONNX Runtime's own CUDA provider on executed PTX, as a table.

    python -m tests.native.ptx.provider_table [--sample] [--filter '^EMRouting'] [--dtype float16]

A row for each operator and storage type: cases, the largest difference from the oracle (divided by the
output's largest value, where that is above 1), and the same in units of the tolerance. Exit code 1 if a case
fails.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

import numpy as np

from tests.conformance.cases import CASES, Case, make
from tests.conformance.modes import alone
from tests.conformance.provider import CudaProvider, executor
from tests.conformance.selection import selected
from tests.native.cuda_library import OPERATORS

DTYPES = ("float32", "float16")


def row(backend: CudaProvider, cases: Sequence[Case], dtype: str) -> tuple[float, float, list[str]]:
    """The largest difference, the largest excess over the tolerance, and what failed."""
    worst, excess, failed = 0.0, 0.0, []
    for case in cases:
        example = make(case, dtype)
        try:
            outputs = backend.prepare(case, example.inputs, dtype)()
        except Exception as error:  # what a case raises is its result
            failed.append(f"{case}: {error}")
            continue
        over = 0.0
        for name, found in outputs.items():
            wanted = example.wanted[name]
            if found.shape != wanted.shape or found.dtype != np.dtype(dtype):
                failed.append(f"{case}: output '{name}' is {found.dtype} {list(found.shape)}")
                continue
            difference = np.abs(found.astype(np.float64) - wanted)
            scale = max(1.0, float(np.abs(wanted).max(initial=0)))
            worst = max(worst, float(difference.max(initial=0)) / scale)
            over = max(over, example.tolerances[name].excess(found, wanted))
        excess = max(excess, over)
        if not over <= 1:
            failed.append(
                f"{case}: {over:.3g} times the tolerance\n  {alone('test', backend.name, case, dtype)}"
            )
    return worst, excess, failed


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--sample", action="store_true", help="a few cases that have every trait of all"
    )
    parser.add_argument("--filter", default="", help="regular expression over the printed case")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="default: both")
    options = parser.parse_args()
    backend, own = CudaProvider(), executor()
    print("| operator | type | cases | largest difference | of the tolerance | launches |")
    print("|---|---|---|---|---|---|")
    failed: list[str] = []
    for operator in OPERATORS:
        for dtype in options.dtype or DTYPES:
            cases = [
                case
                for case in CASES
                if case.operator == operator and not case.heavy
                and not backend.unsupported(case, dtype) and re.search(options.filter, str(case))
            ]  # fmt: skip
            if not cases:
                continue
            cases = selected(cases) if options.sample else cases
            own.reset()
            worst, excess, wrong = row(backend, cases, dtype)
            launches = len(own.launches())
            cells = (operator, dtype, len(cases), f"{worst:.2g}", f"{excess:.2g}", launches)
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            if not launches:
                wrong.append(f"{operator} {dtype}: no kernel ran")
            failed += wrong
    print(f"{len(failed)} failed")
    print("\n".join(failed[:20]), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
