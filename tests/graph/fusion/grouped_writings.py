"""Writings of dynamic routing in which more shares a softmax or a squash than in the paper, in plain PyTorch.

One logit for each element of a pose, softmax over children or parents; a softmax over parents and positions
together, with a squash of each pose or of all positions' poses; a softmax over children and parents together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.graph.fusion.dynamic_writings import (
    CHILDREN,
    PARENTS,
    SIZE_IN,
    SIZE_OUT,
    Writing,
    squash_added,
    squash_bare,
)

KINDS, SIDE = 3, 4  # of the capsules of a map


class Elements(Writing):
    """One logit for each element, softmax over the children, no epsilon; parents first, two iterations."""

    passes = 2

    def make(self) -> None:
        self.w = self.weight(PARENTS, CHILDREN, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = (self.w[:, None] @ u[None, :, :, :, None]).transpose(1, 0)
        b = torch.zeros(*votes.size())
        for t in range(self.passes):
            c = F.softmax(b, dim=2)
            v = squash_bare((c * votes).sum(dim=2, keepdim=True), dim=3)
            if t != self.passes - 1:
                b = b + votes * v
        return v.squeeze(2).squeeze(-1).transpose(2, 1)


class ElementsOverParents(Writing):
    """One logit for each element, softmax over the parents, a learned start, an epsilon added to the norm."""

    def make(self) -> None:
        self.w = self.weight(CHILDREN, PARENTS, SIZE_OUT, SIZE_IN)
        self.b = self.weight(1, CHILDREN, PARENTS, SIZE_OUT)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("ijoq,biq->bijo", self.w, u)
        b = self.b.expand_as(votes)
        for t in range(3):
            v = squash_added((F.softmax(b, dim=2) * votes).sum(1, keepdim=True))
            if t < 2:
                b = b + votes * v
        return v.squeeze(1)


class Joint(Writing):
    """A softmax over children and parents together, a bias, another squash."""

    def make(self) -> None:
        self.w = self.weight(PARENTS, CHILDREN, SIZE_OUT, SIZE_IN)
        self.bias = self.weight(PARENTS, SIZE_OUT)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("jiop,bip->bjio", self.w, u)
        b = torch.zeros(u.shape[0], PARENTS, CHILDREN)
        for t in range(3):
            c = b.flatten(1).softmax(1).reshape(b.shape)
            s = (c[..., None] * votes).sum(2) + self.bias
            n = s.norm(dim=-1, keepdim=True)
            v = (1 - torch.exp(-n)) * s / (n + 1e-7)
            if t < 2:
                b = b + (votes * v[:, :, None]).sum(-1)
        return v


class Map(nn.Module, ABC):
    """Votes of a convolution of every kind of capsule: ``[B, kinds, PARENTS, SIZE_OUT, SIDE, SIDE]``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(len(type(self).__name__))
        self.conv = nn.Conv2d(SIZE_IN, PARENTS * SIZE_OUT, 3, padding=1)
        self.bias = nn.Parameter(0.3 * torch.randn(PARENTS, SIZE_OUT, 1, 1))

    @staticmethod
    def example(batch: int) -> Tensor:
        generator = torch.Generator().manual_seed(batch)
        return torch.randn(batch, KINDS, SIZE_IN, SIDE, SIDE, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        votes = self.conv(x.flatten(0, 1))
        votes = votes.view(-1, KINDS, PARENTS, SIZE_OUT, SIDE, SIDE)
        b = torch.zeros(votes.shape[0], KINDS, PARENTS, SIDE, SIDE)
        for t in range(3):
            c = F.softmax(b.view(b.shape[0], KINDS, -1), dim=2).view(b.shape)
            v = self.squash((c.unsqueeze(3) * votes).sum(1) + self.bias)
            if t < 2:
                b = b + (v.unsqueeze(1) * votes).sum(3)
        return v

    @abstractmethod
    def squash(self, s: Tensor) -> Tensor:
        """Of each writing its own."""


class OverPositions(Map):
    """A softmax over parents and positions together, the squash s·n/(1+n²) of each pose."""

    def squash(self, s: Tensor) -> Tensor:
        n = torch.norm(s, dim=2, keepdim=True)
        return s * n / (1 + n**2)


class SquashedTogether(Map):
    """The same with the poses of all positions squashed as one vector."""

    def squash(self, s: Tensor) -> Tensor:
        square = (s * s).sum((2, 3, 4), keepdim=True)
        return square / (1 + square) / square.sqrt() * s
