"""Dynamic routing as published networks have it: what the exporter writes, and what the tools make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="pip install 'capsedge[export]'")

import torch
from torch import Tensor, nn

import capsedge
import capsedge.models.ops as ops
from capsedge.datasets import ImageSet
from capsedge.exporters.frozen_couplings import freeze
from capsedge.graph.ir import operator_nodes
from capsedge.runtime.backends.native_library import find_library
from capsedge.spec.operators import operator_of
from capsedge.verification.routing_probe import unroll_routing_calls
from tests.exports import arguments

CHILDREN, PARENTS, IN, OUT = 12, 3, 4, 5


class Routed(nn.Module):
    """Capsules of an image, and routing with some settings."""

    def __init__(self, weights: int = CHILDREN, vote_bias: bool = False, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem = nn.Conv2d(1, IN, 3, stride=3)
        self.weight = nn.Parameter(torch.randn(weights, PARENTS, OUT, IN))
        self.vote_bias = nn.Parameter(torch.randn(1, PARENTS, OUT)) if vote_bias else None
        self.settings = settings

    def forward(self, images: Tensor) -> Tensor:
        u = ops.squash(self.stem(images).flatten(2).transpose(1, 2))
        v, _ = ops.dynamic_routing(u, self.weight, vote_bias=self.vote_bias, **self.settings)
        return v


class OverVotes(nn.Module):
    """Votes of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.stem = nn.Conv2d(1, PARENTS * OUT, 3, stride=3)

    def forward(self, images: Tensor) -> Tensor:
        votes = self.stem(images).relu().flatten(2).transpose(1, 2)
        votes = votes.reshape(-1, CHILDREN, PARENTS, OUT)
        return ops.vote_routing(votes, softmax="children", update="replace")[0]


def written(module: nn.Module, path: Path, **how: Any) -> list[tuple[str, int]]:
    """The routing operators of the exported file, which the exporter has compared with PyTorch, and how
    many inputs each has.
    """
    capsedge.export(module.eval(), path, example=torch.rand(2, 1, 9, 12), **arguments(**how))
    found = [(operator_of(n.op_type), len(n.input)) for n in operator_nodes(onnx.load(path))]
    return [each for each in found if each[0] != "Squash"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings",
    [
        {"leaky": True},
        {"softmax": "children", "vote_bias": True, "elementwise": True},
        {"update": "replace", "normalize": True, "weights": 1, "agreement_scale": 0.5},
    ],
)
def test_variants_and_what_is_left_out(tmp_path: Path, settings: dict[str, Any]) -> None:
    module = Routed(**settings)
    inputs = 5 if settings.get("vote_bias") else 4
    assert written(module, tmp_path / "a.onnx") == [("DynamicRouting", inputs)]
    assert written(module, tmp_path / "b.onnx", ops="portable") == []
    x = np.random.default_rng(0).random((5, 1, 9, 12), np.float32)
    with torch.no_grad():
        wanted = module(torch.from_numpy(x)).numpy()
    for name in "ab":
        (found,) = capsedge.load(tmp_path / f"{name}.onnx").run(x).values()
        np.testing.assert_allclose(found, wanted, atol=3e-6)
    if find_library() is not None:
        assert capsedge.load(tmp_path / "a.onnx").backend.ops == "fused"


@pytest.mark.thorough
def test_votes_that_are_given(tmp_path: Path) -> None:
    assert written(OverVotes(), tmp_path / "a.onnx") == [("VoteRouting", 3)]


@pytest.mark.parametrize("module", [Routed(softmax="children"), OverVotes()])
def test_routing_errors_unroll_it(module: nn.Module) -> None:
    images = torch.rand(2, 1, 9, 12)
    (call,) = unroll_routing_calls(module.eval(), images)
    assert [s.iteration for s in call.steps] == [0, 1, 2, 3]
    with torch.no_grad():
        np.testing.assert_array_equal(call.steps[-1].pose, module(images).numpy())
    couplings = call.steps[-1].couplings
    assert couplings is not None
    np.testing.assert_allclose(couplings.sum(1), 1, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("module", [Routed(softmax="children", vote_bias=True), OverVotes()])
def test_couplings_freeze(module: nn.Module, tmp_path: Path) -> None:
    """One image alone has the couplings that are frozen: nothing changes for it."""
    path = tmp_path / "a.onnx"
    written(module, path)
    model = onnx.load(path)
    x = np.random.default_rng(1).random((1, 1, 9, 12), np.float32)
    (wanted,) = capsedge.load(path).run(x).values()
    (measured,) = freeze(model, ImageSet("one", x)).values()
    assert measured["deviation"] < 1e-6
    frozen = tmp_path / "frozen.onnx"
    frozen.write_bytes(model.SerializeToString())
    (found,) = capsedge.load(frozen).run(x).values()
    np.testing.assert_allclose(found, wanted, atol=3e-6)
    iterations = [a.i for n in operator_nodes(model) for a in n.attribute if a.name == "iterations"]
    assert iterations == [1]
