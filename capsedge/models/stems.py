"""The layers before the primary capsules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from capsedge.errors import UsageError
from capsedge.models.configs import Conv, ResNet
from capsedge.models.layers import PaddedConv2d, output_size

SAMPLE = 5, 16  # of fractional max pooling: the fraction in [0, 1) that PyTorch draws at every call
_POOL = 2  # rows and columns of its windows
_ACTIVATIONS = {"relu": nn.ReLU, "hardswish": nn.Hardswish}


class Residual(nn.Module):
    """A basic block of two 3x3 convolutions (He et al. 2016), as in the stem of Tsai et al."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` to ``[N, C', H', W']``."""
        return torch.relu(self.body(x) + self.shortcut(x))


class ChannelNorm(nn.LayerNorm):
    """Layer normalization of the channels of each position (Ba et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]``, as it comes."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def fractional_windows(size: int, count: int) -> list[int]:
    """First rows (or columns) of the windows of fractional max pooling (Graham 2014).

    They are those that PyTorch computes for the fraction `SAMPLE`, but in integers. For this fraction, no
    product is an integer, at which FP32 and FP64 could choose different windows.

    Args:
        size: size of the map.
        count: number of windows.

    Raises:
        UsageError: the map has fewer rows than the windows need.
    """
    free = size - _POOL
    if free < count - 1:
        raise UsageError(
            f"Fractional pooling cannot make {count} rows of {size}.",
            f"It needs {count + _POOL - 1} at least.",
            "Use larger images.",
        )
    part, whole = SAMPLE
    starts = [(k * whole + part) * free // (whole * (count - 1)) for k in range(count - 1)]
    return [start - starts[0] for start in starts] + [free]


class FractionalMaxPool(nn.Module):
    """Fractional max pooling with the same windows for every image and channel.

    PyTorch's version draws new windows at every call, even at inference, so it is not a function of its
    input.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, grid: tuple[int, int], side: int) -> None:
        super().__init__()
        for name, size in zip(("rows", "columns"), grid, strict=True):
            starts = torch.tensor(fractional_windows(size, side))
            index = (starts[:, None] + torch.arange(_POOL)).flatten()
            self.register_buffer(name, index, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` to ``[N, C, side, side]``."""
        windows = x.index_select(2, self.rows).index_select(3, self.columns)
        return nn.functional.max_pool2d(windows, _POOL)


class SqueezeExcitation(nn.Module):
    """Scales each channel by a factor computed from all channel means (Hu et al. 2018)."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, hidden)
        self.excite = nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]``, as it comes."""
        factors: Tensor = self.excite(self.squeeze(x.mean((2, 3))).relu()).sigmoid()
        return x * factors[:, :, None, None]


class ConvolutionalAttention(nn.Module):
    """Scales each channel, then each position, by a computed factor (CBAM, Woo et al. 2018)."""

    def __init__(self, channels: int, hidden: int, kernel: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, hidden, bias=False)
        self.excite = nn.Linear(hidden, channels, bias=False)
        self.places = nn.Conv2d(2, 1, kernel, padding=kernel // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]``, as it comes."""
        factors = (self._excited(x.mean((2, 3))) + self._excited(x.amax((2, 3)))).sigmoid()
        x = x * factors[:, :, None, None]
        places = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        y: Tensor = x * self.places(places).sigmoid()
        return y

    def _excited(self, x: Tensor) -> Tensor:
        excited: Tensor = self.excite(self.squeeze(x).relu())
        return excited


def stem_grid(config: Sequence[Conv] | ResNet, grid: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of a stem's output."""
    if isinstance(config, ResNet):
        for _, _, stride in config.stages:
            grid = output_size(grid, 3, stride, 1)
        return grid
    for conv in config:
        grid = output_size(grid, conv.kernel, conv.stride, conv.padding)
        grid = (conv.pooled, conv.pooled) if conv.pooled else grid
    return grid


def make_stem(
    config: Sequence[Conv] | ResNet, channels: int, grid: tuple[int, int]
) -> tuple[nn.Sequential, int]:
    """The layers before the capsules, and their number of output channels.

    Args:
        channels, grid: number of channels and grid of the images.
    """
    layers: list[nn.Module] = []
    if isinstance(config, ResNet):
        first = config.stages[0][0]
        layers += [
            nn.Conv2d(channels, first, 3, 1, 1, bias=False),
            nn.BatchNorm2d(first),
            nn.ReLU(),
        ]
        channels = first
        for width, blocks, stride in config.stages:
            for index in range(blocks):
                layers.append(Residual(channels, width, stride if index == 0 else 1))
                channels = width
    else:
        for c in config:
            layers.append(
                PaddedConv2d(channels, c.channels, c.kernel, c.stride, c.padding, c.bias, c.groups)
            )
            grid = output_size(grid, c.kernel, c.stride, c.padding)
            layers += _activation_and_norm(c) + _blocks(c, grid)
            channels = c.channels
            grid = (c.pooled, c.pooled) if c.pooled else grid
    return nn.Sequential(*layers), channels


def _activation_and_norm(conv: Conv) -> list[nn.Module]:
    """The layers after a convolution of the stem."""
    made: list[nn.Module] = []
    if conv.activation != "linear":
        made.append(nn.LeakyReLU(conv.leak) if conv.leak else _ACTIVATIONS[conv.activation]())
    norm: nn.Module | None = None
    if conv.instance_norm:
        norm = nn.InstanceNorm2d(conv.channels, eps=conv.norm_epsilon, affine=True)
    elif conv.channel_norm:
        norm = ChannelNorm(conv.channels, eps=conv.norm_epsilon)
    elif conv.batch_norm:
        norm = nn.BatchNorm2d(conv.channels, eps=conv.norm_epsilon)
    if norm is not None:
        made.insert(len(made) if conv.norm_last else 0, norm)
    return made


def _blocks(conv: Conv, grid: tuple[int, int]) -> list[nn.Module]:
    """The blocks after those layers, on a map of this size."""
    made: list[nn.Module] = []
    if conv.squeeze:
        made.append(SqueezeExcitation(conv.channels, conv.squeeze))
    if conv.attention:
        made.append(ConvolutionalAttention(conv.channels, conv.attention, conv.attention_kernel))
    if conv.pooled:
        made.append(FractionalMaxPool(grid, conv.pooled))
    return made
