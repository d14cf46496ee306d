"""Run everything on a GPU that is available only for minutes, in one command.

    python -m tools.gpu --plan                 # steps and minutes; runs nothing
    python -m tools.gpu --pack build/gpu-pack --provider onnxruntime_gpu.whl  # to carry
    python -m tools.gpu                        # all of it; run again, it continues where it stopped
    python -m tools.gpu --stage latency --minutes 5
    python -m tools.gpu --device emulated      # a rehearsal on a CPU, with small sizes

Needs a driver, Python and numpy; the report lists anything else that a step lacks. No GPU setting is changed,
and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from capsedge.errors import CapsedgeError
from tests.native import cuda_library

from . import emulated, pack, report
from .running import State, run, workers
from .steps import STAGES, Step, steps


def main() -> int:
    """Exit code 1 if a step failed or was stopped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state", type=Path, default=Path("build/gpu"), metavar="DIR")
    parser.add_argument("--stage", action="append", choices=STAGES, help="only this one")
    parser.add_argument("--minutes", type=float, default=120, help="begin no step after so many")
    parser.add_argument("--device", choices=("gpu", "emulated"), default="gpu")
    parser.add_argument("--plan", action="store_true", help="print steps and minutes")
    parser.add_argument(
        "--pack", type=Path, metavar="DIR", help="write what must be carried there, in parts"
    )
    parser.add_argument(
        "--provider", type=Path, metavar="WHEEL", help="with --pack: onnxruntime-gpu, carried too"
    )
    options = parser.parse_args()
    chosen = steps(small=options.device == "emulated")
    stages = ["inventory", *(options.stage or STAGES)]
    wanted = [step for step in chosen if step.stage in stages]
    if options.plan:
        _plan(wanted)
        return 0
    if options.pack:
        return _pack(options.pack, options.provider)
    environment = emulated.environment() if options.device == "emulated" else carried()
    options.state.mkdir(parents=True, exist_ok=True)
    state, start = State(options.state.resolve()), time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - start:6.0f} s  {line}", file=sys.stderr, flush=True)

    run(state, wanted, 60 * options.minutes, environment, say)
    report.write(state, chosen, options.device == "emulated")
    print((state.folder / "report.md").read_text())
    verdicts = [(state.result(step) or {}).get("verdict") for step in wanted]
    return 1 if {"failed", "stopped"} & set(verdicts) else 0


def _pack(folder: Path, provider: Path | None) -> int:
    for part in pack.write(folder, provider):
        print(f"{part}: {part.stat().st_size / 1e6:.1f} MB")
    print(f"there: cat {folder.name}/* | tar xz && cd {pack.INSIDE} && python -m tools.gpu")
    return 0


def carried() -> dict[str, str]:
    """The environment that puts a carried ONNX Runtime before the machine's own, and names the kernels."""
    found: dict[str, str] = {}
    library, provider = cuda_library.gpu_library(), pack.ROOT / pack.PROVIDER
    if library is not None and cuda_library.KERNELS not in os.environ:
        found[cuda_library.KERNELS] = str(cuda_library.kernels_of(library))
    if provider.is_dir():
        others = os.environ.get("PYTHONPATH", "")
        found["PYTHONPATH"] = f"{provider}{others and os.pathsep}{others}"
    return found


def _plan(wanted: Sequence[Step]) -> None:
    for stage in dict.fromkeys(step.stage for step in wanted):
        mine = [step for step in wanted if step.stage == stage]
        together = 1 if mine[0].timed else workers()
        minutes = sum(step.seconds for step in mine) / together / 60
        needs = sorted(set().union(*(step.needs for step in mine)))
        print(
            f"{stage}: {len(mine)} steps, {minutes:.1f} minutes, needs {', '.join(needs) or 'nothing'}"
        )
        for step in mine:
            print(f"  {step.name}: {step.seconds:.0f} s, at most {step.limit:.0f} s")
    try:
        print(f"to be carried: {pack.size() / 1e6:.1f} MB before compression (--pack DIR)")
    except FileNotFoundError as error:
        print(f"to be carried: {error}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CapsedgeError, FileNotFoundError, FileExistsError) as error:
        sys.exit(str(error))
