"""FixCaps in plain PyTorch, written from its description, with its author's key names; small.

16 channels before the attention, primary capsules of 2 types and 4 elements on 6x6 positions, 3 classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import fractional_max_pool2d

C, UNITS, CLASSES, O = 16, 4, 3, 5  # noqa: E741
TYPES = C // 8
I = TYPES * 6 * 6  # noqa: E741


class OverChannels(nn.Module):
    """Normalization of the channels of each position."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.3 * torch.randn(channels))
        self.bias = nn.Parameter(0.3 * torch.randn(channels))

    def forward(self, x: Tensor) -> Tensor:
        spread, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
        scaled = (x - mean) * (spread + 1e-6).rsqrt()
        return scaled * self.weight[:, None, None] + self.bias[:, None, None]


def trained(norm: nn.Module) -> nn.Module:
    """Normalization of the batch with statistics that are not the initial ones."""
    if isinstance(norm, nn.BatchNorm2d):
        norm.running_mean = 0.2 * torch.randn(norm.num_features)
        norm.running_var = 0.5 + torch.rand(norm.num_features)
        norm.weight = nn.Parameter(0.5 + torch.rand(norm.num_features))
    return norm


class Pool(nn.Module):
    """Fractional max pooling to 20x20: of a given fraction, or a new one at each call."""

    def __init__(self, fraction: float | None = 0.3125) -> None:
        super().__init__()
        self.fraction = fraction

    def forward(self, x: Tensor) -> Tensor:
        samples = None
        if self.fraction is not None:
            samples = torch.full((*x.shape[:2], 2), self.fraction, dtype=x.dtype)
        return fractional_max_pool2d(x, 2, output_size=(20, 20), _random_samples=samples)


class Attention(nn.Module):
    """1x1 convolution, normalization, hard swish; factors for channels, then for positions."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(C, C, 1, bias=False), trained(norm)
        self.ca, self.sa = nn.Module(), nn.Module()
        self.ca.fc1, self.ca.fc2 = (nn.Conv2d(C, C, 1, bias=False) for _ in range(2))
        self.sa.conv1 = nn.Conv2d(2, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        y = y * (y + 3).clamp(0, 6) / 6
        flat = y.flatten(2)
        mean, largest = (
            self.ca.fc2(self.ca.fc1(v[..., None, None]).relu())
            for v in (flat.mean(2), flat.amax(2))
        )
        y = y * torch.sigmoid(mean + largest)
        both = torch.stack([y.mean(1), y.amax(1)], 1)
        return y * torch.sigmoid(self.sa.conv1(both))


def over(s: Tensor, dim: int) -> Tensor:
    """The paper's squash along any axis."""
    n2 = s.square().sum(dim, keepdim=True)
    return n2 / (1 + n2) * s / n2.sqrt()


class FixCaps(nn.Module):
    """The network.

    Args:
        stem: its layers up to the ReLU.
        norm: of the attention.
        bias: of the primary convolutions.
        squashed: axis of the class capsules ``[N, J, O]`` that the squash runs over.
    """

    def __init__(
        self,
        *stem: nn.Module,
        norm: nn.Module,
        bias: bool = False,
        pool: nn.Module | None = None,
        squashed: int = 1,
    ) -> None:
        super().__init__()
        self.squashed = squashed
        self.Convolution = nn.Sequential(*map(trained, stem), nn.ReLU(), pool or Pool())
        self.CBAM = Attention(norm)
        self.primary = nn.Module()
        for k in range(UNITS):
            conv = nn.Conv2d(C, TYPES, 9, 2, groups=TYPES, bias=bias)
            unit = nn.Module()
            unit.Cpas = nn.Sequential(conv)
            self.primary.add_module(f"Caps_{k}", unit)
        self.digits = nn.Module()
        self.digits.W = nn.Parameter(20 * torch.randn(1, I, CLASSES, O, UNITS))
        for conv in self.modules():
            if isinstance(conv, nn.Conv2d):
                conv.weight.data *= 3  # so that an image makes a difference

    def forward(self, x: Tensor) -> Tensor:
        y = self.CBAM(self.Convolution(x))
        units = [self.primary.get_submodule(f"Caps_{k}.Cpas")(y).flatten(1) for k in range(UNITS)]
        u = over(torch.stack(units, 1), 2)
        votes = torch.einsum("ijod,ndi->nijo", self.digits.W[0], u)
        b = torch.zeros(1, I, CLASSES)
        for _ in range(3):
            v = over((b.softmax(1).unsqueeze(-1) * votes).sum(1), self.squashed)
            b = b + (votes * v.unsqueeze(1)).sum(-1).mean(0, keepdim=True)
        return v.unsqueeze(-1)


def large(**changes: object) -> FixCaps:
    """One large convolution without a bias, as for COVID-19."""
    options = {"norm": OverChannels(C), **changes}
    return FixCaps(nn.Conv2d(3, C, 11, 2, bias=False), **options)  # type: ignore[arg-type]


def separable(
    norm: nn.Module | None = None, bias: bool = False, stride: int = 2, first: bool = False
) -> FixCaps:
    """A depthwise and a 1x1 convolution, then a normalization; with a 3x3 convolution before, ``first``."""
    stem = [nn.Conv2d(3, 3, 3, 2)] if first else []
    stem += [nn.Conv2d(3, 3, 9, 2, groups=3), nn.Conv2d(3, C, 1, stride)]
    norms = [] if norm is None else [norm]
    return FixCaps(*stem, *norms, norm=nn.BatchNorm2d(C), bias=bias)
