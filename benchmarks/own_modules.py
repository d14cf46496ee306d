"""Plain PyTorch CapsNets, exported with one command, compared with the same network in ``capsedge.ops``.

    python -m benchmarks.own_modules [--width 256] [--types 32] [--seconds 3]

All files take turns in one run; the last column is the time relative to that of the operators' file.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

import capsedge
from benchmarks.plain_capsnets import STYLES, Guo, WithOps
from capsedge.runtime.profiling.compare import CAPSEDGE, Entrant, compare
from capsedge.runtime.profiling.worker import RunLimits, Specification


def ratios(width: int, types: int, seconds: float, folder: Path) -> dict[str, tuple[float, float]]:
    """Median in milliseconds, and its ratio to the operators' median, by the name of the style."""
    entrants = []
    for kind in (WithOps, *STYLES):
        torch.manual_seed(1)
        more = {"decodes": False} if kind is Guo else {}  # the others have no decoder
        path = folder / f"{kind.__name__}.onnx"
        report = capsedge.export(
            kind(width, types, **more).eval(), path, example=torch.rand(2, 1, 28, 28)
        )
        routed = sum(n for k, n in report.operators.items() if "DynamicRouting" in k)
        assert routed == 1, (kind.__name__, report.operators, report.fusion.not_fused)
        entrants.append(
            Entrant(kind.__name__, Specification(CAPSEDGE, str(path), "", threads=1), kind.__name__)
        )
    feeds = {"x": np.random.default_rng(0).random((1, 1, 28, 28), np.float32)}
    found = compare(entrants, feeds, RunLimits(0.3, seconds, 20))
    medians = {e.name: float(e.latency.median) for e in found.entries if e.latency is not None}
    return {name: (ms, ms / medians["WithOps"]) for name, ms in medians.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--types", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, (ms, share) in ratios(
            given.width, given.types, given.seconds, Path(folder)
        ).items():
            print(f"{name:<10} {ms:8.3f} ms {share:6.2f}")


if __name__ == "__main__":
    main()
