"""Writings of Efficient-CapsNet's self-attention routing in plain PyTorch, and what only resembles it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CHILDREN, SIZE_IN, CLASSES, POSE = 7, 4, 5, 6


class Agreements(nn.Module):
    """The agreements as a matrix for each parent, of which rows are summed; weight and bias parents first."""

    scale = POSE**-0.5

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.primary = nn.Linear(3, CHILDREN * SIZE_IN)
        self.weight = nn.Parameter(torch.randn(CLASSES, CHILDREN, SIZE_IN, POSE))
        self.bias = nn.Parameter(0.2 * torch.randn(CLASSES, CHILDREN, 1))

    @staticmethod
    def example(batch: int) -> Tensor:
        return torch.randn(batch, 3, generator=torch.Generator().manual_seed(batch))

    def forward(self, x: Tensor) -> Tensor:
        u = self.squash(self.primary(x).reshape(-1, CHILDREN, SIZE_IN))
        return self.squash(self.route(torch.einsum("nji,kjiz->nkjz", u, self.weight)))

    def route(self, votes: Tensor) -> Tensor:
        """``[n, j, i, p]`` to the weighted sums."""
        c = torch.einsum("nkid,nkjd->nki", votes, votes)[..., None]
        c = torch.softmax(c * self.scale, dim=1) + self.bias
        return (votes * c).sum(-2)

    def squash(self, s: Tensor) -> Tensor:
        n = s.norm(dim=-1, keepdim=True)
        return (1 - 1 / (torch.exp(n) + 1e-20)) * (s / (n + 1e-20))


class Total(Agreements):
    """The sum of all votes first; children before parents; no bias; another epsilon."""

    def route(self, votes: Tensor) -> Tensor:
        v = votes.transpose(1, 2)  # [n, i, j, p]
        c = torch.softmax((v * v.sum(1, keepdim=True)).sum(-1) / POSE**0.5, dim=-1)
        return (c[..., None] * v).sum(1)

    def squash(self, s: Tensor) -> Tensor:
        n = torch.sqrt((s * s).sum(-1, keepdim=True))
        return (1 - torch.exp(-n)) * s / (n + 1e-6)


class Unbiased(Agreements):
    """Children and classes as in the paper, and no bias: a class may receive almost nothing."""

    scale = 16**-0.5

    def __init__(self) -> None:
        super().__init__()
        self.primary = nn.Linear(3, 16 * SIZE_IN)
        self.weight = nn.Parameter(torch.randn(10, 16, SIZE_IN, 16))
        self.bias = nn.Parameter(torch.zeros(10, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        u = self.squash(self.primary(x).reshape(-1, 16, SIZE_IN))
        return self.squash(self.route(torch.einsum("nji,kjiz->nkjz", u, self.weight)))


class Unscaled(Agreements):
    """The agreements as they are."""

    scale = 1.0


class OverChildren(Agreements):
    """Children compete instead of parents."""

    def route(self, votes: Tensor) -> Tensor:
        c = torch.softmax((votes * votes.sum(2, keepdim=True)).sum(-1) * self.scale, dim=2)
        return (votes * c[..., None]).sum(-2)


class OtherSquash(Agreements):
    """The squash of the first capsule networks."""

    def squash(self, s: Tensor) -> Tensor:
        square = (s * s).sum(-1, keepdim=True)
        return square / (1 + square) * s / torch.sqrt(square + 1e-8)


class BiasInside(Agreements):
    """The bias among the logits."""

    def route(self, votes: Tensor) -> Tensor:
        c = torch.einsum("nkid,nkjd->nki", votes, votes)[..., None]
        return (votes * torch.softmax(c * self.scale + self.bias, dim=1)).sum(-2)
