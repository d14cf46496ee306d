"""EM routing that networks write as Python loops over the positions of a map, in typical ways."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.graph.fusion.em_writings import POSE, SIDE, Paper


@dataclass(frozen=True)
class Loops:
    """How a layer is written.

    Attributes:
        grid: rows and columns of the map.
        kernel, stride: of the windows.
        columns_first: whether the outer loop is over the columns.
        types_first: whether the map is ``[B, C, P, H, W]`` instead of ``[B, H, W, C, P]``.
        put: how results are put together: ``cat``, ``stack`` (then view and permute), ``assign`` (to
            elements of a zero tensor), ``rows`` (one stack in each loop) or ``apart`` (not at all: summed).
        own_weights: whether each position has its own weights.
        without: positions that are left out, by their number.
        located: whether the position of a child, divided by the map's size, is added to its votes.
    """

    grid: tuple[int, int] = (5, 5)
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    columns_first: bool = False
    types_first: bool = True
    put: str = "stack"
    own_weights: bool = False
    without: tuple[int, ...] = ()
    located: bool = False


class LoopedLayer(nn.Module):
    """A map of matrix capsules and one layer of EM routing over its windows."""

    types, parents = 2, 4

    def __init__(self, loops: Loops = Loops()) -> None:  # frozen
        super().__init__()
        torch.manual_seed(1)
        self.loops = loops
        (h, w), (kh, kw), s = loops.grid, loops.kernel, loops.stride
        self.rows, self.columns = range(0, h - kh + 1, s), range(0, w - kw + 1, s)
        self.pose = nn.Conv2d(2, self.types * POSE, 1)
        self.act = nn.Conv2d(2, self.types, 1)
        count = len(self.rows) * len(self.columns) if loops.own_weights else 1
        self.weight = nn.Parameter(
            torch.randn(count, kh * kw * self.types, self.parents, SIDE, SIDE)
        )
        self.betas = nn.ParameterList(nn.Parameter(torch.randn(self.parents)) for _ in range(2))
        self.routing = Paper()

    def example(self, batch: int = 2) -> Tensor:
        seeded = torch.Generator().manual_seed(batch)
        return torch.randn(batch, 2, *self.loops.grid, generator=seeded)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, (h, w) = len(x), self.loops.grid
        pose = torch.tanh(self.pose(x)).reshape(n, self.types, POSE, h, w)
        act = torch.sigmoid(self.act(x))
        if not self.loops.types_first:
            pose, act = pose.permute(0, 3, 4, 1, 2), act.permute(0, 2, 3, 1)
        places = [*itertools.product(self.rows, self.columns)]
        numbered = [*enumerate(places)]
        if self.loops.columns_first:
            numbered.sort(key=lambda one: one[1][::-1])
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for k, (r, c) in numbered:
            if k not in self.loops.without:
                found[k] = self.routed(pose, act, r, c, k)
        return self.put_together(found)

    def routed(self, pose: Tensor, act: Tensor, r: int, c: int, k: int) -> tuple[Tensor, Tensor]:
        """The capsules of one position: ``[B, M, P]`` and ``[B, M]``."""
        rows = slice(r, r + self.loops.kernel[0])
        columns = slice(c, c + self.loops.kernel[1])
        n = len(pose)
        if self.loops.types_first:
            window = pose[..., rows, columns].permute(0, 3, 4, 1, 2)
            a = act[..., rows, columns].permute(0, 2, 3, 1)
        else:
            window, a = pose[:, rows, columns], act[:, rows, columns]
        weight = self.weight[k if self.loops.own_weights else 0]
        votes = window.reshape(n, -1, 1, SIDE, SIDE) @ weight
        votes = votes.reshape(n, *a.shape[1:], self.parents, POSE)
        if self.loops.located:
            votes = votes + self.places()[rows, columns, None, None]
        return self.routing.route(votes.flatten(1, 3), a.reshape(n, -1), *self.betas)

    def places(self) -> Tensor:
        """What is added to the votes of the children at each position ``[H, W, P]``."""
        h, w = self.loops.grid
        added = torch.zeros(h, w, POSE)
        added[..., 0] = torch.arange(h)[:, None] / h
        added[..., 1] = torch.arange(w) / w
        return added

    def put_together(self, found: dict[int, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The results of all positions, by their number in reading order."""
        poses, acts = zip(*found.values(), strict=True)
        h, w = len(self.rows), len(self.columns)
        put = self.loops.put
        if put == "apart":
            return sum(poses[1:], poses[0]), torch.stack(acts).amax(0)
        if put == "cat":
            return torch.cat(poses, 1), torch.cat(acts, 1)
        if put == "assign":
            pose = torch.zeros(len(poses[0]), self.parents, POSE, h, w)
            a = torch.zeros(len(poses[0]), self.parents, h, w)
            for k, (one, other) in found.items():
                pose[..., k // w, k % w] = one
                a[..., k // w, k % w] = other
            return pose, a
        if put == "rows":
            return (
                torch.stack([torch.stack(poses[k : k + w], -1) for k in range(0, h * w, w)], -2),
                torch.stack([torch.stack(acts[k : k + w], -1) for k in range(0, h * w, w)], -2),
            )
        outer, inner = (w, h) if self.loops.columns_first else (h, w)
        pose = torch.stack(poses, 1).view(-1, outer, inner, self.parents, SIDE, SIDE)
        a = torch.stack(acts, 1).view(-1, outer, inner, self.parents)
        if self.loops.columns_first:
            pose, a = pose.transpose(1, 2), a.transpose(1, 2)
        return pose.permute(0, 3, 4, 5, 1, 2), a.permute(0, 3, 1, 2)


class ElementByElement(LoopedLayer):
    """Windows whose capsules are picked one by one."""

    def routed(self, pose: Tensor, act: Tensor, r: int, c: int, k: int) -> tuple[Tensor, Tensor]:
        kh, kw = self.loops.kernel
        cells = [*itertools.product(range(r, r + kh), range(c, c + kw))]
        window = torch.stack([pose[..., y, x] for y, x in cells], 1)
        a = torch.cat([act[..., y, x] for y, x in cells], 1)
        votes = window.reshape(len(pose), -1, 1, SIDE, SIDE) @ self.weight[0]
        return self.routing.route(votes.reshape(len(pose), -1, self.parents, POSE), a, *self.betas)


class WeightFirst(LoopedLayer):
    """Votes W·pose, types before places."""

    def routed(self, pose: Tensor, act: Tensor, r: int, c: int, k: int) -> tuple[Tensor, Tensor]:
        kh, kw = self.loops.kernel
        window = pose[..., r : r + kh, c : c + kw].permute(0, 1, 3, 4, 2)
        a = act[..., r : r + kh, c : c + kw].reshape(len(pose), -1)
        votes = self.weight[0] @ window.reshape(len(pose), -1, 1, SIDE, SIDE)
        return self.routing.route(votes.reshape(len(pose), -1, self.parents, POSE), a, *self.betas)


class RowByRow(LoopedLayer):
    """One call for each row, which routes all of its windows."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, (h, w) = len(x), self.loops.grid
        pose = torch.tanh(self.pose(x)).reshape(n, self.types, POSE, h, w).permute(0, 3, 4, 1, 2)
        act = torch.sigmoid(self.act(x)).permute(0, 2, 3, 1)
        poses, acts = [], []
        kh, kw = self.loops.kernel
        for r in self.rows:
            row, of_row = pose[:, r : r + kh], act[:, r : r + kh]
            windows = [row[:, :, c : c + kw].reshape(n, -1, 1, SIDE, SIDE) for c in self.columns]
            a = torch.stack([of_row[:, :, c : c + kw].reshape(n, -1) for c in self.columns], 1)
            votes = torch.stack(windows, 1).flatten(0, 1) @ self.weight[0]
            mean, out = self.routing.route(
                votes.reshape(len(votes), -1, self.parents, POSE), a.flatten(0, 1), *self.betas
            )
            poses.append(mean.view(n, -1, self.parents, POSE))
            acts.append(out.view(n, -1, self.parents))
        return torch.stack(poses, 1), torch.stack(acts, 1)


class Pair(nn.Module):
    """Two layers in loops: the second reads what the first put together."""

    def __init__(self) -> None:
        super().__init__()
        self.first = LoopedLayer(Loops((3, 3), (2, 2)))
        self.second = LoopedLayer(Loops((2, 2), (2, 1)))
        self.second.weight = nn.Parameter(
            torch.randn(1, 2 * self.first.parents, self.first.parents, SIDE, SIDE)
        )

    def example(self) -> Tensor:
        return self.first.example()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pose, a = self.first(x)
        pose = pose.reshape(len(x), self.first.parents, POSE, 2, 2)
        return self.second.put_together({k: self.second.routed(pose, a, 0, k, 0) for k in range(2)})
