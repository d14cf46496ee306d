"""Efficient-CapsNet (Mazzia, Salvetti, Chiaberge 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsedge.errors import UsageError
from capsedge.models import ops
from capsedge.models.base import CapsuleModel, CapsuleOutput
from capsedge.models.configs import EfficientCapsNetConfig
from capsedge.models.layers import make_decoder, output_size


class EfficientCapsNet(CapsuleModel):
    """Stem, one depthwise convolution as primary capsules, self-attention routing; lengths."""

    config: EfficientCapsNetConfig

    def __init__(self, config: EfficientCapsNetConfig) -> None:
        super().__init__(config)
        c = config
        grid = output_size(self._grid_after_stem(), c.primary_kernel, c.primary_stride, 0)
        if grid != (1, 1):
            raise UsageError(
                "The convolution of the primary capsules does not cover its input.",
                f"It leaves {grid[0]}x{grid[1]} positions, expected one.",
                "Use another input size, or another primary_kernel.",
            )
        self.primary = nn.Conv2d(
            self.stem_channels,
            c.primary_types * c.primary_dim,
            c.primary_kernel,
            c.primary_stride,
            groups=self.stem_channels,
        )
        self.weight = nn.Parameter(
            0.1 * torch.randn(c.primary_types, c.classes, c.capsule_dim, c.primary_dim)
        )
        self.bias = nn.Parameter(torch.zeros(c.primary_types, c.classes))
        if c.decoder:
            self.decoder = make_decoder((c.classes * c.capsule_dim, *c.decoder), self._picture)

    def forward(self, images: Tensor) -> CapsuleOutput:
        """See ``CapsuleModel.forward``."""
        c = self.config
        u = self.primary(self.stem(images)).reshape(-1, c.primary_types, c.primary_dim)
        u = ops.exponential_squash(u, epsilon=c.epsilon)
        poses, couplings = ops.self_attention_routing(u, self.weight, self.bias, epsilon=c.epsilon)
        lengths = ((poses * poses).sum(-1) + c.length_epsilon).sqrt()
        return CapsuleOutput(lengths, poses, couplings)
