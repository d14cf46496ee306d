"""Imported families as C: from an author's weights to a compiled network with the results of its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import capsedge
from tests.exporters.c.compiled import Compiled
from tests.importers import (
    test_deep_stems,
    test_deepcaps,
    test_families,
    test_fsanet,
    test_matrix_and_attention,
)
from tests.importers.importing import import_with

Case = tuple[Callable[[], nn.Module], dict[str, Any]]


def _cases() -> dict[str, Case]:
    """One network of each family, the first of its tests."""
    found: dict[str, Case] = {}
    for family, make, answers in test_families.CASES.values():
        found.setdefault(family, (make, answers))
    for family, make, answers, _ in test_matrix_and_attention.CASES.values():
        found.setdefault(family, (make, answers))
    for family, make, answers, _ in test_deep_stems.CASES.values():
        found.setdefault(family, (make, answers))
    found["fsanet"] = (
        lambda: test_fsanet.network("variance", 99.0),
        {"variant": "vietlinhtspt-2020"},
    )
    for hopeful, family in test_deepcaps.FAMILIES.items():
        found[family] = (
            lambda hopeful=hopeful: test_deepcaps.port(hopeful),
            {"preprocessing": test_deepcaps.SIZE},
        )
    return found


CASES = _cases()


@pytest.mark.thorough
@pytest.mark.parametrize("family", CASES)
def test_every_family_builds(family: str, tmp_path: Path) -> None:
    make, answers = CASES[family]
    torch.manual_seed(5)
    module = make().eval()
    state = module.authors() if hasattr(module, "authors") else module.state_dict()
    torch.save(state, tmp_path / "m.pt")
    report = import_with(tmp_path / "m.pt", tmp_path / "c.safetensors", **answers)
    assert report.origin.family == family
    model = capsedge.load_checkpoint(tmp_path / "c.safetensors")
    file = tmp_path / "m.onnx"
    capsedge.export(model, file)
    net = Compiled(file, tmp_path / "net")
    session = capsedge.load(file)
    x = np.random.default_rng(0).random(net.description["inputs"][0]["shape"], np.float32)
    wanted = session.run(x)
    for name, value in net.run(x).items():
        scale = np.abs(wanted[name]).max()
        assert scale > 0
        assert np.abs(value - wanted[name]).max() <= 1e-4 * scale, name
