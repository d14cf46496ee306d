"""Networks as users write them, traps included; small enough to export in a test."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd import Variable

from capsedge.models import ops

CHILDREN, PARENTS, DEPTH, POSE = 12, 3, 4, 5


def squash(s: Tensor, dim: int = -1) -> Tensor:
    norm = s.norm(dim=dim, keepdim=True)
    return norm**2 / (1 + norm**2) / (norm + 1e-8) * s


class Own(nn.Module):
    """A stem of capsules; ``[B, 4]`` in."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.stem = nn.Linear(4, CHILDREN * DEPTH)
        self.W = nn.Parameter(scale * torch.randn(1, CHILDREN, PARENTS, POSE, DEPTH))

    def votes(self, x: Tensor) -> Tensor:
        u = squash(self.stem(x).view(x.size(0), CHILDREN, DEPTH))
        return torch.matmul(self.W, u[:, :, None, :, None]).squeeze(-1)

    def routed(self, votes: Tensor, b: Tensor) -> Tensor:
        for i in range(3):
            v = squash((F.softmax(b, dim=2)[..., None] * votes).sum(1))
            if i < 2:
                b = b + (votes * v[:, None]).sum(-1)
        return v


class Plain(Own):
    def forward(self, x: Tensor) -> Tensor:
        return self.routed(self.votes(x), torch.zeros(x.size(0), CHILDREN, PARENTS)).norm(dim=-1)


class Repeated(Own):
    """Weights repeated for every image, capsules stacked for every parent, squeeze() at the end."""

    def forward(self, x: Tensor) -> Tensor:
        batch = x.size(0)
        u = squash(self.stem(x).view(batch, CHILDREN, DEPTH))
        u = torch.stack([u] * PARENTS, dim=2).unsqueeze(4)
        votes = torch.matmul(torch.cat([self.W] * batch, dim=0), u).squeeze(4)
        b = torch.zeros(batch, CHILDREN, PARENTS, 1).squeeze(3)
        return (self.routed(votes, b).unsqueeze(1) ** 2).sum(-1).sqrt().squeeze()


class Results(NamedTuple):
    lengths: Tensor
    poses: Tensor


class Moved(Own):
    """On a GPU by name, ``Variable``, ``.data`` in place, a named tuple."""

    def forward(self, x: Tensor) -> Results:
        votes = self.votes(x.cuda())
        b = Variable(torch.zeros(x.size(0), CHILDREN, PARENTS, device="cuda:0")).to("cuda")
        for i in range(3):
            v = squash((F.softmax(b, dim=2)[..., None] * votes).sum(1))
            if i < 2:
                b.data += (votes * v[:, None]).sum(-1).data
        return Results(v.norm(dim=-1), v)


class Masked(Own):
    """A decoder that takes a label, or without one the longest capsule's; nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Linear(PARENTS * POSE, 6)

    def forward(self, x: Tensor, y: Tensor | None = None) -> dict[str, object]:
        v = self.routed(self.votes(x), torch.zeros(x.size(0), CHILDREN, PARENTS))
        lengths = (v**2).sum(-1).sqrt()
        if y is None:
            _, index = lengths.max(dim=1)
            y = Variable(torch.eye(PARENTS)).cuda().index_select(dim=0, index=index.data)
        return {"lengths": lengths, "more": [v, self.decoder((v * y[:, :, None]).flatten(1))]}


class BatchMean(Own):
    """Agreements averaged over the batch."""

    def forward(self, x: Tensor) -> Tensor:
        votes = self.votes(x)
        b = torch.zeros(1, CHILDREN, PARENTS)
        for i in range(3):
            v = squash((F.softmax(b, dim=2)[..., None] * votes).sum(1))
            if i < 2:
                b = b + (votes * v[:, None]).sum(-1).mean(dim=0, keepdim=True)
        return v.norm(dim=-1)


class Branches(Own):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


class FixedBatch(Own):
    def __init__(self, batch_size: int = 4) -> None:
        super().__init__()
        self.batch_size = batch_size

    def forward(self, x: Tensor) -> Tensor:
        u = squash(self.stem(x).view(self.batch_size, CHILDREN, DEPTH))
        votes = torch.matmul(self.W, u[:, :, None, :, None]).squeeze(-1)
        b = torch.zeros(self.batch_size, CHILDREN, PARENTS)
        return self.routed(votes, b).norm(dim=-1)


class FixedAveraged(FixedBatch):
    """A batch in the code, and images that depend on each other."""

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores - scores.mean(0)


class LiteralBatch(Own):
    def forward(self, x: Tensor) -> Tensor:
        u = squash(self.stem(x).view(6, CHILDREN, DEPTH))
        votes = torch.matmul(self.W, u[:, :, None, :, None]).squeeze(-1)
        return self.routed(votes, torch.zeros(6, CHILDREN, PARENTS)).norm(dim=-1)


class NotAlone(Own):
    """squeeze() on the way, on which batch 1 fails."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.votes(x).flatten(1)[:, None].squeeze()
        votes = flat.view(x.size(0), CHILDREN, PARENTS, flat.shape[1] // (CHILDREN * PARENTS))
        return self.routed(votes, torch.zeros(x.size(0), CHILDREN, PARENTS)).norm(dim=-1)


class OneAtATime(FixedBatch):
    """A batch of 1 in the code, and an operation that vmap does not take."""

    def __init__(self) -> None:
        super().__init__(1)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.nonzero(torch.ones(PARENTS)).flatten()
        return super().forward(x)[:, places]


class Normalized(nn.Module):
    """Makes a batch norm in every run, which stays in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = nn.BatchNorm1d(6)(self.linear(x))
        return found


class Total(Own):
    """An output without the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return self.votes(x).sum()


class Operators(nn.Module):
    """Written with the package's operators; images ``[B, 1, 10, 10]`` in.

    Args:
        scaled: capsules are scaled by ``torch.full_like``.
    """

    def __init__(self, scaled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.scaled = scaled
        self.stem = nn.Conv2d(1, 16, 3, stride=2)
        self.weight = nn.Parameter(0.1 * torch.randn(32, 3, 8, 8))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        u = ops.squash(self.stem(images).permute(0, 2, 3, 1).reshape(-1, 32, 8))
        if self.scaled:
            u = u * torch.full_like(u[:, :, 0], 0.5)[..., None]
        poses, _ = ops.dynamic_routing(u, self.weight, iterations=2)
        return {"lengths": poses.norm(dim=-1), "poses": poses}


class OverChildrenPerElement(Own):
    """One logit for each element of a pose: recognized as what it is, written with standard operators."""

    def forward(self, x: Tensor) -> Tensor:
        votes = self.votes(x)
        b = torch.zeros_like(votes)
        for i in range(3):
            v = squash((F.softmax(b, dim=1) * votes).sum(1))
            if i < 2:
                b = b + votes * v[:, None]
        return v


class TanhAgreement(Own):
    """Agreement of a form of its own: not recognized, and left."""

    def forward(self, x: Tensor) -> Tensor:
        votes = self.votes(x)
        b = torch.zeros_like(votes[..., :1])
        for i in range(3):
            v = squash((F.softmax(b, dim=2) * votes).sum(1))
            if i < 2:
                b = b + torch.tanh(votes * v[:, None]).sum(-1, keepdim=True)
        return v
