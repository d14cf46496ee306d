"""Writings of inverted attention routing in plain PyTorch, and networks that only resemble routing."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

SIDE, TYPES, MIDDLE, CLASSES, GRID, KERNEL = 2, 3, 4, 6, 5, 3
POSE = SIDE * SIDE


class Writing(nn.Module):
    """Features ``[B, 5, 5, F]`` to matrix capsules, two routed layers, scores."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(len(type(self).__name__))
        self.pose = nn.Linear(5, TYPES * POSE)
        self.norm = nn.LayerNorm(POSE)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)
        self.first = nn.LayerNorm(POSE)
        self.w1 = nn.Parameter(torch.randn(KERNEL, KERNEL, TYPES, SIDE, SIDE, MIDDLE))
        self.w2 = nn.Parameter(torch.randn(4 * MIDDLE, SIDE, SIDE, CLASSES))
        self.final = nn.Linear(POSE, 1)

    @staticmethod
    def example(batch: int) -> Tensor:
        return torch.randn(batch, GRID, GRID, 5, generator=torch.Generator().manual_seed(batch))


class Concurrent(Writing):
    """Patches by slices, einsum over six axes, all layers at once from the values of the pass before."""

    passes = 3

    def over_windows(self, pose: Tensor, parent: Tensor | None) -> Tensor:
        rows = [pose[:, k : k + 3 : 2] for k in range(KERNEL)]
        cells = [row[:, :, m : m + 3 : 2] for row in rows for m in range(KERNEL)]
        x = torch.stack(cells, 1)  # [B, k·l, h, w, t, P]
        x = x.reshape(-1, KERNEL, KERNEL, 2, 2, TYPES, SIDE, SIDE)
        votes = torch.einsum("bklhwtxy,kltyzo->bhwkltxzo", x, self.w1)
        votes = votes.reshape(-1, 2, 2, KERNEL * KERNEL * TYPES, POSE, MIDDLE).permute(
            0, 1, 2, 3, 5, 4
        )
        return self.attend(votes, parent)

    def over_all(self, pose: Tensor, parent: Tensor | None, weight: Tensor | None = None) -> Tensor:
        x = pose.reshape(pose.shape[0], -1, SIDE, SIDE)
        w = self.w2 if weight is None else weight
        votes = torch.einsum("bnxy,nyzo->bnoxz", x, w).flatten(3)
        return self.attend(votes, parent)

    def attend(self, votes: Tensor, parent: Tensor | None) -> Tensor:
        if parent is None:
            c = torch.full((), 1.0 / votes.shape[-2])
            return self.norm((c * votes).sum(-3))
        logits = torch.einsum("...ijp,...jp->...ij", votes, parent) * POSE**-0.5
        c = F.softmax(logits, dim=-1)
        c = c / (c.sum(-1, keepdim=True) + 1e-10)
        return self.norm(torch.einsum("...ij,...ijp->...jp", c, votes))

    def forward(self, x: Tensor) -> Tensor:
        primary = self.first(self.pose(x).reshape(-1, GRID, GRID, TYPES, POSE))
        middle = self.over_windows(primary, None)
        classes = self.over_all(middle, None)
        for _ in range(1, self.passes):
            middle, classes = self.over_windows(primary, middle), self.over_all(middle, classes)
        return self.final(classes).squeeze(-1)


class Sequential(Concurrent):
    """A layer after the other; softmax without the division after it."""

    passes = 2

    def attend(self, votes: Tensor, parent: Tensor | None) -> Tensor:
        if parent is None:
            return self.norm(votes.sum(-3) / votes.shape[-2])
        logits = (votes * parent.unsqueeze(-3)).sum(-1) / POSE**0.5
        return self.norm((F.softmax(logits, dim=-1).unsqueeze(-1) * votes).sum(-3))

    def forward(self, x: Tensor) -> Tensor:
        primary = self.first(self.pose(x).reshape(-1, GRID, GRID, TYPES, POSE))
        middle = self.over_windows(primary, None)
        for _ in range(1, self.passes):
            middle = self.over_windows(primary, middle)
        classes = self.over_all(middle, None)
        for _ in range(1, self.passes):
            classes = self.over_all(middle, classes)
        return self.final(classes).squeeze(-1)


class ThreeSequential(Sequential):
    """Three passes of a layer before the next one."""

    passes = 3


class Deep(Concurrent):
    """A third layer, from the second layer's capsules to the classes; three passes, all layers at once."""

    LAST = 3

    def __init__(self) -> None:
        super().__init__()
        self.w3 = nn.Parameter(torch.randn(CLASSES, SIDE, SIDE, self.LAST))

    def forward(self, x: Tensor) -> Tensor:
        primary = self.first(self.pose(x).reshape(-1, GRID, GRID, TYPES, POSE))
        poses: list[Tensor | None] = [None, None, None]
        for t in range(self.passes):
            below = poses if t else [None] * 3
            one = self.over_windows(primary, below[0])
            two = self.over_all(one if below[0] is None else below[0], below[1])
            three = self.over_all(two if below[1] is None else below[1], below[2], self.w3)
            poses = [one, two, three]
        assert poses[2] is not None
        return self.final(poses[2]).squeeze(-1)


class DeepSequential(Deep):
    """The same, a layer after the other."""

    def forward(self, x: Tensor) -> Tensor:
        below = self.first(self.pose(x).reshape(-1, GRID, GRID, TYPES, POSE))
        for layer in (self.over_windows, self.over_all, self.over_last):
            pose = layer(below, None)
            for _ in range(1, self.passes):
                pose = layer(below, pose)
            below = pose
        return self.final(below).squeeze(-1)

    def over_last(self, pose: Tensor, parent: Tensor | None) -> Tensor:
        return self.over_all(pose, parent, self.w3)
