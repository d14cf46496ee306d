"""The time of one mask of a SegCaps: capsedge against the plain export in ONNX Runtime.

    python -m benchmarks.segmentation [--model segcaps] [--size 256] [--threads 1] [--seconds 20]

Takes four minutes, most of them for the exports. Weights are random, which does not affect speed. The
outputs are compared, then both files take turns in one run, each in its own process.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import capsedge
from capsedge.exporters.export_options import REWRITES
from capsedge.models import build
from capsedge.models.registry import get_config
from capsedge.runtime.profiling.compare import CAPSEDGE, Entrant, compare
from capsedge.runtime.profiling.worker import RunLimits, Specification

PLAIN = "plain, ONNX Runtime"


def milliseconds(
    model: str, size: int, threads: int, seconds: float, folder: Path
) -> dict[str, float]:
    """The median of each file, in milliseconds, for one image of ``size`` by ``size``."""
    torch.manual_seed(0)
    config = get_config(model)
    preprocessing = replace(config.preprocessing, height=size, width=size)
    network = build(replace(config, preprocessing=preprocessing)).eval()
    ours, plain = folder / "ours.onnx", folder / "plain.onnx"
    capsedge.export(network, ours)
    capsedge.export(network, plain, ops="portable", no_rewrite=tuple(REWRITES))
    entrants = [
        Entrant(PLAIN, Specification("ort", str(plain), threads=threads), model),
        Entrant(CAPSEDGE, Specification(CAPSEDGE, str(ours), threads=threads, ops="fused"), model),
    ]
    shape = (1, preprocessing.channels, size, size)
    feeds = {"images": np.random.default_rng(0).random(shape, np.float32)}
    found = compare(entrants, feeds, RunLimits(0.0, seconds, 5))
    return {e.name: float(e.latency.median) for e in found.entries if e.latency is not None}


def main() -> None:
    """Print a line for each file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="segcaps")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = milliseconds(
            options.model, options.size, options.threads, options.seconds, Path(folder)
        )
    for name, ms in times.items():
        print(f"{name:<20} {ms:10.1f} ms {times[PLAIN] / ms:6.2f}x")


if __name__ == "__main__":
    main()
