"""How much ``capsedge optimize`` speeds up a plain export, and whether that matches the direct export.

    python -m benchmarks.round_trip                      # a few of the registry's models
    python -m benchmarks.round_trip --models em-smallnorb --batch 1 --threads 1 --json

Each model has three files: a plain export, as PyTorch nodes without capsule operators; that file after
``capsedge optimize``; and a direct export by ``capsedge export``. The files take turns in one process, so
that other load on the machine affects all of them, and ratios are between minimum CPU times.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import capsedge
from benchmarks.common import machine
from capsedge.models import CapsuleModel, build, get_config
from tests.graph.fusion.making import exported
from tests.graph.fusion.plain import Scores, plain_operators

HANDFUL = (
    "digits-dynamic",
    "digits-em",
    "digits-attention",
    "capsnet-mnist",
    "dynamic-cifar10-simple",
    "attention-cifar10-simple",
    "em-smallnorb-small",
)
KINDS = ("plain", "optimized", "direct")
REPEATS = 3  # runs of a file in each turn
Run = Callable[[], Any]


def main() -> None:
    """Parse, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=HANDFUL)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="for the turns of each model")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, Path(folder), options))
        if not options.json:
            print(as_text(rows[-1]), flush=True)
    versions = {package: version(package) for package in ("capsedge", "onnxruntime", "torch")}
    where = {**machine(), "load": [round(v, 1) for v in os.getloadavg()], **versions}
    settings = {"batch": options.batch, "threads": options.threads}
    result = {**settings, "machine": where, "models": rows}
    print(json.dumps(result if options.json else {**settings, "machine": where}, indent=2))


def measure(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Make one model's three files, compare them and time them in turns."""
    torch.manual_seed(0)
    model = build(get_config(name)).eval()
    p = model.config.preprocessing
    images = torch.rand(options.batch, p.channels, p.height, p.width)
    files = {kind: folder / f"{kind}.onnx" for kind in KINDS}
    files["plain"].write_bytes(plain_export(model, images))
    start = time.process_time()
    report = capsedge.optimize(files["plain"], files["optimized"], measure=0)
    capsedge.export(model, files["direct"])
    runs = {kind: _run(path, images.numpy(), options.threads) for kind, path in files.items()}
    wanted = runs["direct"]()
    for kind, run in runs.items():
        np.testing.assert_allclose(run(), wanted, rtol=1e-3, atol=1e-4, err_msg=f"{name}, {kind}")
    times = in_turns(runs, options.seconds)
    least = {kind: 1e3 * min(series) for kind, series in times.items()}
    return {
        "model": name,
        "operators": [found["operator"] for found in report.fused],
        "not_fused": list(report.not_fused),
        "runs": len(times["plain"]),
        "least_cpu_ms": least,
        "over_direct": least["optimized"] / least["direct"],
        "gain": least["plain"] / least["optimized"],
        "minutes": (time.process_time() - start) / 60,
    }


def plain_export(model: CapsuleModel, images: torch.Tensor) -> bytes:
    """The model exported by PyTorch's own exporter, with its routing in plain nodes."""
    with plain_operators():
        return exported(Scores(model), images.expand(3, -1, -1, -1)).SerializeToString()


def _run(path: Path, images: np.ndarray, threads: int) -> Run:
    session = capsedge.load(path, threads=threads)
    return lambda: next(iter(session.run(images).values()))


def in_turns(runs: dict[str, Run], seconds: float) -> dict[str, list[float]]:
    """The CPU seconds of each run, measured for the given time and for at least 5 turns.

    A turn runs each file a few times, so that not every run finds the caches as another file left them, and
    every other turn goes in reverse order.
    """
    times: dict[str, list[float]] = {kind: [] for kind in runs}
    until = time.perf_counter() + seconds
    order = list(runs)
    while len(times["plain"]) < 5 * REPEATS or time.perf_counter() < until:
        for kind in order:
            for _ in range(REPEATS):
                before = time.process_time()
                runs[kind]()
                times[kind].append(time.process_time() - before)
        order.reverse()
    return times


def as_text(row: dict[str, Any]) -> str:
    """The row as a readable line."""
    shown = ", ".join(f"{kind} {row['least_cpu_ms'][kind]:.2f} ms" for kind in KINDS)
    return (
        f"{row['model']:<36} {shown}; optimized is {row['over_direct']:.2f} of direct, "
        f"{row['gain']:.1f} times faster than plain; {', '.join(row['operators'])}"
    )


if __name__ == "__main__":
    main()
