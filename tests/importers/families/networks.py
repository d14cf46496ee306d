"""The families as plain PyTorch, written from their descriptions, with their authors' key names.

Nothing of the package is used, and each writing is direct: no sharing between them beyond a squash.
Sizes are small: 28x28 images, a 9x9 convolution of 6 channels, primary capsules of 4 types and 8 elements on
6x6 positions, 3 or 5 classes of 6 elements.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

C, T, D, G, J, O = 6, 4, 8, 6, 5, 6  # noqa: E741
I = T * G * G  # noqa: E741


def squash(s: Tensor, dim: int = -1) -> Tensor:
    """Of Sabour et al., without an epsilon."""
    n2 = (s * s).sum(dim, keepdim=True)
    return n2 / (1 + n2) * s / n2.sqrt()


def squash_epsilon(s: Tensor) -> Tensor:
    """With 1e-8 added to the norm."""
    n = s.norm(dim=-1, keepdim=True)
    return n**2 / (1 + n**2) / (n + 1e-8) * s


def by_agreement(
    votes: Tensor, iterations: int, softmax: int, squashed: int = -1, start: Tensor | None = None
) -> Tensor:
    """Votes ``[N, I, J, O]``: softmax over axis 1 (children) or 2 (parents) of the logits."""
    logits = torch.zeros(votes.shape[:3]) if start is None else start.expand(votes.shape[:3])
    for k in range(iterations):
        v = squash((logits.softmax(softmax).unsqueeze(-1) * votes).sum(1), squashed)
        if k < iterations - 1:
            logits = logits + torch.einsum("nijo,njo->nij", votes, v)
    return v


def decoder_of(inputs: int) -> nn.Sequential:
    """A decoder."""
    return nn.Sequential(
        nn.Linear(inputs, 12),
        nn.ReLU(),
        nn.Linear(12, 20),
        nn.ReLU(),
        nn.Linear(20, 784),
        nn.Sigmoid(),
    )


class XifengGuo(nn.Module):
    """Capsules of consecutive elements of the convolution's output."""

    def __init__(self, iterations: int = 3) -> None:
        super().__init__()
        self.iterations = iterations
        self.conv1 = nn.Conv2d(1, C, 9)
        self.primarycaps = nn.Module()
        self.primarycaps.conv2d = nn.Conv2d(C, T * D, 9, 2)
        self.digitcaps = nn.Module()
        self.digitcaps.weight = nn.Parameter(0.3 * torch.randn(J, I, O, D))
        self.decoder = decoder_of(J * O)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u = squash_epsilon(self.primarycaps.conv2d(self.conv1(x).relu()).reshape(len(x), -1, D))
        votes = torch.einsum("jiod,nid->njio", self.digitcaps.weight, u)
        b = torch.zeros(len(x), J, I)
        for k in range(self.iterations):
            v = squash_epsilon((b.softmax(1).unsqueeze(-1) * votes).sum(2))
            if k < self.iterations - 1:
                b = b + (votes * v.unsqueeze(2)).sum(-1)
        lengths = v.norm(dim=-1)
        winner = one_hot(lengths.argmax(1), J).unsqueeze(-1)
        return lengths, self.decoder((v * winner).flatten(1)).reshape(x.shape)


class DanielHavir(XifengGuo):
    """The same function under other names."""

    def __init__(self, iterations: int = 3) -> None:
        super().__init__(iterations)
        self.primary = nn.Module()
        self.primary.conv = self.primarycaps.conv2d
        self.digits = nn.Module()
        self.digits.W = nn.Parameter(self.digitcaps.weight.detach().unsqueeze(0))
        del self.primarycaps, self.digitcaps

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        plain = XifengGuo(self.iterations)
        plain.conv1, plain.decoder = self.conv1, self.decoder
        plain.primarycaps.conv2d = self.primary.conv
        plain.digitcaps.weight = nn.Parameter(self.digits.W[0])
        return plain(x)


class AdamBielski(nn.Module):
    """Learned start logits; n iterations after a first sum."""

    def __init__(self, iterations: int = 3) -> None:
        super().__init__()
        self.iterations = iterations
        self.conv1 = nn.Conv2d(1, C, 9)
        self.primaryCaps = nn.Module()
        self.primaryCaps.conv = nn.Conv2d(C, T * D, 9, 2)
        self.digitCaps = nn.Module()
        self.digitCaps.weights = nn.Parameter(0.3 * torch.randn(I, D, J * O))
        self.digitCaps.routing_module = nn.Module()
        self.digitCaps.routing_module.b = nn.Parameter(torch.randn(I, J))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.primaryCaps.conv(self.conv1(x).relu()).reshape(-1, T, D, G, G)
        u = squash(y.permute(0, 1, 3, 4, 2).reshape(-1, I, D))
        votes = torch.einsum("nid,idk->nik", u, self.digitCaps.weights).reshape(-1, I, J, O)
        v = by_agreement(votes, self.iterations + 1, 2, start=self.digitCaps.routing_module.b)
        return v, v.norm(dim=-1)


class GramAi(nn.Module):
    """Softmax over the children, softmax of the lengths."""

    def __init__(self, prior: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, C, 9)
        self.primary_capsules = nn.Module()
        self.primary_capsules.capsules = nn.ModuleList(nn.Conv2d(C, T, 9, 2) for _ in range(D))
        self.digit_capsules = nn.Module()
        self.digit_capsules.route_weights = nn.Parameter(torch.randn(J, I, D, O))
        if prior:
            self.digit_capsules.route_logits = nn.Parameter(torch.randn(J, 1, I, 1, 1))
        self.decoder = decoder_of(O if prior else J * O)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x).relu()
        u = squash(torch.stack([c(y).flatten(1) for c in self.primary_capsules.capsules], -1))
        votes = torch.einsum("nid,jido->nijo", u, self.digit_capsules.route_weights)
        prior = getattr(self.digit_capsules, "route_logits", None)
        start = None if prior is None else prior.reshape(J, I).T
        return by_agreement(votes, 3, 1, start=start).norm(dim=-1).softmax(-1)


class Laubonghaudoi(nn.Module):
    """The paper's routing; one convolution for each type."""

    def __init__(self, iterations: int = 3, first: bool = False) -> None:
        super().__init__()
        self.iterations, self.first = iterations, first
        self.Conv1 = nn.Conv2d(1, C, 9)
        self.PrimaryCaps = nn.Module()
        self.PrimaryCaps.capsules = nn.ModuleList(nn.Conv2d(C, D, 9, 2) for _ in range(T))
        self.DigitCaps = nn.Module()
        shape = (I, J, O, D) if first else (1, I, J, D, O)
        self.DigitCaps.W = nn.Parameter(torch.randn(shape))
        self.Decoder = nn.Module()
        self.Decoder.fc1, self.Decoder.fc2 = nn.Linear(O, 12), nn.Linear(12, 20)
        self.Decoder.fc3 = nn.Linear(20, 784)

    def forward(self, x: Tensor) -> Tensor:
        y = self.Conv1(x).relu()
        parts = [c(y).reshape(len(x), D, -1, 1) for c in self.PrimaryCaps.capsules]
        u = squash(torch.cat(parts, 3).reshape(len(x), D, -1).transpose(1, 2))
        if self.first:
            return by_agreement(
                torch.einsum("ijod,nid->nijo", self.DigitCaps.W, u), self.iterations, 2
            )
        return by_agreement(
            torch.einsum("ijdo,nid->nijo", self.DigitCaps.W[0], u), self.iterations, 2
        )


class CedricChee(nn.Module):
    """Primary squash over the children; agreements averaged over the batch."""

    def __init__(self, iterations: int = 3, softmax: int = 2, squashed: int = -1) -> None:
        super().__init__()
        self.iterations, self.softmax, self.squashed = iterations, softmax, squashed
        self.conv1 = nn.Module()
        self.conv1.conv0 = nn.Conv2d(1, C, 9)
        self.primary = nn.Module()
        self.primary.conv_units = nn.ModuleList(nn.Conv2d(C, T, 9, 2) for _ in range(D))
        self.digits = nn.Module()
        self.digits.weight = nn.Parameter(torch.randn(1, I, J, O, D))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1.conv0(x).relu()
        units = torch.stack([unit(y) for unit in self.primary.conv_units], 1).reshape(len(x), D, -1)
        u = squash(units, 2).transpose(1, 2)
        votes = torch.einsum("ijod,nid->nijo", self.digits.weight[0], u)
        b = torch.zeros(1, I, J)
        for _ in range(self.iterations):
            v = squash((b.softmax(self.softmax).unsqueeze(-1) * votes).sum(1), self.squashed)
            b = b + torch.einsum("nijo,njo->nij", votes, v).mean(0, keepdim=True)
        return v.unsqueeze(-1)


class TimoMernick(CedricChee):
    """Softmax over the children, squash over the classes."""

    def __init__(self) -> None:
        super().__init__(3, 1, 1)
        for k, unit in enumerate(self.primary.conv_units):
            inner = nn.Module()
            inner.conv0 = unit
            self.primary.add_module(f"unit_{k}", inner)
        del self.primary.conv_units
        self.digits.W = self.digits.weight
        del self.digits.weight
        self.reconstruct0, self.reconstruct1 = nn.Linear(J * O, 12), nn.Linear(12, 20)
        self.reconstruct2 = nn.Linear(20, 784)

    def forward(self, x: Tensor) -> Tensor:
        plain = CedricChee(3, 1, 1)
        plain.conv1.conv0 = self.conv1.conv0
        units = [self.primary.get_submodule(f"unit_{k}.conv0") for k in range(D)]
        plain.primary.conv_units = nn.ModuleList(units)
        plain.digits.weight = self.digits.W
        return plain(x)


class JindongWang(nn.Module):
    """Consecutive elements; softmax over the children; elements squashed alone; averaged over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_layer = nn.Module()
        self.conv_layer.conv = nn.Conv2d(1, C, 9)
        self.primary_capsules = nn.Module()
        self.primary_capsules.capsules = nn.ModuleList(nn.Conv2d(C, T, 9, 2) for _ in range(D))
        self.digit_capsules = nn.Module()
        self.digit_capsules.W = nn.Parameter(torch.randn(1, I, J, O, D))
        self.decoder = nn.Module()
        self.decoder.reconstraction_layers = decoder_of(J * O)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.conv_layer.conv(x).relu()
        parts = torch.stack([c(y) for c in self.primary_capsules.capsules], 1)
        u = squash(parts.reshape(len(x), I, -1))
        votes = torch.einsum("ijod,nid->nijo", self.digit_capsules.W[0], u)
        b = torch.zeros(1, I, J)
        for _ in range(3):
            s = (b.softmax(1).unsqueeze(-1) * votes).sum(1)
            v = s * s.abs() / (1 + s * s)
            b = b + torch.einsum("nijo,njo->nij", votes, v).mean(0, keepdim=True)
        masked = one_hot(v.norm(dim=-1).argmax(1), J).float()
        picture = self.decoder.reconstraction_layers((v * masked.unsqueeze(-1)).flatten(1))
        return v.unsqueeze(-1), picture, masked


class VoteBias(nn.Module):
    """A textbook network with names of its own: consecutive elements, and a constant added to the votes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, C, 9)
        self.caps1 = nn.Conv2d(C, T * D, 9, 2)
        self.W = nn.Parameter(torch.randn(1, I, J, O, D))
        self.bias = nn.Parameter(torch.randn(1, 1, J, O))

    def forward(self, x: Tensor) -> Tensor:
        u = squash(self.caps1(self.first(x).relu()).reshape(len(x), -1, D))
        return by_agreement(torch.einsum("ijod,nid->nijo", self.W[0], u) + self.bias, 3, 2)
