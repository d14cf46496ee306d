"""CPU time of ``export``, its proof included, against ``torch.onnx.export(dynamo=True)``.

    python -m benchmarks.export_time [--networks capsnet segcaps] [--json document.json]

The peer, `capsedge.export`, `capsedge.optimize` of the peer's file, and `capsedge.verify` of ours run in
turns, each in a fresh process with one thread, twice; the second run counts, when files are in the system's
cache. Seconds are user and system time of the process and its children. ``--busy`` exports with default
threads, while two other processes keep the processors busy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import machine

ROOT = Path(__file__).resolve().parents[1]
PEER, EXPORT, OPTIMIZE, VERIFY = "torch", "export", "optimize", "verify"
GOAL = 3.0
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


# --- In a process of its own ---


def work(network: str, step: str, folder: Path) -> dict[str, Any]:
    """One step; returns what there is to say about it besides its time."""
    import torch

    from benchmarks.export_networks import NETWORKS, checkpoint

    if os.environ.get(_ONE_THREAD[0]) == "1":
        torch.set_num_threads(1)
    plain, ours = folder / "torch.onnx", folder / "ours.onnx"
    torch.manual_seed(0)
    chosen = NETWORKS[network]
    module, example = chosen.make().eval(), chosen.input()
    if step == PEER:
        _plain_export(module, example, plain)
        return {}
    import capsedge
    from capsedge.models import CapsuleModel

    if step == EXPORT:
        report = capsedge.export(module, ours, example=example)
        return {"operators": _routing(report.operators)}
    if step == OPTIMIZE:
        found = capsedge.optimize(plain, folder / "optimized.onnx")
        return {"operators": dict(Counter(each["operator"] for each in found.fused))}
    reference = checkpoint(network) if isinstance(module, CapsuleModel) else module
    return {"passed": capsedge.verify(reference, ours).passed}


def _plain_export(module: Any, example: Any, path: Path) -> None:
    """The peer; operators of capsedge, which it does not know, are plain PyTorch for it."""
    import torch

    shapes = ({0: torch.export.Dim("batch", min=1)},)
    settings: dict[str, Any] = {
        "dynamo": True,
        "verbose": False,
        "external_data": False,
        "dynamic_shapes": shapes,
    }
    if "capsedge.models" not in sys.modules:  # importing it would count as the peer's time
        torch.onnx.export(module, (example,), path, **settings)
        return
    from tests.graph.fusion.plain import Scores, plain_operators

    with plain_operators():
        torch.onnx.export(Scores(module), (example,), path, **settings)


def _routing(operators: dict[str, int]) -> dict[str, int]:
    """The capsule operators among the nodes of a file."""
    return {name.split("::")[1]: count for name, count in operators.items() if "::" in name}


# --- In the process that measures ---


def seconds(network: str, step: str, folder: Path, threads: int | None = 1) -> dict[str, Any]:
    """CPU seconds of a step in a fresh process, and what it says; ``error`` where it fails."""
    words = [sys.executable, "-m", "benchmarks.export_time", "--work", network, step, str(folder)]
    environment = dict(os.environ)
    if threads is not None:
        environment |= dict.fromkeys(_ONE_THREAD, str(threads))
    before = os.times()
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    after = os.times()
    used = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"seconds": used, "error": done.stderr.strip()[-300:] or f"exit {done.returncode}"}
    return {"seconds": used, **json.loads(lines[-1])}


def measure(network: str, folder: Path, busy: bool) -> dict[str, Any]:
    """All steps of a network: of each, its second run."""
    steps = (PEER, EXPORT, OPTIMIZE, VERIFY)
    row: dict[str, Any] = {"network": network}
    for _ in range(2):
        row |= {step: seconds(network, step, folder) for step in steps}
    if busy:
        with busy_processors():
            row["busy"] = seconds(network, EXPORT, folder, threads=None)
    row["ratio"] = row[EXPORT]["seconds"] / row[PEER]["seconds"]
    return row


@contextmanager
def busy_processors(processes: int = 2) -> Iterator[None]:
    """Other processes that compute all the time."""
    running = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def as_text(row: dict[str, Any]) -> str:
    """A row of the table."""
    cells = [row["network"]]
    for step in (PEER, EXPORT, OPTIMIZE, VERIFY, "busy"):
        if step not in row:
            cells.append("-")
        else:
            failed = " (failed)" if "error" in row[step] else ""
            cells.append(f"{row[step]['seconds']:.1f}{failed}")
    cells.append(f"{row['ratio']:.1f}")
    fused = row[EXPORT].get("operators", {})
    cells.append(", ".join(f"{count} {name}" for name, count in sorted(fused.items())) or "-")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--busy", action="store_true", help="also export on busy processors")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the document there")
    parser.add_argument(
        "--work", nargs=3, metavar=("NAME", "STEP", "FOLDER"), help=argparse.SUPPRESS
    )
    given = parser.parse_args()
    if given.work:
        network, step, folder = given.work
        print(json.dumps(work(network, step, Path(folder))))
        return
    from benchmarks.export_networks import NETWORKS

    facts, rows = machine(), []
    print(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}; CPU seconds\n")
    print(
        "| network | torch | export | optimize | verify | export, busy | export / torch | operators |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for network in given.networks or NETWORKS:
        with tempfile.TemporaryDirectory() as name:
            rows.append(measure(network, Path(name), given.busy))
        print(as_text(rows[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
