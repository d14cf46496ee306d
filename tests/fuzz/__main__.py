"""``python -m tests.fuzz``: run the fuzz targets, print what they reached, end with 1 if one failed.

``make fuzz MINUTES=10`` shares the minutes between all targets; as many run at once as there are cores.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz import folder_mutants, native_target, onnx_mutants, python_target, serve_target
from tests.fuzz.target import Budget, Outcome, Target

TARGETS: tuple[Target, ...] = (
    *native_target.TARGETS,
    *python_target.TARGETS,
    *onnx_mutants.TARGETS,
    *folder_mutants.TARGETS,
    *serve_target.TARGETS,
)


def main() -> int:
    """The command."""
    options = _options()
    chosen = [t for t in TARGETS if not options.target or t.name in options.target]
    if options.list:
        print("\n".join(t.name for t in chosen))
        return 0
    jobs = min(options.jobs, len(chosen)) or 1
    seconds = 60 * options.minutes * jobs / max(len(chosen), 1)
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [
            pool.submit(t.run, Budget(seconds, options.inputs, options.folder / t.name))
            for t in chosen
        ]
        failed = False
        for target, future in zip(chosen, waiting, strict=True):
            outcome = future.result()
            print(_line(target.name, outcome), flush=True)
            for failure in outcome.failures:
                failed = True
                print(f"  {failure}", flush=True)
    return int(failed)


def _line(name: str, outcome: Outcome) -> str:
    if outcome.skipped:
        return f"{name}: skipped: {outcome.skipped}"
    last, reached = outcome.coverage[-1] if outcome.coverage else (0, 0)
    verdict = "FAILED" if outcome.failures else "ok"
    return (
        f"{name}: {verdict}, {outcome.inputs:,} inputs in {outcome.seconds:.0f} s, coverage {reached:,} "
        f"since input {last:,}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--inputs", type=int, default=0, help="at most so many a target")
    parser.add_argument("--target", action="append", help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at once")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="what is kept")
    parser.add_argument("--list", action="store_true", help="print the targets' names")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
