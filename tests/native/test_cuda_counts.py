"""The counts of the executed CUDA kernels: the bounds made of them, the page, and that they do not rise."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import cuda_counts
from benchmarks.cuda_bounds import Device, Work, bound
from benchmarks.cuda_counts import BEGIN, END, LAYERS, PAGE
from tools.ptx import build

FIGURES = json.loads(PAGE.with_suffix(".json").read_text())
DEVICE = Device("one", 90, multiprocessors=10, clock=1e9, bandwidth=1e9, cache=1000)


def launch(**counts: object) -> dict[str, object]:
    made = {"grid": [5, 3], "warps": {"integer": 0, "move": 0}, "fp32": 0, "sectors": 0, "turns": 0}
    return {**made, **counts}


def test_bounds() -> None:
    """15 blocks on 10 multiprocessors: one of them has two, of what all do."""
    work = Work(votes=1000, passes=1, arithmetic=4, footprint=800)
    found = bound(
        DEVICE, work,
        [launch(warps={"integer": 1500, "move": 10**9}), launch(fp32=150, turns=1500, sectors=100)],
    )  # fmt: skip
    assert math.isclose(found.issue, 2 * 100 / 4 / 1e9)
    assert math.isclose(found.fma, 2 * 10 / 4 / 1e9)
    assert math.isclose(found.shared, 2 * 100 / 1e9)
    assert math.isclose(found.dram, 800 / 1e9)  # no more than there is, and once
    assert math.isclose(found.total, found.issue + found.dram)
    assert math.isclose(found.roofline, 800 / 1e9)


def test_the_page_is_that_of_its_figures() -> None:
    tables = PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()
    assert tables == cuda_counts.markdown(FIGURES)


def test_both_ways_agree() -> None:
    """The bounds of the machine code, found by an earlier way, are at most a half more."""
    for row in FIGURES["bounds"]:
        if row["device"] in ("H100 SXM", "RTX 5090"):
            continue  # the planner divides their work otherwise now
        walked = FIGURES["walked"][f"{row['device']}: {row['layer']}"]
        assert 0.65 < row["total_ms"] / walked < 1.15, row


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_counts_do_not_rise() -> None:
    if reason := build.unavailable():
        pytest.skip(reason)
    device = next(d for d in cuda_counts.DEVICES if d.architecture == 87)
    names = [name for name in LAYERS if "B=1" in name and "128" not in name]
    made = cuda_counts.document([device], names)["devices"][device.name]["layers"]
    for name in names:
        for now, before in zip(
            made[name], FIGURES["devices"][device.name]["layers"][name], strict=True
        ):
            assert now["kernel"] == before["kernel"]
            assert now["registers"] <= max(128, before["registers"])
            for count in ("slots_per_vote", "sectors", "turns"):
                assert now[count] <= 1.02 * before[count], (name, now["kernel"], count)
