"""Networks that resemble routing and are none of the package's."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

CHILDREN, SIZE = 18, 8


class Transformer(nn.Module):
    """Self-attention with several heads, written out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.qkv = nn.Linear(SIZE, 3 * SIZE)
        self.out = nn.Linear(SIZE, SIZE)
        self.norm = nn.LayerNorm(SIZE)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.reshape(-1, CHILDREN, 2, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        c = F.softmax(q @ k.transpose(2, 3) * 4**-0.5, -1)
        return self.norm(self.out((c @ v).transpose(1, 2).reshape(-1, CHILDREN, SIZE)))


class Pooling(nn.Module):
    """Attention pooling: a learned query weighs the inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.score = nn.Linear(SIZE, 1)
        self.norm = nn.LayerNorm(SIZE)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm((F.softmax(self.score(x), 1) * torch.tanh(x)).sum(1))


class SoftMeans(nn.Module):
    """Soft k-means: distances to centres, centres from shares."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.centres = nn.Parameter(torch.randn(5, SIZE))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        centres = self.centres.expand(x.shape[0], 5, SIZE)
        for _ in range(3):
            c = F.softmax(-((x[:, :, None] - centres[:, None]) ** 2).sum(-1), 2)
            centres = (c[..., None] * x[:, :, None]).sum(1) / c.sum(1)[..., None]
        return centres


class Classifier(nn.Module):
    """Convolutions and a softmax over classes: no votes anywhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(
            nn.Linear(SIZE, 16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * CHILDREN, 4)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(self.layers(x), -1)


RESEMBLING = (Transformer, Pooling, SoftMeans, Classifier)
