"""Networks of users, written as they write them, for `benchmarks.export_time`.

Each is plain PyTorch with weights drawn from a seed; `NETWORKS` has them with an example of their input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """A network that is exported.

    Attributes:
        make: makes it, in evaluation mode.
        example: the shape of its input; the first axis is the batch.
        words: for a network of words, the number of words that it knows; its input is their numbers.
    """

    make: Callable[[], nn.Module]
    example: tuple[int, ...]
    words: int = 0

    def input(self) -> Tensor:
        """An example."""
        torch.manual_seed(1)
        if self.words:
            return torch.randint(1, self.words, self.example)
        return torch.rand(self.example)


def squash(s: Tensor, dim: int = -1) -> Tensor:
    """Squash with an epsilon added to the norm."""
    norm = s.norm(dim=dim, keepdim=True)
    return norm**2 / (1 + norm**2) * s / (norm + 1e-8)


def routed(votes: Tensor, iterations: int = 3) -> Tensor:
    """Dynamic routing of votes ``[B, J, I, P]``."""
    b = torch.zeros(votes.shape[:3], device=votes.device)
    for i in range(iterations):
        c = F.softmax(b, dim=1)
        v = squash((c[..., None] * votes).sum(dim=2))
        if i < iterations - 1:
            b = b + (votes * v[:, :, None]).sum(dim=-1)
    return v


class CapsNet(nn.Module):
    """That of the tutorial."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 9)
        self.primary = nn.Conv2d(16, 16, 9, stride=2)
        self.weight = nn.Parameter(0.1 * torch.randn(classes, 72, 16, 8))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        u = squash(self.primary(F.relu(self.conv1(x))).view(x.size(0), -1, 8))
        votes = torch.matmul(self.weight, u[:, None, :, :, None]).squeeze(-1)
        v = routed(votes)
        return {"lengths": v.norm(dim=-1), "poses": v}


class ConvCaps(nn.Module):
    """A convolutional layer of capsules that routes at every pixel, as in SegCaps."""

    def __init__(
        self, given: int, depth: int, types: int, pose: int, stride: int, rounds: int
    ) -> None:
        super().__init__()
        self.types, self.pose, self.rounds = types, pose, rounds
        self.conv = nn.Conv2d(depth, types * pose, 5, stride, 2, bias=False)
        self.bias = nn.Parameter(0.1 * torch.ones(1, 1, types, pose, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        n, i, depth, h, w = x.shape
        votes = self.conv(x.reshape(n * i, depth, h, w))
        h, w = votes.shape[-2:]
        votes = votes.view(n, i, self.types, self.pose, h, w)
        b = votes.new_zeros(n, i, self.types, 1, h, w)
        for k in range(self.rounds):
            c = torch.softmax(b, dim=2)
            s = (c * votes).sum(dim=1, keepdim=True) + self.bias
            v = squash(s, dim=3)
            if k < self.rounds - 1:
                b = b + (votes * v).sum(dim=3, keepdim=True)
        return v.squeeze(1)


class SegCaps(nn.Module):
    """A small SegCaps with two routed layers; probabilities ``[B, 2, H, W]`` of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 5, padding=2)
        self.first = ConvCaps(1, 16, 2, 16, 2, 1)
        self.second = ConvCaps(2, 16, 4, 16, 1, 3)
        self.last = ConvCaps(4, 16, 2, 16, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(F.relu(self.stem(x))[:, None])
        y = self.last(self.second(y))
        lengths = y.norm(dim=2)
        return F.interpolate(lengths, scale_factor=2, mode="nearest")


class DeepCapsCell(nn.Module):
    """A residual block of convolutional capsules, squashed after every convolution."""

    def __init__(self, given: int, types: int, pose: int) -> None:
        super().__init__()
        self.types, self.pose = types, pose
        sizes = [(given, 2), (types * pose, 1), (types * pose, 1), (types * pose, 1)]
        self.convs = nn.ModuleList(
            nn.Conv2d(depth, types * pose, 3, stride, 1) for depth, stride in sizes
        )

    def forward(self, x: Tensor) -> Tensor:
        def capsules(conv: nn.Module, x: Tensor) -> Tensor:
            y = conv(x)
            y = squash(y.view(len(y), self.types, self.pose, *y.shape[-2:]), dim=2)
            return y.flatten(1, 2)

        first, *others, side = self.convs
        y = capsules(first, x)
        shortcut = capsules(side, y)
        for conv in others:
            y = capsules(conv, y)
        return y + shortcut


class DeepCaps(nn.Module):
    """A DeepCaps for images of 32x32: cells, a routed convolutional layer, and class capsules."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.cells = nn.ModuleList([DeepCapsCell(32, 8, 4), DeepCapsCell(32, 8, 8)])
        self.routed = ConvCaps(8, 8, 8, 8, 2, 3)
        self.weight = nn.Parameter(0.1 * torch.randn(classes, 8 * 16, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.stem(x))
        for cell in self.cells:
            y = cell(y)
        y = self.routed(y.view(len(y), 8, 8, *y.shape[-2:]))
        u = y.permute(0, 1, 3, 4, 2).reshape(len(y), -1, 8)
        votes = torch.matmul(self.weight, u[:, None, :, :, None]).squeeze(-1)
        return routed(votes).norm(dim=-1)


class EfficientCapsNet(nn.Module):
    """Self-attention between capsules, without iterations (Mazzia et al. 2021)."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        sizes = [(1, 32, 5, 1), (32, 64, 3, 1), (64, 64, 3, 1), (64, 128, 3, 2)]
        layers: list[nn.Module] = []
        for given, made, side, stride in sizes:
            layers += [nn.Conv2d(given, made, side, stride), nn.ReLU(), nn.BatchNorm2d(made)]
        self.stem = nn.Sequential(*layers)
        self.depthwise = nn.Conv2d(128, 128, 9, groups=128)
        self.weight = nn.Parameter(0.1 * torch.randn(classes, 16, 8, 16))
        self.bias = nn.Parameter(torch.zeros(classes, 16, 1))

    @staticmethod
    def squash(s: Tensor) -> Tensor:
        norm = s.norm(dim=-1, keepdim=True)
        return (1 - 1 / (torch.exp(norm) + 1e-20)) * (s / (norm + 1e-20))

    def forward(self, x: Tensor) -> Tensor:
        u = self.squash(self.depthwise(self.stem(x)).view(len(x), 16, 8))
        votes = torch.einsum("bji,kjiz->bkjz", u, self.weight)
        c = torch.einsum("bkjz,bkiz->bkji", votes, votes) / 16**0.5
        c = c.sum(dim=-2, keepdim=True).transpose(-1, -2)
        c = torch.softmax(c, dim=1) + self.bias
        return self.squash((votes * c).sum(dim=-2)).norm(dim=-1)


class TextCaps(nn.Module):
    """Words, convolutions over them, and two routed layers (Zhao et al. 2018, small)."""

    def __init__(self, words: int = 2000, classes: int = 6) -> None:
        super().__init__()
        self.table = nn.Embedding(words, 64)
        self.conv = nn.Conv1d(64, 64, 3, stride=2)
        self.primary = nn.Conv1d(64, 64, 3, stride=2)
        self.first = nn.Parameter(0.1 * torch.randn(16, 56, 8, 8))
        self.last = nn.Parameter(0.1 * torch.randn(classes, 16, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv(self.table(x).transpose(1, 2)))
        u = squash(self.primary(y).view(len(x), -1, 8))
        u = routed(torch.matmul(self.first, u[:, None, :, :, None]).squeeze(-1))
        v = routed(torch.matmul(self.last, u[:, None, :, :, None]).squeeze(-1))
        return v.norm(dim=-1)


class ComiRec(nn.Module):
    """Interests of a user from the items of a history (Cen et al. 2020, dynamic routing)."""

    start: Tensor

    def __init__(
        self, items: int = 2000, length: int = 20, interests: int = 4, size: int = 64
    ) -> None:
        super().__init__()
        self.interests, self.length, self.size = interests, length, size
        self.table = nn.Embedding(items, size, padding_idx=0)
        self.weight = nn.Parameter(0.1 * torch.randn(1, length, interests * size, size))
        torch.manual_seed(2)
        self.register_buffer("start", torch.randn(1, interests, length))

    def forward(self, history: Tensor) -> Tensor:
        items = self.table(history)
        votes = (self.weight[:, : items.shape[1]] * items[:, :, None]).sum(dim=3)
        votes = votes.view(-1, self.length, self.interests, self.size).transpose(1, 2)
        mask = (history != 0)[:, None].repeat(1, self.interests, 1)
        logits = self.start.repeat(len(history), 1, 1)
        for i in range(3):
            share = torch.where(mask, torch.softmax(logits, dim=1), torch.zeros_like(logits))
            capsules = torch.matmul(share[:, :, None], votes)
            square = (capsules**2).sum(dim=-1, keepdim=True)
            capsules = square / (1 + square) / torch.sqrt(square + 1e-9) * capsules
            if i < 2:
                change = torch.matmul(votes, capsules.transpose(2, 3))
                logits = logits + change.view(-1, self.interests, self.length)
        return capsules.view(-1, self.interests, self.size)


class LoopedEM(nn.Module):
    """Matrix capsules whose EM routing is called for one position after another."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.types, self.middle, self.classes = 4, 4, classes
        self.stem = nn.Conv2d(1, 16, 5, 2)
        self.pose = nn.Conv2d(16, 64, 1)
        self.act = nn.Conv2d(16, 4, 1)
        self.w1 = nn.Parameter(torch.randn(1, 36, self.middle, 4, 4))
        self.w2 = nn.Parameter(torch.randn(1, self.middle, classes, 4, 4))
        self.beta_u = nn.ParameterList(nn.Parameter(torch.randn(k)) for k in (self.middle, classes))
        self.beta_a = nn.ParameterList(nn.Parameter(torch.randn(k)) for k in (self.middle, classes))

    def route(self, votes: Tensor, a: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """EM of votes ``[B, I, J, 16]``."""
        r = torch.full_like(votes[..., :1], 1 / votes.shape[2])
        for i in range(3):
            r = r * a[:, :, None, None]
            total = r.sum(dim=1, keepdim=True) + 1e-8
            mean = (r * votes).sum(dim=1, keepdim=True) / total
            spread = (r * (votes - mean) ** 2).sum(dim=1, keepdim=True) / total + 1e-8
            cost = (self.beta_u[layer][:, None] + 0.5 * torch.log(spread)) * total
            out = torch.sigmoid(
                0.01 * (1 - 0.95 ** (i + 1)) * (self.beta_a[layer] - cost.sum(dim=-1))
            )
            if i < 2:
                log_p = -((votes - mean) ** 2) / (2 * spread) - 0.5 * torch.log(
                    6.283185307 * spread
                )
                r = torch.softmax(log_p.sum(-1) + torch.log(out + 1e-8), dim=2)[..., None]
        return mean.squeeze(1), out.squeeze(1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.stem(x))
        n, _, h, w = y.shape
        pose = self.pose(y).view(n, self.types, 16, h, w)
        act = torch.sigmoid(self.act(y))
        places = range(0, h - 2, 2)
        poses, acts = [], []
        for r in places:
            for c in places:
                patch = (
                    pose[..., r : r + 3, c : c + 3].permute(0, 1, 3, 4, 2).reshape(n, 36, 1, 4, 4)
                )
                a = act[..., r : r + 3, c : c + 3].reshape(n, 36)
                mean, out = self.route((patch @ self.w1).view(n, 36, self.middle, 16), a, 0)
                poses.append(mean)
                acts.append(out)
        mean, out = torch.cat(poses, dim=1), torch.cat(acts, dim=1)
        count = len(places) ** 2
        votes = mean.view(n, -1, 1, 4, 4) @ self.w2.repeat(1, count, 1, 1, 1)
        return self.route(votes.view(n, -1, self.classes, 16), out, 1)[1]


class Streams(nn.Module):
    """Thirteen equal streams of dynamic routing, each over its part of the features."""

    def __init__(self, streams: int = 13) -> None:
        super().__init__()
        self.streams = streams
        self.conv = nn.Conv2d(1, 8 * streams, 9, 3)
        self.weights = nn.ParameterList(
            nn.Parameter(0.1 * torch.randn(3, 49, 8, 8)) for _ in range(streams)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv(x)).view(len(x), self.streams, 8, -1)
        found = []
        for k in range(self.streams):
            u = squash(y[:, k].transpose(1, 2))
            votes = torch.matmul(self.weights[k], u[:, None, :, :, None]).squeeze(-1)
            found.append(routed(votes).norm(dim=-1))
        return torch.stack(found, dim=1).mean(dim=1)


class Recurrent(nn.Module):
    """An LSTM of 128 steps, then dynamic routing over its outputs."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.primary = nn.Conv1d(32, 32, 5, stride=4)
        self.weight = nn.Parameter(0.1 * torch.randn(classes, 31 * 4, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x)
        u = squash(self.primary(y.transpose(1, 2)).reshape(len(x), -1, 8))
        return routed(torch.matmul(self.weight, u[:, None, :, :, None]).squeeze(-1)).norm(dim=-1)


def checkpoint(name: str) -> Path:
    """The file of a bundled model's weights."""
    from capsedge.runtime.zoo import zoo_model

    path = zoo_model(name)
    assert path is not None
    return path.with_suffix(".safetensors")


def digits_em() -> nn.Module:
    """The network of the bundled model of that name."""
    from capsedge.models.checkpoint import load_checkpoint

    return load_checkpoint(checkpoint("digits-em"))


NETWORKS = {
    "capsnet": Network(CapsNet, (2, 1, 28, 28)),
    "digits-em": Network(digits_em, (2, 1, 28, 28)),
    "segcaps": Network(SegCaps, (2, 1, 64, 64)),
    "deepcaps": Network(DeepCaps, (2, 3, 32, 32)),
    "efficient-capsnet": Network(EfficientCapsNet, (2, 1, 28, 28)),
    "text": Network(TextCaps, (2, 31), words=2000),
    "comirec": Network(ComiRec, (2, 20), words=2000),
    "em-loops": Network(LoopedEM, (2, 1, 20, 20)),
    "streams": Network(Streams, (2, 1, 28, 28)),
    "lstm": Network(Recurrent, (2, 128, 16)),
}
