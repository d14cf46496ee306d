"""DeepCaps: convolutional capsules with skip connections, one routed (Rajasegaran et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsedge.models import ops
from capsedge.models.base import CapsuleModel, CapsuleOutput
from capsedge.models.configs import DeepCapsConfig
from capsedge.models.layers import PaddedConv2d, output_size

_OF_OPERATOR = ("pose", "elements")  # squashes within one position


class ConvCapsules(nn.Module):
    """A 3x3 convolution of all types and elements, squashed by pose: maps ``[N, C P, H, W]``."""

    def __init__(self, channels: int, dim: int, stride: int, config: DeepCapsConfig) -> None:
        super().__init__()
        self.types, self.dim, self.epsilon = config.primary_types, dim, config.epsilon
        width = self.types * dim
        self.conv = PaddedConv2d(channels, width, 3, stride, config.padding, config.vote_bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C P, H, W]`` to ``[N, C' P', H', W']``."""
        y: Tensor = self.conv(x)
        poses = y.reshape(-1, self.types, self.dim, *y.shape[2:])
        return ops.squash(poses, 2, self.epsilon).reshape(y.shape)


class RoutedConvCapsules(nn.Module):
    """3D routing: a 3x3 convolution, shared by all types, makes their votes for all positions.

    ``votes`` are ``[N, C, J, A, H, W]``: from type C for element A of type J at a position.
    """

    def __init__(self, dim: int, grid: tuple[int, int], config: DeepCapsConfig) -> None:
        super().__init__()
        self.config, self.grid, self.types, self.dim = config, grid, config.primary_types, dim
        self.seen = config.vote_elements or dim
        self.conv = PaddedConv2d(
            self.seen, self.types * dim, 3, 1, config.padding, bias=config.vote_bias
        )
        bias = None if config.vote_bias else nn.Parameter(torch.full((self.types, dim), 0.1))
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C P, H, W]`` to a map of the same shape."""
        votes = self._votes(x)
        own = (
            self.config.routed_softmax == "positions" and self.config.routed_squash in _OF_OPERATOR
        )
        v = self._routed(votes) if own and self.bias is None else self._over_maps(votes)
        return v.reshape(-1, self.types * self.dim, *self.grid)

    def _votes(self, x: Tensor) -> Tensor:
        if self.config.vote_layout == "mixed":
            poses = x.reshape(-1, self.types, self.dim, *self.grid).permute(0, 3, 4, 1, 2)
            x = poses.reshape(-1, self.types * self.dim, *self.grid)
        poses = x.reshape(-1, self.dim, *self.grid)[:, : self.seen]
        votes: Tensor = self.conv(poses)
        return votes.reshape(-1, self.types, self.types, self.dim, *self.grid)

    def _routed(self, votes: Tensor) -> Tensor:
        """Every position has its own parents: ``[N, J, A, H, W]``."""
        c, parents = self.config, self.types * self.grid[0] * self.grid[1]
        by_place = votes.permute(0, 1, 2, 4, 5, 3).reshape(-1, self.types, parents, self.dim)
        v, _ = ops.vote_routing(
            by_place,
            iterations=c.routed_iterations,
            elementwise=c.routed_squash == "elements",
            epsilon=c.routing_epsilon,
        )
        return v.reshape(-1, self.types, *self.grid, self.dim).permute(0, 1, 4, 2, 3)

    def _over_maps(self, votes: Tensor) -> Tensor:
        """Routing with a squash over more than one position, for which there is no operator."""
        c = self.config
        logits = torch.zeros_like(votes[:, :, :, 0])
        for iteration in range(c.routed_iterations):
            joint = logits.flatten(2).softmax(-1).reshape(logits.shape)
            couplings = joint if c.routed_softmax == "positions" else logits.softmax(2)
            s = (couplings.unsqueeze(3) * votes).sum(1)
            if self.bias is not None:
                s = s + self.bias.unsqueeze(-1).unsqueeze(-1)
            v = self._squashed(s)
            if iteration + 1 < c.routed_iterations:
                logits = logits + (votes * v.unsqueeze(1)).sum(3)
        return v

    def _squashed(self, s: Tensor) -> Tensor:
        c = self.config
        if c.routed_squash == "maps":
            return ops.squash(s.flatten(2), 2, c.routing_epsilon).reshape(s.shape)
        if c.routed_squash == "rows":
            return ops.squash(s, 4, c.routing_epsilon)
        if c.routed_squash == "elements":
            return ops.squash(s.unsqueeze(-1), -1, c.routing_epsilon).squeeze(-1)
        return ops.squash(s, 2, c.routing_epsilon)


class CapsuleCell(nn.Module):
    """A convolution that halves the map, then two more beside a skip connection."""

    def __init__(self, channels: int, dim: int, skip: nn.Module, config: DeepCapsConfig) -> None:
        super().__init__()
        width = config.primary_types * dim
        self.first = ConvCapsules(channels, dim, 2, config)
        self.skip = skip
        self.rest = nn.Sequential(*(ConvCapsules(width, dim, 1, config) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C P, H, W]`` to ``[N, C' P', H', W']``."""
        x = self.first(x)
        y: Tensor = self.rest(x) + self.skip(x)
        return y


class DeepCaps(CapsuleModel):
    """A stem and four cells; the capsules of the last two are routed to the classes, the third's first."""

    config: DeepCapsConfig

    def __init__(self, config: DeepCapsConfig) -> None:
        super().__init__(config)
        c, channels, children = config, self.stem_channels, 0
        grid, cells = self._grid_after_stem(), []
        for k, dim in enumerate(c.dims):
            last = k + 1 == len(c.dims)
            grid = output_size(grid, 3, 2, c.padding)
            width = c.primary_types * dim
            skip = RoutedConvCapsules(dim, grid, c) if last else ConvCapsules(width, dim, 1, c)
            cells.append(CapsuleCell(channels, dim, skip, c))
            channels = width
            children += grid[0] * grid[1] * c.primary_types * (k + 2 >= len(c.dims))
        self.cells = nn.ModuleList(cells)
        self.weight = nn.Parameter(
            0.1 * torch.randn(children, c.classes, c.capsule_dim, c.dims[-1])
        )
        self.bias = nn.Parameter(torch.zeros(c.classes, c.capsule_dim))

    def forward(self, images: Tensor) -> CapsuleOutput:
        """See ``CapsuleModel.forward``."""
        x = self.stem(images)
        if self.config.squashed_stem:
            x = ops.squash(x.unsqueeze(-1), -1, self.config.epsilon).squeeze(-1)
        found = []
        for k, cell in enumerate(self.cells):
            x = cell(x)
            if k + 2 >= len(self.cells):
                poses = x.reshape(-1, self.config.primary_types, self.config.dims[k], *x.shape[2:])
                found.append(poses.permute(0, 3, 4, 1, 2).flatten(1, 3))
        poses, couplings = self._classes(torch.cat(found, 1))
        lengths = torch.linalg.vector_norm(poses + self.config.length_offset, dim=-1)
        return CapsuleOutput(lengths, poses, couplings)

    def _classes(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Class capsules ``[N, J, P]`` of children ``[N, I, D]``, and couplings ``[N, I, J]``."""
        c = self.config
        if not c.last_bias:
            return ops.dynamic_routing(
                u, self.weight, bias=self.bias, iterations=c.iterations, epsilon=c.routing_epsilon
            )
        i, j, out, d = self.weight.shape
        flat = self.weight.reshape(i, j * out, d).transpose(1, 2)
        votes = torch.bmm(u.transpose(0, 1), flat).reshape(i, -1, j, out).transpose(0, 1)
        logits = torch.zeros_like(votes[..., 0])
        for iteration in range(c.iterations):
            couplings = logits.softmax(2)
            s = (couplings.unsqueeze(-1) * votes).sum(1)
            if iteration + 1 < c.iterations:
                v = ops.squash(s, epsilon=c.routing_epsilon)
                logits = logits + (votes * v.unsqueeze(1)).sum(-1)
        return ops.squash(s + self.bias, epsilon=c.routing_epsilon), couplings
