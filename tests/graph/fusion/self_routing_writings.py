"""Self-routing as its authors write it (Hahn et al. 2019): unfolded windows, a matrix for each child."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

SIDE, TYPES, SIZE, CLASSES = 6, 3, 4, 5


class SelfRouting(nn.Module):
    """Capsules of a map ``[N, types, H, W]`` and ``[N, types·size, H, W]`` to those of windows.

    Args:
        parents, out: types of parents and elements of their poses; no poses for 0.
    """

    def __init__(self, parents: int, out: int, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.parents, self.out = parents, out
        self.window = {"kernel_size": kernel, "stride": stride, "padding": padding}
        self.count = kernel**2 * TYPES
        self.bias = nn.Parameter(torch.randn(1, 1, self.count, parents))
        self.route = nn.Parameter(torch.randn(self.count, parents, SIZE))
        self.constant = nn.Parameter(torch.zeros(()))
        if out:
            self.vote = nn.Parameter(torch.randn(self.count, parents * out, SIZE))

    def unfolded(self, x: Tensor, size: int) -> Tensor:
        """Of ``[N, types·size, H, W]``: ``[N, positions, children, size]``."""
        windows = F.unfold(x, **self.window)
        split = windows.view(len(x), TYPES, size, self.count // TYPES, -1)
        return split.permute(0, 4, 3, 1, 2).reshape(len(x), -1, self.count, size)

    def forward(self, a: Tensor, pose: Tensor) -> tuple[Tensor, Tensor]:
        u = self.unfolded(pose, SIZE).unsqueeze(-1)
        n, places = u.shape[:2]
        shares = (torch.matmul(self.route, u).squeeze(-1) + self.bias).softmax(3)
        a = self.unfolded(a, 1)
        weighed = a * shares
        total = weighed.sum(2, keepdim=True)
        side = int(places**0.5)
        active = (total / a.sum(2, keepdim=True)).squeeze(2).transpose(1, 2)
        active = active.reshape(n, self.parents, side, side)
        if not self.out:
            return active, pose
        votes = torch.matmul(self.vote, u).squeeze(-1)
        votes = votes.view(n, places, self.count, self.parents, self.out)
        votes = votes + self.constant if self.constant.dim() else votes
        sums = ((weighed / total).unsqueeze(-1) * votes).sum(2)
        return active, sums.view(n, places, -1).transpose(1, 2).reshape(n, -1, side, side)


class SelfRoutedNetwork(nn.Module):
    """A layer of windows and one of classes; ``[N, 3, 6, 6]`` to logarithms of activations.

    Args:
        padding: of the windows.
        biased: whether votes have a constant part.
    """

    def __init__(self, *, padding: int = 1, stride: int = 2, biased: bool = False) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.active = nn.Conv2d(3, TYPES, 1)
        self.pose = nn.Conv2d(3, TYPES * SIZE, 1)
        self.windows = SelfRouting(TYPES, SIZE, 3, stride, padding)
        if biased:
            self.windows.constant = nn.Parameter(torch.randn(self.windows.count, TYPES, SIZE))
        self.between = nn.Parameter(torch.randn(TYPES * SIZE, 1, 1))
        side = (SIDE + 2 * padding - 3) // stride + 1
        self.classes = SelfRouting(CLASSES, 0, side, 1, 0)

    def forward(self, x: Tensor) -> Tensor:
        pose = self.pose(x).tanh()
        a, pose = self.windows(self.active(x).sigmoid(), pose)
        return self.classes(a, pose * 2 + self.between)[0].flatten(1).log()
