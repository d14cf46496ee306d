"""What FSA-Net has in place of capsules in its authors' comparison (Yang et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LEAST = 1e-12  # squared norm that a vector is divided by


class Metric(nn.Module):
    """A linear map of the elements, and one of the capsules: ``[N, I, D]`` to ``[N, S, P]``."""

    def __init__(self, children: int, features: int, stages: int, dim: int) -> None:
        super().__init__()
        self.elements = nn.Parameter(torch.randn(dim, features) / features**0.5)
        self.shares = nn.Parameter(torch.randn(children, stages) / children**0.5)

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the stages, and the shares of the capsules in them ``[N, I, S]``."""
        shares = self.shares.expand(u.shape[0], *self.shares.shape)
        return shares.transpose(1, 2) @ (u @ self.elements.T), shares


class NetVLAD(nn.Module):
    """Residuals of soft clusters, normalized, and a linear map (Arandjelović et al. 2016)."""

    def __init__(self, features: int, stages: int, dim: int) -> None:
        super().__init__()
        self.shape = stages, dim
        self.assignment = nn.Linear(features, stages)
        self.centers = nn.Parameter(torch.randn(features, stages) / features**0.5)
        self.map = nn.Parameter(torch.randn(stages * dim, features * stages) / stages**0.5)

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """``[N, I, D]`` to ``[N, S, P]``, and the assignments ``[N, I, S]``."""
        shares = self.assignment(u).softmax(-1)
        residuals = u.transpose(1, 2) @ shares - shares.sum(1, keepdim=True) * self.centers
        flat = _normalized(_normalized(residuals).flatten(1))
        return (flat @ self.map.T).reshape(-1, *self.shape), shares


def _normalized(x: Tensor) -> Tensor:
    """Of length one along the second axis."""
    return x / x.square().sum(1, keepdim=True).clamp(min=_LEAST).sqrt()
