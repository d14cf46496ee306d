"""A stem of any layers, then layers of routed capsules, as in Keras' examples."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from capsedge.models import ops
from capsedge.models.base import CapsuleModel, CapsuleOutput
from capsedge.models.configs import CapsuleStackConfig, RoutedLayerConfig, StemLayer
from capsedge.models.layers import PaddedConv2d

_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
_SMALL = 1e-16  # the squash's epsilon is already an element of the pose


def _layer(layer: StemLayer, channels: int) -> nn.Module:
    made: nn.Module
    if layer.kind == "conv":
        padding = "same" if layer.same else 0
        made = PaddedConv2d(
            channels, layer.channels, layer.kernel, layer.stride, padding, bias=layer.bias
        )
    elif layer.kind == "norm":
        made = nn.BatchNorm2d(channels, layer.epsilon)
    elif layer.kind == "max":
        made = nn.MaxPool2d(layer.kernel, layer.stride, ceil_mode=layer.same)
    elif layer.kind == "average":
        made = nn.AvgPool2d(layer.kernel, layer.stride, ceil_mode=layer.same)
    else:
        made = nn.Identity()
    if layer.activation == "linear":
        return made
    return nn.Sequential(made, _ACTIVATIONS[layer.activation]())


class RoutedStackLayer(nn.Module):
    """One layer of routed capsules.

    An extra element ``√epsilon`` in each sum, which no vote has, turns the operator's squash into the one
    with epsilon in the norm; weights divided by ``√offset`` turn it into one with an offset other than 1.
    """

    def __init__(
        self, layer: RoutedLayerConfig, children: int, dim: int, config: CapsuleStackConfig
    ) -> None:
        super().__init__()
        self.layer, self.config = layer, config
        shape = (1 if layer.shared else children, layer.capsules, layer.dim + 1, dim)
        self.weight = nn.Parameter(0.1 * torch.randn(shape))
        self.constant = nn.Parameter(torch.zeros(layer.capsules, layer.dim + 1))

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """``[N, I, D]`` to ``[N, J, P]`` and couplings ``[N, I, J]``."""
        poses, couplings = ops.dynamic_routing(
            u,
            self.weight,
            bias=self.constant,
            iterations=self.config.iterations,
            update="replace" if self.config.replaced else "accumulate",
            agreement_scale=math.sqrt(self.config.offset),
            epsilon=_SMALL,
        )
        return poses[..., : self.layer.dim], couplings


class CapsuleStack(CapsuleModel):
    """Lengths of the last layer's capsules."""

    config: CapsuleStackConfig

    def __init__(self, config: CapsuleStackConfig) -> None:
        super().__init__(config)
        channels, *sides = config.preprocessing.channels, *config.preprocessing.shape[1:]
        grid, layers = (sides[0], sides[1]), []
        for layer in config.layers:
            layers.append(_layer(layer, channels))
            channels, grid = layer.channels, layer.size(grid)
        self.stem = nn.Sequential(*layers)
        children, dim = grid[0] * grid[1] * channels // config.primary_dim, config.primary_dim
        routed = []
        for each in config.routed:
            routed.append(RoutedStackLayer(each, children, dim, config))
            children, dim = each.capsules, each.dim
        self.routed = nn.ModuleList(routed)

    def forward(self, images: Tensor) -> CapsuleOutput:
        """See ``CapsuleModel.forward``."""
        features = self.stem(images).permute(0, 2, 3, 1)
        poses = features.reshape(features.shape[0], -1, self.config.primary_dim)
        for layer in self.routed:
            poses, couplings = layer(poses)
        return CapsuleOutput(torch.linalg.vector_norm(poses, dim=-1), poses, couplings)
