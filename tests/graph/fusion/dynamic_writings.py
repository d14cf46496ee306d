"""Typical writings of dynamic routing in plain PyTorch, after the rows of the table in
docs/how-to/optimize.md.

Every module takes ``[B, I, Pin]`` and returns lengths or poses of ``J`` parents. Sizes are small and differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

CHILDREN, PARENTS, SIZE_IN, SIZE_OUT = 18, 5, 4, 6


def squash_added(s: Tensor, dim: int = -1, epsilon: float = 1e-8) -> Tensor:
    """n²/(1+n²) · s/(n+e)"""
    norm = torch.norm(s, dim=dim, keepdim=True)
    return norm**2 / (1 + norm**2) / (norm + epsilon) * s


def squash_bare(s: Tensor, dim: int = -1) -> Tensor:
    """n²/(1+n²) · s/n"""
    square = (s**2).sum(dim=dim, keepdim=True)
    return square / (1.0 + square) * s / torch.sqrt(square)


def squash_rooted(s: Tensor, dim: int = -1, epsilon: float = 1e-16) -> Tensor:
    """n²/(1+n²) · s/√(n²+e)"""
    square = s.pow(2).sum(dim, keepdim=True)
    return (square / (1 + square)) * (s / (square + epsilon).sqrt())


class Writing(nn.Module, ABC):
    """A stem that makes capsules, and routing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(len(type(self).__name__))
        self.stem = nn.Linear(SIZE_IN, SIZE_IN)
        self.make()

    @abstractmethod
    def make(self) -> None:
        """Of each writing its own."""

    def weight(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(0.4 * torch.randn(*shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.route(torch.tanh(self.stem(x)))

    @abstractmethod
    def route(self, u: Tensor) -> Tensor:
        """Of each writing its own."""


class ParentsFirst(Writing):
    """[J,I,Pout,Pin] by matmul and squeeze, n+epsilon, copies detached but for the last pass."""

    def make(self) -> None:
        self.w = self.weight(PARENTS, CHILDREN, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.squeeze(torch.matmul(self.w, u[:, None, :, :, None]), dim=-1)
        still = votes.detach()
        b = torch.zeros(u.size(0), PARENTS, CHILDREN)
        for i in range(3):
            c = F.softmax(b, dim=1)
            if i == 2:
                out = squash_added((c[:, :, :, None] * votes).sum(dim=-2, keepdim=True))
            else:
                out = squash_added((c[:, :, :, None] * still).sum(dim=-2, keepdim=True))
                b = b + torch.sum(out * still, dim=-1)
        return torch.squeeze(out, dim=-2).norm(dim=-1)


class HalfEpsilon(Writing):
    """[J,I,Pout,Pin], with an epsilon under the root that FP16 can hold."""

    def make(self) -> None:
        self.w = self.weight(PARENTS, CHILDREN, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.squeeze(torch.matmul(self.w, u[:, None, :, :, None]), dim=-1)
        b = torch.zeros(u.size(0), PARENTS, CHILDREN)
        for i in range(3):
            s = (F.softmax(b, dim=1)[..., None] * votes).sum(dim=-2)
            out = squash_rooted(s, epsilon=1e-3)
            if i < 2:
                b = b + torch.sum(out[:, :, None] * votes, dim=-1)
        return out.norm(dim=-1)


class Batched(Writing):
    """[1,J,I,Pout,Pin], loop over matmul with the couplings, four iterations."""

    def make(self) -> None:
        self.w = self.weight(1, PARENTS, CHILDREN, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.matmul(self.w, u.unsqueeze(1).unsqueeze(-1)).squeeze(-1)
        b = votes.new_zeros(votes.shape[0], PARENTS, CHILDREN, 1)
        for i in range(4):
            c = b.softmax(dim=1)
            v = squash_added((c * votes).sum(2))
            if i < 3:
                b = b + torch.matmul(votes, v.unsqueeze(-1))
        return v


class OverChildren(Writing):
    """Softmax over the children: another function than the paper's."""

    def make(self) -> None:
        self.w = self.weight(PARENTS, CHILDREN, SIZE_IN, SIZE_OUT)

    def route(self, u: Tensor) -> Tensor:
        votes = u[None, :, :, None, :] @ self.w[:, None, :, :, :]
        b = torch.zeros(*votes.size())
        for i in range(3):
            c = F.softmax(b, dim=2)
            out = squash_bare((c * votes).sum(dim=2, keepdim=True))
            if i < 2:
                b = b + (votes * out).sum(dim=-1, keepdim=True)
        return (out.squeeze(2).squeeze(2).transpose(0, 1) ** 2).sum(-1) ** 0.5


class LearnedPrior(Writing):
    """[I,Pin,J·Pout], a learned prior, n+1 weighted sums for n iterations."""

    def make(self) -> None:
        self.w = self.weight(CHILDREN, SIZE_IN, PARENTS * SIZE_OUT)
        self.b = nn.Parameter(torch.randn(CHILDREN, PARENTS))

    def route(self, u: Tensor) -> Tensor:
        votes = u.unsqueeze(2).matmul(self.w).squeeze(2).view(-1, CHILDREN, PARENTS, SIZE_OUT)
        b = self.b
        c = F.softmax(b, dim=1)
        v = squash_bare((c.unsqueeze(2) * votes).sum(dim=1))
        b = b.expand(u.size(0), CHILDREN, PARENTS)
        for _ in range(2):
            b = b + (votes * v.unsqueeze(1)).sum(-1)
            c = F.softmax(b.view(-1, PARENTS), dim=1).view(-1, CHILDREN, PARENTS, 1)
            v = squash_bare((c * votes).sum(dim=1))
        return v


class BatchMean(Writing):
    """Agreements averaged over the images: the result for an image depends on the rest of its batch."""

    def make(self) -> None:
        self.w = self.weight(1, CHILDREN, PARENTS, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        x = torch.stack([u] * PARENTS, dim=2).unsqueeze(4)
        votes = torch.matmul(torch.cat([self.w] * 1, dim=0), x)
        b = torch.zeros(1, CHILDREN, PARENTS, 1)
        for i in range(3):
            c = F.softmax(b, dim=2).unsqueeze(4)
            v = squash_bare((c * votes).sum(dim=1, keepdim=True), dim=3)
            if i < 2:
                a = torch.matmul(votes.transpose(3, 4), torch.cat([v] * CHILDREN, dim=1))
                b = b + a.squeeze(4).mean(dim=0, keepdim=True)
        return v.squeeze(1)


class ElementWise(Writing):
    """Squash over an axis of one element, softmax over the children."""

    def make(self) -> None:
        self.w = self.weight(1, CHILDREN, PARENTS, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = self.w @ torch.stack([u] * PARENTS, dim=2).unsqueeze(4)
        b = torch.zeros(1, CHILDREN, PARENTS, 1)
        for i in range(3):
            c = F.softmax(b, dim=1).unsqueeze(4)
            s = (c * votes).sum(dim=1, keepdim=True)
            v = s.abs() * s / (1 + s**2)
            if i < 2:
                b = b + torch.matmul(votes.transpose(3, 4), v.expand_as(votes)).squeeze(4)
        return v.squeeze(1)


class OverParents(Writing):
    """Squash over the parents instead of the pose."""

    def make(self) -> None:
        self.w = self.weight(1, CHILDREN, PARENTS, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = self.w @ torch.stack([u] * PARENTS, dim=2).unsqueeze(4)
        b = torch.zeros(u.size(0), CHILDREN, PARENTS, 1)
        for i in range(3):
            s = (F.softmax(b, dim=2).unsqueeze(4) * votes).sum(dim=1, keepdim=True)
            v = squash_bare(s, dim=2)
            if i < 2:
                b = b + (votes * v).sum(3)
        return v.squeeze(-1).squeeze(1)


class OneMoreThanLength(Writing):
    """Squash s/(1 + n), which no operator has."""

    def make(self) -> None:
        self.w = self.weight(PARENTS, CHILDREN, SIZE_IN, SIZE_OUT)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("nid,jidp->njip", u, self.w)
        b = torch.zeros_like(votes[..., 0])
        for i in range(3):
            s = (F.softmax(b, dim=1)[..., None] * votes).sum(2)
            v = s / (1 + s.norm(dim=-1, keepdim=True))
            if i < 2:
                b = b + (votes * v[:, :, None]).sum(-1)
        return v


class InputsFirst(Writing):
    """[1,I,J,Pin,Pout], bare squash, the last update made in vain."""

    def make(self) -> None:
        self.w = self.weight(1, CHILDREN, PARENTS, SIZE_IN, SIZE_OUT)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.matmul(u[:, :, None, None, :], self.w).squeeze(-2)
        b = torch.zeros_like(votes[..., 0])
        for _ in range(3):
            c = torch.softmax(b, dim=-1)
            v = squash_bare(torch.einsum("bij,bijp->bjp", c, votes))
            b = b + torch.einsum("bijp,bjp->bij", votes, v)
        return v.norm(dim=2)


class Regressor(Writing):
    """Two iterations, [J,I,Pout,Pin] by einsum, n+epsilon; regression from the poses."""

    def make(self) -> None:
        self.w = self.weight(PARENTS, CHILDREN, SIZE_OUT, SIZE_IN)
        self.head = nn.Linear(SIZE_OUT, 1)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("jioq,biq->bjio", self.w, u)
        b = torch.zeros(votes.shape[:3])
        for t in range(2):
            c = F.softmax(b, dim=1)
            v = squash_added(torch.matmul(c.unsqueeze(-2), votes).squeeze(-2))
            if t == 0:
                b = b + torch.matmul(votes, v.unsqueeze(-1)).squeeze(-1)
        return self.head(v).squeeze(-1)


class Windows(Writing):
    """Capsules of windows: every position routes on its own with the same weights (by bmm)."""

    def make(self) -> None:
        self.w = self.weight(CHILDREN // 3, SIZE_IN, PARENTS * SIZE_OUT)

    def route(self, u: Tensor) -> Tensor:
        rows = u.reshape(-1, CHILDREN // 3, SIZE_IN)  # three positions
        votes = torch.bmm(rows.transpose(0, 1), self.w).transpose(0, 1)
        votes = votes.reshape(-1, CHILDREN // 3, PARENTS, SIZE_OUT)
        b = torch.zeros(votes.shape[:3])
        for t in range(3):
            c = F.softmax(b, dim=2)
            v = squash_added((c.unsqueeze(-1) * votes).sum(1))
            if t < 2:
                b = b + (votes * v.unsqueeze(1)).sum(-1)
        return v.reshape(-1, 3, PARENTS, SIZE_OUT)


class WithBias(Writing):
    """s·n/(1+n²), and a bias before it."""

    def make(self) -> None:
        self.w = self.weight(CHILDREN, SIZE_OUT, PARENTS, SIZE_IN)
        self.bias = nn.Parameter(0.3 * torch.randn(PARENTS, SIZE_OUT))

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("iojq,biq->bijo", self.w, u)
        b = torch.zeros(u.shape[0], CHILDREN, PARENTS)
        for t in range(3):
            c = F.softmax(b, dim=2)
            s = (c[..., None] * votes).sum(1) + self.bias
            n = s.norm(dim=-1, keepdim=True)
            v = s * n / (1 + n * n)
            if t < 2:
                b = b + (votes * v[:, None]).sum(-1)
        return v


class Einsums(Writing):
    """All in einsum, √(n²+epsilon), a bias [1,1,J,Pout]."""

    def make(self) -> None:
        self.w = self.weight(1, CHILDREN, PARENTS, SIZE_OUT, SIZE_IN)
        self.bias = nn.Parameter(0.3 * torch.randn(1, 1, PARENTS, SIZE_OUT))

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("nijoq,biq->bijo", self.w, u)
        b = torch.zeros(u.shape[0], CHILDREN, PARENTS, 1)
        for t in range(3):
            s = torch.einsum("bijx,bijo->bjo", torch.softmax(b, 2), votes).unsqueeze(1) + self.bias
            v = squash_rooted(s)
            if t < 2:
                b = b + torch.einsum("bijo,bxjo->bij", votes, v).unsqueeze(-1)
        return v.squeeze(1)


class Replaced(Writing):
    """Agreements replace the logits."""

    def make(self) -> None:
        self.w = self.weight(CHILDREN, PARENTS, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("ijoq,biq->bijo", self.w, u)
        b = torch.zeros(votes.shape[:3])
        for t in range(3):
            v = squash_added((F.softmax(b, 2)[..., None] * votes).sum(1))
            if t < 2:
                b = torch.einsum("bijo,bjo->bij", votes, v)
        return v


class PerElement(Writing):
    """One logit for each element of a pose, softmax over the children."""

    def make(self) -> None:
        self.w = self.weight(PARENTS, CHILDREN, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("jioq,biq->bjio", self.w, u)
        b = torch.zeros_like(votes)
        for t in range(3):
            v = squash_added((F.softmax(b, dim=2) * votes).sum(2, keepdim=True))
            if t < 2:
                b = b + votes * v
        return v.squeeze(2)


class Leaky(Writing):
    """A parent more, with logit zero."""

    def make(self) -> None:
        self.w = self.weight(CHILDREN, PARENTS, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("ijoq,biq->bijo", self.w, u)
        b = torch.zeros(votes.shape[:3])
        for t in range(3):
            c = F.softmax(torch.cat([torch.zeros_like(b[..., :1]), b], dim=-1), dim=-1)[..., 1:]
            v = squash_rooted((c[..., None] * votes).sum(1), epsilon=1e-8)
            if t < 2:
                b = b + (votes * v[:, None]).sum(-1)
        return v


class VoteBias(Writing):
    """Votes W u + c."""

    def make(self) -> None:
        self.w = self.weight(CHILDREN, PARENTS, SIZE_OUT, SIZE_IN)
        self.c = self.weight(CHILDREN, PARENTS, SIZE_OUT)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("ijoq,biq->bijo", self.w, u) + self.c
        b = torch.zeros(votes.shape[:3])
        for t in range(3):
            v = squash_rooted((F.softmax(b, 2)[..., None] * votes).sum(1))
            if t < 2:
                b = b + (votes * v[:, None]).sum(-1)
        return v


class KerasExample(Writing):
    """One weight for all children, agreements replace the logits, squash with ½ + n² + epsilon."""

    def make(self) -> None:
        self.w = self.weight(1, SIZE_IN, PARENTS * SIZE_OUT)

    def squash(self, s: Tensor) -> Tensor:
        square = s.pow(2).sum(-1, keepdim=True) + 1e-7
        return square.sqrt() / (0.5 + square) * s

    def route(self, u: Tensor) -> Tensor:
        votes = F.conv1d(u.transpose(1, 2), self.w[0].t().unsqueeze(-1)).transpose(1, 2)
        votes = votes.reshape(-1, CHILDREN, PARENTS, SIZE_OUT).transpose(1, 2)
        b = torch.zeros_like(votes[..., 0])
        for t in range(3):
            v = self.squash(torch.einsum("bji,bjip->bjp", F.softmax(b, 1), votes))
            if t < 2:
                b = torch.einsum("bjp,bjip->bji", v, votes)
        return v.norm(dim=-1)


class KMeans(Writing):
    """From the mean of the votes: normalize, agree (replaced), weigh; [J,Pout,Pin] shared by the children."""

    def make(self) -> None:
        self.w = self.weight(PARENTS, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.matmul(self.w[None, :, None], u[:, None, :, :, None]).squeeze(-1)
        out = votes.sum(dim=-2, keepdim=True) / CHILDREN
        for _ in range(3):
            out = F.normalize(out, dim=-1)
            c = F.softmax((votes * out).sum(dim=-1, keepdim=True), dim=-3)
            out = (c * votes).sum(dim=-2, keepdim=True)
        n = out.norm(dim=-1, keepdim=True)
        return (n / (1 + n**2) * out).squeeze(-2)


class SharedWeight(Writing):
    """The paper's routing with one weight for all children."""

    def make(self) -> None:
        self.w = self.weight(SIZE_IN, PARENTS * SIZE_OUT)

    def route(self, u: Tensor) -> Tensor:
        votes = (u @ self.w).view(-1, CHILDREN, PARENTS, SIZE_OUT)
        b = torch.zeros(votes.shape[:3])
        for t in range(3):
            v = squash_added((F.softmax(b, 2)[..., None] * votes).sum(1))
            if t < 2:
                b = b + (votes * v[:, None]).sum(-1)
        return v


class MixedProducts(Writing):
    """Sums by matrix products of permuted votes, agreements by products of elements."""

    def make(self) -> None:
        self.w = self.weight(SIZE_IN, PARENTS * SIZE_OUT)

    def route(self, u: Tensor) -> Tensor:
        votes = (u @ self.w).view(-1, CHILDREN, PARENTS, SIZE_OUT)
        b = torch.zeros(votes.shape[:3])
        for t in range(3):
            c = F.softmax(b, 2).permute(0, 2, 1)
            v = squash_added((c.unsqueeze(2) @ votes.permute(0, 2, 1, 3)).squeeze(2))
            if t < 2:
                b = b + (votes * v[:, None]).sum(-1)
        return v


class ScaledAgreements(Writing):
    """Agreements divided by the root of the size of a pose."""

    def make(self) -> None:
        self.w = self.weight(CHILDREN, PARENTS, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("ijoq,biq->bijo", self.w, u)
        b = torch.zeros(votes.shape[:3])
        for t in range(3):
            v = squash_added((F.softmax(b, 2)[..., None] * votes).sum(1))
            if t < 2:
                b = b + (votes * v[:, None]).sum(-1) / SIZE_OUT**0.5
        return v


class Temperature(Writing):
    """Logits divided by a temperature in each softmax."""

    def make(self) -> None:
        self.w = self.weight(CHILDREN, PARENTS, SIZE_OUT, SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("ijoq,biq->bijo", self.w, u)
        b = torch.zeros(votes.shape[:3])
        for t in range(3):
            v = squash_rooted((F.softmax(b / 0.4, 2)[..., None] * votes).sum(1))
            if t < 2:
                b = b + (votes * v[:, None]).sum(-1)
        return v


class NonlinearVotes(Writing):
    """Votes that a layer and a ReLU make."""

    def make(self) -> None:
        self.layer = nn.Linear(SIZE_IN, PARENTS * SIZE_OUT)

    def route(self, u: Tensor) -> Tensor:
        votes = F.relu(self.layer(u)).view(-1, CHILDREN, PARENTS, SIZE_OUT)
        b = torch.zeros(votes.shape[:3])
        for t in range(3):
            v = squash_added((F.softmax(b, 2)[..., None] * votes).sum(1))
            if t < 2:
                b = b + (votes * v[:, None]).sum(-1)
        return v


class ConvolvedVotes(Writing):
    """Votes of a convolution over a row of capsules: children are kinds, every place routes on its own."""

    def make(self) -> None:
        self.conv = nn.Conv1d(SIZE_IN, PARENTS * SIZE_OUT, 3, padding=1)
        self.bias = nn.Parameter(0.2 * torch.randn(PARENTS, SIZE_OUT))

    def route(self, u: Tensor) -> Tensor:
        kinds, places = 3, CHILDREN // 3
        rows = u.view(-1, kinds, places, SIZE_IN).flatten(0, 1).transpose(1, 2)
        votes = self.conv(rows).view(-1, kinds, PARENTS, SIZE_OUT, places).permute(0, 4, 1, 2, 3)
        b = torch.zeros(votes.shape[:4])
        for t in range(3):
            v = squash_rooted((F.softmax(b, 3)[..., None] * votes).sum(2) + self.bias)
            if t < 2:
                b = b + (votes * v[:, :, None]).sum(-1)
        return v
