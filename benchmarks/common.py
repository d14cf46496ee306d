"""Shared by the benchmarks: the machine, versions and statistics."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def machine() -> dict[str, Any]:
    """A description of the machine that measures."""
    name = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return {
        "cpu": name,
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def statistics(seconds: Sequence[float]) -> dict[str, float]:
    """Median and spread of a series, in milliseconds."""
    values = 1e3 * np.asarray(seconds)
    low, median, high = np.percentile(values, (10, 50, 90))
    return {
        "median_ms": float(median),
        "p10_ms": float(low),
        "p90_ms": float(high),
        "min_ms": float(values.min()),
        "runs": len(values),
    }


def replace_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two markers of a page.

    Raises:
        ValueError: the page does not have the markers.
    """
    before, found, rest = path.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path} has no {begin} ... {end}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")
