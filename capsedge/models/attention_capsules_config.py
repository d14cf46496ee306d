"""The configuration of `capsedge.models.attention_capsules`. No torch needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from capsedge.errors import UsageError
from capsedge.models.config_base import ModelConfig
from capsedge.models.config_fields import check_dialects, check_range
from capsedge.runtime.files import limits


@dataclass(frozen=True, kw_only=True)
class AttentionCapsulesConfig(ModelConfig):
    """Capsules with inverted dot-product attention routing (Tsai et al. 2020).

    Attributes:
        pose_dim: elements of every pose.
        matrix_pose: square matrix poses, or vectors.
        dense_layers: types of fully connected capsule layers between the convolutional ones and the
            class capsules.
        concurrent: all layers route at once, pass by pass; otherwise one layer after the other.
        patches: of the convolutional capsule layers: ``windows`` (the paper), or patches
            ``[P, H' W']`` at each place of the kernel read as ``[H' W', P]``: ``elements``.
    """

    architecture: ClassVar[str] = "attention-capsules"
    routing: ClassVar[str] = "attention"

    pose_dim: int = 16
    matrix_pose: bool = True
    dense_layers: tuple[int, ...] = ()
    concurrent: bool = True
    iterations: int = 2
    patches: str = "windows"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dialects(self)
        check_range(1, limits.WIDTH, pose_dim=self.pose_dim)
        if self.matrix_pose and math.isqrt(self.pose_dim) ** 2 != self.pose_dim:
            raise UsageError(
                f"A pose of {self.pose_dim} elements do not form a square matrix.", "", "Use 16."
            )
        check_range(0, limits.LAYERS, dense_layers=len(self.dense_layers))
        for size in self.dense_layers:
            check_range(1, limits.WIDTH, dense_layers=size)
