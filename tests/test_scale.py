"""docs/explanation/scale.md reckons from the figures that docs/benchmarks/peers.md states."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

PEERS = (ROOT / "docs/benchmarks/peers.md").read_text()
SCALE = (ROOT / "docs/explanation/scale.md").read_text()
ROWS = re.findall(r"^\| `([a-z0-9-]+)` \| ([a-z ]+) \| (.+) \|$", SCALE, re.MULTILINE)
PER_SECOND = 1e9 / 86_400
PEAK, LOAD = 3, 0.7


def measured(model: str, file: str) -> tuple[float, int]:
    """Milliseconds of one core for an image, and the peak of the process in MiB: batch 16, 1 thread."""
    section = PEERS.split(f"\n## {model}, ")[1].split("\n## ")[0]
    table = section.split("Batch 16, 1 thread:")[1].split("\nBatch ")[0]
    row = re.search(rf"^\| (?:capsedge )?{file} \|(.*)\|$", table, re.MULTILINE)
    assert row is not None
    cells = row[1].split("|")
    return float(cells[0]) / 16, int(cells[4])


def test_every_model_is_reckoned_with() -> None:
    assert len(ROWS) == 9
    assert f"{PER_SECOND:,.0f} a second" in SCALE
    assert f"{PER_SECOND * PEAK:,.0f} images" in SCALE


@pytest.mark.parametrize(("model", "file", "cells"), ROWS)
def test_a_row(model: str, file: str, cells: str) -> None:
    milliseconds, mebibytes = measured(model, file)
    cores = PER_SECOND * PEAK * milliseconds / 1000 / LOAD
    hours = 1e9 * milliseconds / 3.6e6
    wanted = f"{milliseconds:.2f} | {hours:,.0f} | {cores:,.0f} | {cores * mebibytes / 1024:,.0f}"
    assert cells == wanted
