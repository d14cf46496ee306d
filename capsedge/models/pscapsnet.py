"""PSCapsNet: residual blocks, capsules of channels, one shared weight (Ren, Su, Lu 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsedge.models import ops
from capsedge.models.base import CapsuleModel, CapsuleOutput
from capsedge.models.configs import PSCapsNetConfig


def adaptive_pooling_matrix(size: int, count: int) -> Tensor:
    """The matrix ``[count, size]`` by which PyTorch's adaptive average pooling averages along an axis."""
    rows = torch.zeros(count, size)
    for k in range(count):
        start, end = k * size // count, -(-(k + 1) * size // count)
        rows[k, start:end] = 1 / (end - start)
    return rows


class AveragePool(nn.Module):
    """Adaptive average pooling as two matrix products, which do not need windows of equal size."""

    rows: Tensor
    columns: Tensor

    def __init__(self, grid: tuple[int, int], side: int) -> None:
        super().__init__()
        self.register_buffer("rows", adaptive_pooling_matrix(grid[0], side), persistent=False)
        self.register_buffer(
            "columns", adaptive_pooling_matrix(grid[1], side).T.contiguous(), persistent=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` to ``[N, C, side, side]``."""
        return self.rows @ x @ self.columns


class PSCapsNet(CapsuleModel):
    """Lengths of the class capsules."""

    config: PSCapsNetConfig

    def __init__(self, config: PSCapsNetConfig) -> None:
        super().__init__(config)
        grid = self._grid_after_stem()
        self.pool: nn.Module = nn.Identity()
        if config.pooled:
            self.pool = AveragePool(grid, config.pooled)
            grid = (config.pooled, config.pooled)
        children = grid[0] * grid[1] * self.stem_channels // config.primary_dim
        shape = (config.classes, config.capsule_dim, config.primary_dim)
        self.weight = nn.Parameter(0.1 * torch.randn(1 if config.shared else children, *shape))

    def forward(self, images: Tensor) -> CapsuleOutput:
        """See ``CapsuleModel.forward``."""
        c = self.config
        features = self.pool(self.stem(images)).permute(0, 2, 3, 1)
        k_means = c.update == "k-means"
        poses, couplings = ops.dynamic_routing(
            features.reshape(features.shape[0], -1, c.primary_dim),
            self.weight,
            iterations=c.iterations + k_means,
            update="replace" if k_means else "accumulate",
            normalize=k_means,
            epsilon=c.epsilon,
        )
        return CapsuleOutput(torch.linalg.vector_norm(poses, dim=-1), poses, couplings)
