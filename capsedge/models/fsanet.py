"""FSA-Net: head pose from two streams, by soft stagewise regression (Yang et al. 2019)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from capsedge.models import ops
from capsedge.models.base import CapsuleModel, CapsuleOutput
from capsedge.models.configs import FSANetConfig, PooledFSANetConfig

# --- Aggregation without capsules, from the authors' comparison ---

_LEAST = 1e-12  # squared norm that a vector is divided by


class Metric(nn.Module):
    """One linear map over the elements and one over the capsules: ``[N, I, D]`` to ``[N, S, P]``."""

    def __init__(self, children: int, features: int, stages: int, dim: int) -> None:
        super().__init__()
        self.elements = nn.Parameter(torch.randn(dim, features) / features**0.5)
        self.shares = nn.Parameter(torch.randn(children, stages) / children**0.5)

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the stages, and each capsule's share in them ``[N, I, S]``."""
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
    """Normalize to length one along the second axis."""
    return x / x.square().sum(1, keepdim=True).clamp(min=_LEAST).sqrt()


# --- The network: two streams, fine-grained mapping, routed stages ---

STAGES = 3
FEATURES = 64  # channels of each stage's map
_WIDTHS = (16, 32, 32, 64, 64, 128, 128)  # widths of a stream's blocks
_SMALL = 1e-8  # under the sums of a mapping


class SeparableBlock(nn.Module):
    """A separable 3x3 convolution, batch normalization, activation."""

    def __init__(self, inputs: int, outputs: int, activation: str, config: FSANetConfig) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(
            inputs, inputs, 3, padding=1, groups=inputs, bias=config.depthwise_bias
        )
        self.pointwise = nn.Conv2d(inputs, outputs, 1)
        self.norm = nn.BatchNorm2d(outputs, config.norm_epsilon)
        self.activation = nn.Tanh() if activation == "tanh" else nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` to ``[N, C', H, W]``."""
        y: Tensor = self.activation(self.norm(self.pointwise(self.depthwise(x))))
        return y


class FeatureStream(nn.Module):
    """Seven blocks with pooling between them; maps of three stages."""

    def __init__(self, pool: nn.Module, first: str, activation: str, config: FSANetConfig) -> None:
        super().__init__()
        self.pool = pool
        self.blocks = nn.ModuleList(
            SeparableBlock(a, b, first if k == 0 else activation, config)
            for k, (a, b) in enumerate(pairwise((config.preprocessing.channels, *_WIDTHS)))
        )
        self.maps = nn.ModuleList(nn.Conv2d(width, FEATURES, 1) for width in _WIDTHS[2::2])
        self.activation = nn.Tanh() if activation == "tanh" else nn.ReLU()

    def forward(self, x: Tensor) -> list[Tensor]:
        """``[N, C, H, W]`` to the maps of the stages, the largest first."""
        found = []
        for k, block in enumerate(self.blocks):
            x = block(x)
            if k in (0, 2, 4):
                x = self.pool(x)
            if k in (2, 4, 6):
                found.append(self.activation(self.maps[k // 2 - 1](x)))
        return found


class Mapping(nn.Module):
    """Fine-grained structure mapping: capsules as means of features, weighted by learned scores."""

    def __init__(self, scoring: str, places: int, config: FSANetConfig) -> None:
        super().__init__()
        self.scoring, self.places, self.rows = scoring, places, config.rows
        self.shape = (config.primary_types, config.mixtures)
        if scoring == "none":
            return
        if scoring == "convolution":
            self.score = nn.Conv2d(FEATURES, 1, 1)
        self.right = nn.Linear(places, config.mixtures * STAGES * places)
        self.left = nn.Linear(STAGES * places, config.primary_types * config.mixtures)

    def forward(self, maps: list[Tensor]) -> Tensor:
        """Maps ``[N, 64, H, W]`` to capsules ``[N, I, 64]``."""
        ordered = [m.permute(0, 2, 3, 1) if self.rows == "positions" else m for m in maps]
        features = torch.cat([m.reshape(-1, self.places, FEATURES) for m in ordered], 1)
        if self.scoring == "none":
            return features
        scores = torch.cat([self._scores(m).reshape(-1, 1, self.places) for m in maps], 1)
        types, mixtures = self.shape
        left = self.left(scores.flatten(1)).sigmoid().reshape(-1, 1, types, mixtures)
        right = self.right(scores).sigmoid().reshape(-1, STAGES, mixtures, STAGES * self.places)
        weights = (left @ right).reshape(-1, STAGES * types, STAGES * self.places)
        capsules: Tensor = (weights @ features) / (weights.sum(-1, keepdim=True) + _SMALL)
        return capsules

    def _scores(self, x: Tensor) -> Tensor:
        if self.scoring == "convolution":
            scored: Tensor = self.score(x).sigmoid()
            return scored
        if self.scoring == "variance":
            spread: Tensor = x.var(1, correction=0)
            return spread
        return torch.ones_like(x[:, 0])


class Stage(nn.Module):
    """Bins, shift and scale of one stage, from elements 8 on, 0 to 3, and 4 to 7 of its capsule."""

    def __init__(self, config: FSANetConfig) -> None:
        super().__init__()
        values = len(config.value_names)
        self.values, self.bins = values, config.bins
        self.shift, self.scale = nn.Linear(4, values), nn.Linear(4, values)
        self.share = nn.Linear(config.capsule_dim - 8, values * config.bins)

    def forward(self, capsule: Tensor) -> tuple[Tensor, Tensor]:
        """``[N, P]`` to the stage's value and the width of its bins, each ``[N, values]``."""
        shift = self.shift(capsule[:, :4]).tanh()
        width = self.bins * (1 + self.scale(capsule[:, 4:8]).tanh())
        share = self.share(capsule[:, 8:]).relu().reshape(-1, self.values, self.bins)
        bins = torch.arange(self.bins, dtype=capsule.dtype, device=capsule.device) - self.bins // 2
        return ((bins + shift.unsqueeze(-1)) * share).sum(-1), width


class FSANetPart(nn.Module):
    """One network of an FSA-Net, with its own scoring; the estimates of all are averaged."""

    ranges: Tensor

    def __init__(self, scoring: str, config: FSANetConfig) -> None:
        super().__init__()
        self.config = config
        self.average = FeatureStream(nn.AvgPool2d(2), "relu", "relu", config)
        self.largest = FeatureStream(nn.MaxPool2d(2), config.second_stream, "tanh", config)
        height, width = (n // 2 // 2 // 2 for n in config.preprocessing.shape[1:])
        self.mapping = Mapping(scoring, height * width, config)
        types = height * width if scoring == "none" else config.primary_types
        children, dim = STAGES * types, config.capsule_dim
        self.pooling: nn.Module | None = None
        if not isinstance(config, PooledFSANetConfig):
            self.weight = nn.Parameter(0.1 * torch.randn(children, STAGES, dim, FEATURES))
        elif config.pooling == "metric":
            self.pooling = Metric(children, FEATURES, STAGES, dim)
        else:
            self.pooling = NetVLAD(FEATURES, STAGES, dim)
        self.stages = nn.ModuleList(Stage(config) for _ in range(STAGES))
        self.register_buffer("ranges", torch.tensor(config.ranges), persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values ``[N, values]``, capsules ``[N, 3, P]`` and couplings ``[N, I, 3]``."""
        maps = [a * b for a, b in zip(self.average(images), self.largest(images), strict=True)]
        maps[0] = nn.functional.avg_pool2d(maps[0], 2)
        poses, couplings = self._stages(self.mapping(maps[::-1]))
        total, divisor = torch.zeros_like(poses[:, 0, :1]), torch.ones_like(poses[:, 0, :1])
        for k, stage in enumerate(self.stages):
            value, width = stage(poses[:, k])
            divisor = divisor * width
            total = total + value / divisor
        return total * self.ranges, poses, couplings

    def _stages(self, capsules: Tensor) -> tuple[Tensor, Tensor]:
        """``[N, I, 64]`` to the stages' capsules ``[N, 3, P]`` and couplings ``[N, I, 3]``."""
        if self.pooling is not None:
            pooled: tuple[Tensor, Tensor] = self.pooling(capsules)
            return pooled
        c = self.config
        return ops.dynamic_routing(
            capsules, self.weight, iterations=c.iterations, epsilon=c.epsilon
        )


class FSANet(CapsuleModel):
    """The mean of the values that its parts estimate."""

    config: FSANetConfig
    score_name = "values"

    def __init__(self, config: FSANetConfig) -> None:
        super().__init__(config)
        self.parts = nn.ModuleList(FSANetPart(scoring, config) for scoring in config.scorings)

    def forward(self, images: Tensor) -> CapsuleOutput:
        """Values as scores ``[N, values]``; poses of all parts, and couplings of the first."""
        found = [part(images) for part in self.parts]
        values = torch.stack([f[0] for f in found]).mean(0) if len(found) > 1 else found[0][0]
        return CapsuleOutput(values, torch.cat([f[1] for f in found], 1), found[0][2])
