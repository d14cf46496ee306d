"""CapsNets in the plain PyTorch style of public repositories, rewritten, and one with ``capsedge.ops``.

All have the paper's architecture (Sabour et al. 2017) and, at the same sizes, nearly the same work. They
differ in how capsules are grouped, how weights are laid out and how routing is written.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd import Variable

from capsedge.models.ops import dynamic_routing, squash

CLASSES, POSE, DEPTH = 10, 16, 8


def squash_added(s: Tensor, dim: int = -1) -> Tensor:
    """Squash with an epsilon added to the norm."""
    norm = torch.norm(s, dim=dim, keepdim=True)
    return norm**2 / (1 + norm**2) / (norm + 1e-8) * s


def squash_bare(s: Tensor, dim: int = -1) -> Tensor:
    """Squash without an epsilon."""
    square = (s**2).sum(dim=dim, keepdim=True)
    return square / (1 + square) * s / torch.sqrt(square)


class Base(nn.Module):
    """The shared stem.

    Args:
        width: number of channels of the first convolution; 256 in the paper.
        types: number of primary capsule types; 32 in the paper.
    """

    def __init__(self, width: int = 256, types: int = 32) -> None:
        super().__init__()
        self.types, self.count = types, types * 36
        self.conv1 = nn.Conv2d(1, width, 9)
        self.primary = nn.Conv2d(width, types * DEPTH, 9, stride=2)

    def stem(self, x: Tensor) -> Tensor:
        return self.primary(F.relu(self.conv1(x)))


class Guo(Base):
    """Consecutive pixels form a capsule; [J,I,P,Q]; detached copies; a decoder masked by label or argmax."""

    def __init__(self, width: int = 256, types: int = 32, decodes: bool = True) -> None:
        super().__init__(width, types)
        self.decodes = decodes
        self.weight = nn.Parameter(0.01 * torch.randn(CLASSES, self.count, POSE, DEPTH))
        self.decoder = nn.Sequential(
            nn.Linear(CLASSES * POSE, 512), nn.ReLU(inplace=True), nn.Linear(512, 784), nn.Sigmoid()
        )

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        u = squash_added(self.stem(x).view(x.size(0), -1, DEPTH))
        votes = torch.squeeze(torch.matmul(self.weight, u[:, None, :, :, None]), dim=-1)
        still = votes.detach()
        b = Variable(torch.zeros(x.size(0), CLASSES, self.count)).cuda()
        for i in range(3):
            c = F.softmax(b, dim=1)
            if i == 2:
                out = squash_added(torch.sum(c[:, :, :, None] * votes, dim=-2, keepdim=True))
            else:
                out = squash_added(torch.sum(c[:, :, :, None] * still, dim=-2, keepdim=True))
                b = b + torch.sum(out * still, dim=-1)
        v = torch.squeeze(out, dim=-2)
        lengths = v.norm(dim=-1)
        if not self.decodes:
            return lengths
        if y is None:
            index = lengths.max(dim=1)[1]
            mask = torch.zeros(lengths.size()).scatter_(1, index.view(-1, 1).cpu().data, 1.0)
            y = Variable(mask.cuda())
        picture = self.decoder((v * y[:, :, None]).view(v.size(0), -1))
        return lengths, picture.view(-1, 1, 28, 28)


class Havir(Base):
    """[1,J,I,P,Q]; logits of [B,J,I,1] on a device by name; agreement by matmul."""

    def __init__(self, width: int = 256, types: int = 32) -> None:
        super().__init__(width, types)
        self.W = nn.Parameter(0.01 * torch.randn(1, CLASSES, self.count, POSE, DEPTH))
        self.device = torch.device("cuda")

    def forward(self, x: Tensor) -> Tensor:
        u = squash_added(self.stem(x).view(x.size(0), -1, DEPTH))
        votes = torch.matmul(self.W, u.unsqueeze(1).unsqueeze(-1)).squeeze(-1)
        still = votes.detach()
        b = torch.zeros(x.size(0), CLASSES, self.count, 1).to(self.device)
        for _ in range(2):
            v = squash_added((F.softmax(b, dim=1) * still).sum(dim=2))
            b += torch.matmul(still, v.unsqueeze(-1))
        v = squash_added((F.softmax(b, dim=1) * votes).sum(dim=2))
        return v.norm(dim=-1)


class Bielski(Base):
    """Capsules from channels; [I,Q,J·P]; a learned prior; n + 1 weighted sums."""

    def __init__(self, width: int = 256, types: int = 32) -> None:
        super().__init__(width, types)
        self.weights = nn.Parameter(0.01 * torch.randn(self.count, DEPTH, CLASSES * POSE))
        self.b = nn.Parameter(torch.zeros(self.count, CLASSES))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.stem(x)
        n, _, h, w = maps.size()
        u = maps.view(n, self.types, DEPTH, h, w).permute(0, 1, 3, 4, 2).contiguous()
        u = squash_bare(u.view(n, -1, DEPTH))
        votes = u.unsqueeze(2).matmul(self.weights).squeeze(2)
        votes = votes.view(n, self.count, CLASSES, POSE)
        v = squash_bare((F.softmax(self.b, dim=1).unsqueeze(2) * votes).sum(dim=1))
        b = self.b.expand(n, self.count, CLASSES)
        for _ in range(2):
            b = b + (votes * v.unsqueeze(1)).sum(-1)
            c = F.softmax(b.view(-1, CLASSES), dim=1).view(-1, self.count, CLASSES, 1)
            v = squash_bare((c * votes).sum(dim=1))
        return v, torch.sqrt((v**2).sum(-1))


class Haudoi(Base):
    """Weights repeated for every image, capsules stacked for every class; [1,I,J,Q,P]; squeeze()."""

    def __init__(self, width: int = 256, types: int = 32) -> None:
        super().__init__(width, types)
        self.W = nn.Parameter(0.01 * torch.randn(1, self.count, CLASSES, DEPTH, POSE))

    def forward(self, x: Tensor) -> Tensor:
        batch = x.size(0)
        maps = self.stem(x).view(batch, self.types, DEPTH, -1).transpose(2, 3).contiguous()
        u = squash_bare(maps.view(batch, -1, DEPTH))
        u = torch.stack([u] * CLASSES, dim=2).unsqueeze(3)
        votes = torch.matmul(u, torch.cat([self.W] * batch, dim=0)).squeeze(3)
        b = torch.zeros(batch, self.count, CLASSES, device="cuda")
        for _ in range(3):
            c = F.softmax(b, dim=2).unsqueeze(-1)
            v = squash_bare((c * votes).sum(dim=1, keepdim=True))
            b = b + (votes * v).sum(-1)
        return torch.sqrt((v**2).sum(-1)).squeeze()


class WithOps(Base):
    """The same network with the package's operators."""

    def __init__(self, width: int = 256, types: int = 32) -> None:
        super().__init__(width, types)
        self.weight = nn.Parameter(0.01 * torch.randn(self.count, CLASSES, POSE, DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        u = squash(self.stem(x).view(x.size(0), -1, DEPTH))
        return dynamic_routing(u, self.weight, iterations=3)[0].norm(dim=-1)


STYLES = (Guo, Havir, Bielski, Haudoi)
