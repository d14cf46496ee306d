"""HR-SEMobileCapsNet, PSCapsNet and Q-CapsNets in plain PyTorch, with their authors' key names."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

CLASSES, O = 3, 5  # noqa: E741


def squash(s: Tensor, dim: int = -1, epsilon: float = 0.0) -> Tensor:
    """The paper's; with what is added to the norm."""
    n = s.norm(dim=dim, keepdim=True)
    return n**2 / (1 + n**2) * (s / (n + epsilon) if epsilon else s / n.clamp(min=1e-30))


def strong(module: nn.Module, factor: float) -> None:
    """Weights and statistics with which an image makes a difference."""
    for m in module.modules():
        if isinstance(m, nn.Conv2d):
            m.weight.data *= factor
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_(0, 0.2)
            m.running_var.uniform_(0.3, 1.2)
            m.weight.data.uniform_(0.5, 1.5)
            m.bias.data.normal_(0, 0.2)


class HRSEMobileCapsNet(nn.Module):
    """Three convolutions with squeeze and excitation, primary capsules of 2 types and 4 elements.

    Args:
        by_channel: a capsule is channels of one position; otherwise consecutive pixels.
    """

    def __init__(
        self, iterations: int = 3, softmax: int = 2, by_channel: bool = True, side: int = 32
    ) -> None:
        super().__init__()
        self.iterations, self.softmax, self.by_channel = iterations, softmax, by_channel
        self.feature_extractor = nn.Module()
        for k, (before, width) in enumerate(((1, 6), (6, 8), (8, 10))):
            gate = nn.Module()
            gate.fc1, gate.fc2 = nn.Linear(width, k + 1), nn.Linear(k + 1, width)
            conv = nn.Conv2d(before, width, 3, 2 if k else 1, 1, bias=False)
            parts = (conv, nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.3), gate)
            self.feature_extractor.add_module(f"layer{k + 1}", nn.ModuleList(parts))
        self.primary_capsules, self.digit_capsules = nn.Module(), nn.Module()
        self.primary_capsules.capsules = nn.Conv2d(10, 8, 3, 2, 1)
        self.places = math.ceil(side / 8) ** 2
        self.digit_capsules.W = nn.Parameter(torch.randn(1, 2 * self.places, CLASSES, O, 4))
        strong(self, 2)

    def forward(self, x: Tensor) -> Tensor:
        for k in range(3):
            conv, norm, relu, _, gate = getattr(self.feature_extractor, f"layer{k + 1}")
            x = relu(norm(conv(x)))
            x = x * gate.fc2(gate.fc1(x.mean((2, 3))).relu()).sigmoid()[..., None, None]
        y = self.primary_capsules.capsules(x)
        if self.by_channel:
            y = y.reshape(len(x), 2, 4, self.places).transpose(2, 3)
        u = squash(y.reshape(len(x), -1, 4), epsilon=1e-8)
        votes = torch.einsum("ijod,nid->nijo", self.digit_capsules.W[0], u)
        b = torch.zeros(votes.shape[:3])
        for _ in range(self.iterations):
            v = squash((b.softmax(self.softmax).unsqueeze(-1) * votes).sum(1), epsilon=1e-8)
            b = b + (votes * v.unsqueeze(1)).sum(-1)
        return v.norm(dim=-1)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or before != width:
            conv = nn.Conv2d(before, width, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        side = x if self.downsample is None else self.downsample(x)
        return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + side).relu()


class PSCapsNet(nn.Module):
    """Residual blocks of 4, 6 and 8 channels; two capsules of 4 channels at each position.

    Args:
        k_means: routing by k-means; otherwise by agreement.
        own: each capsule has a weight of its own, after pooling to 4x4.
        fourth: one stage more.
    """

    def __init__(
        self,
        iterations: int = 3,
        k_means: bool = True,
        own: bool = False,
        fourth: bool = False,
        channels: int = 1,
        accumulated: bool = False,
    ) -> None:
        super().__init__()
        self.iterations, self.k_means, self.accumulated = iterations, k_means, accumulated
        self.conv1 = nn.Sequential(nn.Conv2d(channels, 4, 3, 1, 1, bias=False))
        stages = [(4, 4, 1), (4, 6, 2), (6, 8, 2)] + ([(8, 8, 2)] if fourth else [])
        layers: list[nn.Module] = [nn.BatchNorm2d(4), nn.ReLU()]
        layers += [nn.Sequential(Block(a, b, s), Block(b, b, 1)) for a, b, s in stages]
        layers += [nn.AdaptiveAvgPool2d(4)] if own else []
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Module()
        shape = (CLASSES, 32, O, 4) if own else (CLASSES, O, 4)
        self.classifier.weight = nn.Parameter((0.3 if own else 0.05) * torch.randn(shape))
        strong(self, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        u = self.features(self.conv1(x)).movedim(1, -1).reshape(len(x), -1, 4)
        w = self.classifier.weight
        votes = torch.einsum("jiod,nid->njio" if w.ndim == 4 else "jod,nid->njio", w, u)
        s, logits = votes.sum(2) / CLASSES, 0
        for k in range(self.iterations):
            if self.k_means or k:
                direction = nn.functional.normalize(s, dim=-1) if self.k_means else squash(s)
                agreement = (votes * direction.unsqueeze(2)).sum(-1)
                logits = agreement if self.k_means and not self.accumulated else logits + agreement
                s = (logits.softmax(1).unsqueeze(-1) * votes).sum(2)
        return squash(s).norm(dim=-1)


class QCapsNet(nn.Module):
    """Primary capsules of 2 types and 4 elements, routed once over their types; biases everywhere.

    Args:
        divided: whether that routing divides by the number of types.
    """

    def __init__(self, divided: bool = True) -> None:
        super().__init__()
        self.divided = divided
        self.conv, self.primary, self.digit = nn.Module(), nn.Module(), nn.Module()
        self.conv.conv = nn.Conv2d(1, 6, 9)
        self.primary.conv3d = nn.Conv2d(6, 8, 9, 2, bias=False)
        self.primary.bias = nn.Parameter(0.3 * torch.randn(2, 4, 1, 1))
        self.digit.weight = nn.Parameter(torch.randn(72, 4, CLASSES * O))
        self.digit.bias = nn.Parameter(0.3 * torch.randn(CLASSES, O))
        strong(self, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.primary.conv3d(self.conv.conv(x).relu()).reshape(len(x), 2, 4, 6, 6)
        u = squash((y / 2 if self.divided else y) + self.primary.bias, 2)
        u = u.movedim(2, -1).reshape(len(x), 72, 4)
        votes = torch.einsum("nid,idk->nik", u, self.digit.weight).reshape(-1, 72, CLASSES, O)
        b = torch.zeros(votes.shape[:3])
        for _ in range(3):
            s = torch.einsum("nij,nijo->njo", b.softmax(2), votes) + self.digit.bias
            v = s * s.norm(dim=-1, keepdim=True) / (1 + s.square().sum(-1, keepdim=True))
            b = b + torch.einsum("nijo,njo->nij", votes, v)
        return v
