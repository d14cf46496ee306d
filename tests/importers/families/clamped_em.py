"""The matrix capsules of Yuxian Meng in plain PyTorch, child by child, from their description."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Layer(nn.Module):
    """``kernel`` 0: class capsules, whose weight all places share."""

    def __init__(
        self, types_in: int, types: int, kernel: int, stride: int, iterations: int
    ) -> None:
        super().__init__()
        places = (kernel, kernel) if kernel else ()
        self.W = nn.Parameter(torch.randn(types_in, *places, types, 4, 4))
        self.beta_v = nn.Parameter(torch.randn(1))
        self.beta_a = nn.Parameter(torch.randn(types))
        self.kernel, self.stride, self.iterations, self.types = kernel, stride, iterations, types

    def votes(self, pose: Tensor) -> Tensor:
        """Poses ``[N, B, S, S, 16]`` to ``[N, B, K, K, C, w, w, 16]``."""
        n, b, side = pose.shape[:3]
        k = self.kernel or side
        w = (side - k) // self.stride + 1
        stacked = pose.new_empty(n, b, k, k, 16, w, w)
        for x in range(w):
            for y in range(w):
                part = pose[:, :, self.stride * x :, self.stride * y :][:, :, :k, :k]
                stacked[..., x, y] = part
        mixed = stacked.reshape(n, b, k, k, w, w, 4, 4)  # elements and positions change places
        weight = self.W if self.kernel else self.W[:, None, None].expand(b, k, k, *self.W.shape[1:])
        made = torch.einsum("bklcij,nbklxyjm->nbklcxyim", weight, mixed)
        if not self.kernel:
            at = torch.arange(side) / side
            made[..., 0, 0] += at.reshape(1, 1, -1, 1, 1, 1, 1)
            made[..., 0, 1] += at.reshape(1, 1, 1, -1, 1, 1, 1)
        return made.flatten(-2)

    def forward(self, pose: Tensor, a: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        votes = self.votes(pose)
        n, b, k, _, c, w = votes.shape[:6]
        r = torch.full((n, b, k, k, c, w, w), 1 / (c * w * w))
        for t in range(self.iterations):
            mean, variance, out = self.m_step(votes, r, a, temperature)
            if t + 1 < self.iterations:
                r = self.e_step(votes, mean, variance, out, a.shape[2])
        return mean, out

    def m_step(
        self, votes: Tensor, r: Tensor, a: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        k, w, s = votes.shape[2], votes.shape[5], self.stride
        acting = torch.empty(r.shape)
        for x in range(w):
            for y in range(w):
                acting[..., x, y] = a[:, :, s * x : s * x + k, s * y : s * y + k].unsqueeze(-1)
        share = torch.maximum(r * acting, torch.tensor(0.01)).unsqueeze(-1)
        total = share.sum((1, 2, 3))
        mean = (share * votes).sum((1, 2, 3)) / total
        apart = votes - mean[:, None, None, None]
        variance = torch.maximum((share * apart**2).sum((1, 2, 3)) / total, torch.tensor(0.01))
        cost = ((self.beta_v + variance.log()) * total).sum(-1)
        out = torch.sigmoid(temperature * (self.beta_a.reshape(-1, 1, 1) - cost))
        return mean, variance, out

    def e_step(
        self, votes: Tensor, mean: Tensor, variance: Tensor, out: Tensor, side: int
    ) -> Tensor:
        k, w, s = votes.shape[2], votes.shape[5], self.stride
        r = torch.zeros(votes.shape[:-1])
        for i in range(side):
            for j in range(side):
                seeing = [
                    (x, y) for x in range(w) for y in range(w)
                    if 0 <= i - s * x < k and 0 <= j - s * y < k
                ]  # fmt: skip
                shares = []
                for x, y in seeing:
                    vote = votes[:, :, s * x - i, s * y - j, :, x, y]  # negative: from the end
                    gauss = torch.exp(-((vote - mean[:, None, :, x, y]) ** 2))
                    gauss = gauss / (2 * math.pi * variance[:, None, :, x, y]).sqrt()
                    shares.append(gauss.prod(-1) * out[:, None, :, x, y])
                total = sum(share.sum(2) for share in shares)
                for (x, y), share in zip(seeing, shares, strict=True):
                    r[:, :, i - s * x, j - s * y, :, x, y] = share / total.unsqueeze(-1)
        return r


class YuxianMeng(nn.Module):
    """Images of 24x24 or others; 2 and 3 types, 4 classes."""

    def __init__(self, iterations: int = 1, temperature: float = 0.02) -> None:
        super().__init__()
        self.temperature = temperature
        self.conv1 = nn.Conv2d(1, 5, 5, 2)
        self.primary_caps = nn.Module()
        self.primary_caps.capsules_pose = nn.ModuleList(nn.Conv2d(5, 16, 1) for _ in range(2))
        self.primary_caps.capsules_activation = nn.ModuleList(nn.Conv2d(5, 1, 1) for _ in range(2))
        self.convcaps1 = Layer(2, 3, 3, 2, iterations)
        self.convcaps2 = Layer(3, 2, 3, 1, iterations)
        self.classcaps = Layer(2, 4, 0, 1, iterations)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Poses ``[N, 4, 16]`` and activations ``[N, 4]``."""
        x = self.conv1(x).relu()
        poses = torch.cat([conv(x) for conv in self.primary_caps.capsules_pose], 1)
        pose = poses.reshape(len(x), 16, 2, *x.shape[2:]).permute(0, 2, 3, 4, 1)
        a = torch.cat([conv(x) for conv in self.primary_caps.capsules_activation], 1).sigmoid()
        for layer in (self.convcaps1, self.convcaps2, self.classcaps):
            pose, a = layer(pose, a, self.temperature)
        return pose[:, :, 0, 0], a[:, :, 0, 0]
