"""SegCaps: segmentation by capsules that are routed at each position (LaLonde and Bagci 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsedge.models import ops
from capsedge.models.base import CapsuleModel, CapsuleOutput
from capsedge.models.layers import PaddedConv2d
from capsedge.models.segcaps_config import CapsuleMap, SegCapsConfig


class MapCapsules(nn.Module):
    """Convolutional capsules whose parents at a position are routed from the children around it.

    A convolution, the same for every type of children, makes their votes; a transposed one doubles the map.
    The window of a parent is summed into one vote for each type of children, as in the authors' code.

    Args:
        inputs: elements of a child's pose.
        layer: types and elements of the parents.
        scale: 2 doubles the map, 1 keeps it, -2 halves it.
    """

    def __init__(
        self, inputs: int, layer: CapsuleMap, kernel: int, scale: int, config: SegCapsConfig
    ) -> None:
        super().__init__()
        self.layer, self.epsilon = layer, config.epsilon
        # A single parent takes every vote whole, so agreement changes nothing.
        self.iterations = config.iterations if layer.routed and layer.types > 1 else 1
        width = layer.types * layer.dim
        self.votes: nn.Conv2d | nn.ConvTranspose2d = (
            nn.ConvTranspose2d(inputs, width, 4, 2, 1, bias=False)
            if scale == 2
            else PaddedConv2d(inputs, width, kernel, max(1, -scale), "same", bias=False)
        )
        # As in the authors' code. Smaller votes would vanish: a squash shortens short poses to their square.
        nn.init.kaiming_normal_(self.votes.weight, nonlinearity="relu")
        self.bias = nn.Parameter(torch.full((layer.types, layer.dim), 0.1))

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Poses ``[N, C, P, H, W]`` to ``[N, J, P', H', W']``, and couplings ``[N, H' W' C, J]``."""
        types, dim = self.layer.types, self.layer.dim
        children = u.shape[1]
        if self.iterations == 1:  # equal shares: the votes' sum is that of the children's sum
            s = self.votes(u.sum(1)) / types
            grid = s.shape[2:]
            s = s.reshape(-1, types, dim, *grid).permute(0, 3, 4, 1, 2) + self.bias
            poses = ops.squash(s, epsilon=self.epsilon).permute(0, 3, 4, 1, 2)
            shares = u.new_full((u.shape[0], grid[0] * grid[1] * children, types), 1 / types)
            return poses, shares
        votes = self.votes(u.flatten(0, 1))
        grid = votes.shape[2:]
        votes = votes.reshape(-1, children, types, dim, *grid).permute(0, 4, 5, 1, 2, 3)
        v, couplings = ops.vote_routing(
            votes.reshape(-1, children, types, dim),
            bias=self.bias,
            iterations=self.iterations,
            epsilon=self.epsilon,
        )
        poses = v.reshape(-1, *grid, types, dim).permute(0, 3, 4, 1, 2)
        return poses, couplings.reshape(-1, grid[0] * grid[1] * children, types)


class SegCaps(CapsuleModel):
    """A stem, capsules down and up again with joined maps, and the capsules of the pixels."""

    config: SegCapsConfig

    def __init__(self, config: SegCapsConfig) -> None:
        super().__init__(config)
        c, dim = config, self.stem_channels
        down = []
        for k, layer in enumerate(c.down):
            down.append(MapCapsules(dim, layer, c.kernel, -2 if k % 2 == 0 else 1, c))
            dim = layer.dim
        up = []
        for k, layer in enumerate(c.up):
            up.append(MapCapsules(dim, layer, c.kernel, 2 if k % 2 == 0 else 1, c))
            dim = layer.dim
        self.down, self.up = nn.ModuleList(down), nn.ModuleList(up)
        self.pixels = MapCapsules(dim, CapsuleMap(c.maps, c.capsule_dim), 1, 1, c)

    def forward(self, images: Tensor) -> CapsuleOutput:
        """Segment ``images [N, C, H, W]``.

        Returns:
            Lengths ``[N, maps, H, W]`` and poses ``[N, maps, H, W, P]`` of the pixels' capsules, and the
            couplings of the last routed layer ``[N, H W types, types']``; equal ones if none is routed.
        """
        u = self.stem(images).unsqueeze(1)
        joined = [u]
        couplings: Tensor | None = None
        for k, layer in enumerate(self.down):
            assert isinstance(layer, MapCapsules)
            u, own = layer(u)
            couplings = own if couplings is None or layer.iterations > 1 else couplings
            if k % 2:
                joined.append(u)
        joined.pop()
        for k, layer in enumerate(self.up):
            assert isinstance(layer, MapCapsules)
            u, own = layer(u)
            couplings = own if couplings is None or layer.iterations > 1 else couplings
            if k % 2 == 0:
                u = torch.cat([u, joined.pop()], 1)
        u, _ = self.pixels(u)
        assert couplings is not None  # there is a layer
        poses = u.permute(0, 1, 3, 4, 2)
        return CapsuleOutput(torch.linalg.vector_norm(poses, dim=-1), poses, couplings)
