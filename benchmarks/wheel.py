"""A wheel's kernels against those of a local build: the bundled models, one thread, in one process.

    python -m benchmarks.wheel dist/capsedge-*_x86_64.whl

Both operator libraries are loaded, and their sessions take turns. A ratio is the speed of the wheel over the
speed of the local build, in processor time: the median over rounds, with the 10th and 90th percentile. The
exit code is 1 if one is below 0.9; `python -m tools.release` then refuses the release.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import capsedge
from benchmarks.common import machine, statistics
from capsedge.runtime.backends import native_library
from capsedge.runtime.profiling.profile import random_inputs
from capsedge.runtime.session.session import Session
from capsedge.runtime.zoo import MODELS
from tools import wheels

LEAST = 0.9
BATCHES = (1, 8)


def opened(model: str, library: Path) -> Session:
    """A session of a bundled model whose operators are those of a library."""
    with patch.dict(os.environ, {native_library.VARIABLE: str(library)}):
        return capsedge.load(model, threads=1, ops="fused")


def levels(library: Path) -> str:
    """The SIMD levels of a library's kernels on this machine, separated by commas."""
    return ",".join(native_library.levels_of(library))


def timed(session: Session, arrays: Any, calls: int) -> float:
    """Processor seconds of one call, as the mean of several; with one thread, all is done in this one."""
    start = time.thread_time()
    for _ in range(calls):
        session.run(arrays)
    return (time.thread_time() - start) / calls


def compare(
    model: str, batch: int, local: Path, wheel: Path, rounds: int, seconds: float
) -> dict[str, Any]:
    """One row: both libraries in every round, each first in half of them."""
    with opened(model, local) as first, opened(model, wheel) as second:
        arrays = random_inputs(first, batch)
        slower = max(timed(session, arrays, 3) for session in (first, second))
        calls = max(1, int(seconds / slower))
        samples: dict[Session, list[float]] = {first: [], second: []}
        for turn in range(rounds):
            for session in (first, second) if turn % 2 else (second, first):
                samples[session].append(timed(session, arrays, calls))
        ratios = np.array(samples[first]) / np.array(samples[second])
        low, median, high = np.percentile(ratios, (10, 50, 90))
        return {
            "model": model,
            "batch": batch,
            "local": statistics(samples[first]),
            "wheel": statistics(samples[second]),
            "ratio": float(median),
            "ratio_p10": float(low),
            "ratio_p90": float(high),
        }


def measure(
    wheel: Path, models: Sequence[str], batches: Sequence[int], rounds: int, seconds: float
) -> dict[str, Any]:
    """The document: the machine, the levels of both libraries, and a row for every model and batch."""
    local = wheels.local_library()
    with tempfile.TemporaryDirectory(prefix="capsedge-wheel-") as name:
        packed = wheels.library_in(wheel, Path(name))
        return {
            "machine": machine(),
            "wheel": wheel.name,
            "levels": {"local": levels(local), "wheel": levels(packed)},
            "rows": [
                compare(model, batch, local, packed, rounds, seconds)
                for model in models
                for batch in batches
            ],
        }


def render(document: dict[str, Any]) -> str:
    """The document as text, with a line for every row."""
    of = document["levels"]
    lines = [
        f"{document['machine']['cpu']}, one thread; {document['wheel']}",
        f"levels: local {of['local']}; wheel {of['wheel']}",
    ]
    for row in document["rows"]:
        lines.append(
            f"{row['model']:17} batch {row['batch']}: local {row['local']['median_ms']:.3f} ms, "
            f"wheel {row['wheel']['median_ms']:.3f} ms, ratio {row['ratio']:.2f} "
            f"({row['ratio_p10']:.2f}-{row['ratio_p90']:.2f})"
        )
    return "\n".join(lines)


def too_slow(document: dict[str, Any]) -> list[str]:
    """The rows below the least ratio, in words."""
    return [
        f"{row['model']} at batch {row['batch']} runs at {row['ratio']:.2f} of the local build's speed; "
        f"at least {LEAST} is wanted"
        for row in document["rows"]
        if row["ratio"] < LEAST
    ]


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wheel", type=Path, help="a wheel for this machine's processor")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.02, help="of one library in one round")
    options = parser.parse_args()
    document = measure(
        options.wheel, options.models, options.batches, options.rounds, options.seconds
    )
    print(json.dumps(document, indent=2) if options.json else render(document))
    for line in too_slow(document):
        print(f"error: {line}", file=sys.stderr)
    return 1 if too_slow(document) else 0


if __name__ == "__main__":
    sys.exit(main())
