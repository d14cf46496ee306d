"""Capsules with inverted dot-product attention routing (Tsai et al. 2020)."""

from __future__ import annotations

from torch import Tensor, nn

from capsedge.models.base import CapsuleModel, CapsuleOutput
from capsedge.models.configs import AttentionCapsulesConfig
from capsedge.models.layers import AttentionLayer, PrimaryCapsules, output_size, window_positions


class AttentionCapsules(CapsuleModel):
    """Stem, normalized primary capsules, attention-routed layers, one classifier for all classes."""

    config: AttentionCapsulesConfig
    score_name = "logits"

    def __init__(self, config: AttentionCapsulesConfig) -> None:
        super().__init__(config)
        c = config
        shape = (c.primary_kernel, c.primary_stride, c.primary_padding)
        self.primary = PrimaryCapsules(
            self.stem_channels, c.primary_types, c.pose_dim, *shape, bias=False
        )
        self.norm = nn.LayerNorm(c.pose_dim)
        grid, types = output_size(self._grid_after_stem(), *shape), c.primary_types
        layers: list[nn.Module] = []

        def add(
            kernel: tuple[int, int], parents: int, stride: int = 1, patches: str = "windows"
        ) -> None:
            nonlocal grid, types
            layers.append(
                AttentionLayer(
                    grid,
                    kernel,
                    types,
                    parents,
                    c.pose_dim,
                    stride=stride,
                    matrix_pose=c.matrix_pose,
                    patches=patches,
                )
            )
            grid = window_positions(grid, kernel, stride)
            types = parents

        for layer in c.capsule_layers:
            add((layer.kernel, layer.kernel), layer.types, layer.stride, c.patches)
        for parents in (*c.dense_layers, c.classes):
            add(grid, parents)
        self.capsules = nn.ModuleList(layers)
        self.classifier = nn.Linear(c.pose_dim, 1)

    def forward(self, images: Tensor) -> CapsuleOutput:
        """See ``CapsuleModel.forward``; the scores are logits."""
        primary = self.norm(self.primary(self.stem(images)))
        route = self._concurrent if self.config.concurrent else self._sequential
        pose, couplings = route(primary)
        poses = pose.flatten(1, 3)
        return CapsuleOutput(self.classifier(poses).squeeze(-1), poses, couplings.flatten(1, 3))

    def _concurrent(self, primary: Tensor) -> tuple[Tensor, Tensor]:
        """Procedure 2: a first uniform pass through all layers, then all layers route at once."""
        depth = len(self.capsules)
        poses = [primary]
        for layer in self.capsules:
            pose, couplings = layer(poses[-1], None)
            poses.append(pose)
        for t in range(1, self.config.iterations):
            following = [primary]
            for k, layer in enumerate(self.capsules):
                # In training a pass outside the light cone of the output has no effect and no gradient.
                if self.training and t + depth - k > self.config.iterations:
                    following.append(poses[k + 1])
                    continue
                pose, couplings = layer(poses[k], poses[k + 1])
                following.append(pose)
            poses = following
        return poses[-1], couplings

    def _sequential(self, primary: Tensor) -> tuple[Tensor, Tensor]:
        """Each layer runs all its passes before the next one starts."""
        pose = primary
        for layer in self.capsules:
            parent, couplings = layer(pose, None)
            for _ in range(1, self.config.iterations):
                parent, couplings = layer(pose, parent)
            pose = parent
        return pose, couplings
