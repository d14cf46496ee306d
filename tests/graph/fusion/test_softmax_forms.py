"""A softmax is found however it was written; routing around it comes back as an operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from capsedge.graph.fusion.optimize_graph import optimize_model
from tests.graph.fusion.dynamic_writings import (
    CHILDREN,
    PARENTS,
    SIZE_IN,
    SIZE_OUT,
    Writing,
    squash_rooted,
)
from tests.graph.fusion.making import exported

Softmax = Callable[[Tensor], Tensor]


def quotient(b: Tensor) -> Tensor:
    e = b.exp()
    return e / e.sum(2, keepdim=True)


def shifted(b: Tensor) -> Tensor:
    e = (b - b.max(dim=2, keepdim=True).values).exp()
    return e / e.sum(2, keepdim=True)


def reciprocal(b: Tensor) -> Tensor:
    e = b.exp()
    return e * e.sum(2, keepdim=True).reciprocal()


def one_norm(b: Tensor) -> Tensor:
    return F.normalize(b.exp(), p=1.0, dim=2)


def logarithmic(b: Tensor) -> Tensor:
    return F.log_softmax(b, 2).exp()


def log_sum(b: Tensor) -> Tensor:
    return (b - torch.logsumexp(b, 2, keepdim=True)).exp()


def transposed(b: Tensor) -> Tensor:
    return b.transpose(1, 2).softmax(1).transpose(1, 2)


def flattened(b: Tensor) -> Tensor:
    return b.reshape(-1, PARENTS).softmax(-1).reshape(b.shape)


FORMS = [quotient, shifted, reciprocal, one_norm, logarithmic, log_sum, transposed, flattened]


class Formed(Writing):
    """Einsums, and a softmax of its own."""

    def __init__(self, softmax: Softmax) -> None:
        super().__init__()
        self.softmax = softmax

    def make(self) -> None:
        self.w = self.weight(CHILDREN, PARENTS, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("ijpq,biq->bijp", self.w, u)
        b = votes.new_zeros(votes.shape[:3])
        for i in range(3):
            v = squash_rooted(torch.einsum("bij,bijp->bjp", self.softmax(b), votes))
            if i < 2:
                b = b + torch.einsum("bijp,bjp->bij", votes, v)
        return v.norm(dim=-1)


@pytest.mark.sample(5)
@pytest.mark.parametrize("exporter", ["script", pytest.param("dynamo", marks=pytest.mark.slow)])
@pytest.mark.parametrize("softmax", FORMS, ids=lambda f: f.__name__)
def test_every_form(softmax: Softmax, exporter: str) -> None:
    x = torch.rand(3, CHILDREN, SIZE_IN, generator=torch.Generator().manual_seed(1))
    found = optimize_model(exported(Formed(softmax).eval(), x, exporter).SerializeToString())
    routing = [f for f in found.fusion.fused if f.operator == "DynamicRouting"]
    assert [f.parameters["iterations"] for f in routing] == ["3"], found.fusion
    assert not found.fusion.not_fused


@pytest.mark.parametrize("softmax", [logarithmic, transposed], ids=lambda f: f.__name__)
def test_before_opset_13(softmax: Softmax) -> None:
    """There a softmax runs over all axes from its own on; the converter puts views around it."""
    x = torch.rand(3, CHILDREN, SIZE_IN, generator=torch.Generator().manual_seed(1))
    old = exported(Formed(softmax).eval(), x, "script", opset=12)
    found = optimize_model(old.SerializeToString()).fusion
    assert [f.operator for f in found.fused if "iterations" in f.parameters] == ["DynamicRouting"]
