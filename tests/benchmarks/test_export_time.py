"""The networks whose export is timed, and the steps that are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.export_networks import NETWORKS
from benchmarks.export_time import EXPORT, OPTIMIZE, PEER, VERIFY, as_text, seconds


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_takes_its_example(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]
    with torch.no_grad():
        found = network.make().eval()(network.input())
    tensors = torch.utils._pytree.tree_leaves(found)
    assert tensors
    for each in tensors:
        assert len(each) == network.example[0]
        assert torch.isfinite(each).all()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_step_is_timed(tmp_path: Path) -> None:
    row = {step: seconds("capsnet", step, tmp_path) for step in (PEER, EXPORT, OPTIMIZE, VERIFY)}
    assert not [step for step, found in row.items() if "error" in found], row
    assert all(found["seconds"] > 1 for found in row.values())
    assert (
        row[EXPORT]["operators"] == row[OPTIMIZE]["operators"] == {"DynamicRouting": 1, "Squash": 1}
    )
    assert "1 DynamicRouting, 1 Squash |" in as_text({"network": "capsnet", "ratio": 3.0, **row})


@pytest.mark.thorough
def test_a_step_that_fails_says_why(tmp_path: Path) -> None:
    found = seconds("no-such-network", PEER, tmp_path)
    assert "no-such-network" in found["error"]
