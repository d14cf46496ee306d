"""Epsilons of 1e-8 and less: `export` keeps them; PyTorch's exporter does not (docs/how-to/optimize.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import capsedge

pytestmark = pytest.mark.thorough


class Logarithm(nn.Module):
    """The logarithm of sums that a blank image makes zero."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x.abs().sum(dim=(2, 3)) + self.epsilon)


@pytest.mark.parametrize("epsilon", [1e-8, 1e-20])
def test_export_keeps_every_epsilon(epsilon: float, tmp_path: Path) -> None:
    path = tmp_path / "log.onnx"
    capsedge.export(Logarithm(epsilon), path, example=torch.rand(2, 3, 4, 4))
    (found,) = capsedge.load(path).run(np.zeros((1, 3, 4, 4), np.float32)).values()
    np.testing.assert_allclose(found, np.log(np.float32(epsilon)), rtol=1e-6)


@pytest.mark.parametrize(("optimize", "kept"), [(True, False), (False, True)])
def test_what_pytorch_does(optimize: bool, kept: bool) -> None:
    """If this fails because PyTorch keeps the epsilon, the page must say so."""
    program = torch.onnx.export(
        Logarithm(1e-8), (torch.rand(2, 3, 4, 4),), dynamo=True, optimize=optimize, verbose=False
    )
    assert program is not None
    assert ("Add" in {node.op_type for node in program.model_proto.graph.node}) is kept
