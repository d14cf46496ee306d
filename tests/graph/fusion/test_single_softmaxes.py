"""A softmax over one element, as of a layer with a single parent, is 1: it and its logits go."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch
from torch import Tensor, nn

from capsedge.graph.fusion.constant_shapes import without_single_softmaxes
from capsedge.graph.fusion.execution import session_of
from capsedge.graph.fusion.values import Values
from tests.graph.fusion.making import exported


class OneParent(nn.Module):
    """Dynamic routing to one parent."""

    def __init__(self, parents: int = 1, einsum: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(6, parents, 4, 3, generator=generator))
        self.parents, self.einsum = parents, einsum

    def forward(self, u: Tensor) -> Tensor:
        votes = (self.weight @ u[:, :, None, :, None]).squeeze(-1)
        b = torch.zeros(u.shape[0], 6, self.parents, 1)
        for t in range(3):
            c = b.softmax(2)
            s = torch.einsum("nijx,nijp->njp", c, votes) if self.einsum else (c * votes).sum(1)
            v = s / (1 + s.norm(dim=-1, keepdim=True))
            if t < 2:
                b = b + (votes * v[:, None]).sum(-1, keepdim=True)
        return v


def reduced(module: nn.Module, free: bool = True, batch: int = 2) -> tuple[Counter[str], int]:
    """Operators left, and the number of softmaxes; the results must stay the same."""
    model = exported(module, torch.rand(batch, 6, 3), free=free)
    new, count = without_single_softmaxes(Values(model))
    for images in (1, 2, 5) if free else (batch,):
        x = {"x": torch.randn(images, 6, 3).numpy()}
        (before,), (after,) = (session_of(m).run(None, x) for m in (model, new))
        torch.testing.assert_close(torch.from_numpy(after), torch.from_numpy(before))
    return Counter(n.op_type for n in new.graph.node), count


def test_products_with_the_couplings_of_one_parent_go() -> None:
    left, count = reduced(OneParent())
    assert count == 3
    assert not left["Softmax"]
    assert left["Add"] == 1, "of the squash; none of logits"


def test_other_nodes_read_the_first_softmax_of_the_shape() -> None:
    left, count = reduced(OneParent(einsum=True))
    assert count == 3
    assert left["Softmax"] == 1
    assert left["Add"] == 1


def test_a_fixed_batch_of_one() -> None:
    left, _ = reduced(OneParent(), free=False, batch=1)
    assert not left["Softmax"]


def test_several_parents_and_the_batch_axis_stay() -> None:
    assert reduced(OneParent(parents=2))[1] == 0

    class AcrossImages(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(0) * x

    assert reduced(AcrossImages(), free=False, batch=1)[1] == 0
    assert reduced(AcrossImages())[1] == 0
