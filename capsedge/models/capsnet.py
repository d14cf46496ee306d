"""CapsNet with dynamic routing (Sabour, Frosst, Hinton 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsedge.models import ops
from capsedge.models.base import CapsuleModel, CapsuleOutput
from capsedge.models.configs import CapsNetConfig
from capsedge.models.layers import (
    ChosenPositions,
    DynamicCapsules,
    PrimaryCapsules,
    make_decoder,
    output_size,
)


class CapsNet(CapsuleModel):
    """Stem, squashed primary capsules, routed layers; lengths of the class capsules."""

    config: CapsNetConfig

    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__(config)
        c = config
        self.primary = PrimaryCapsules(
            self.stem_channels,
            c.primary_types,
            c.primary_dim,
            c.primary_kernel,
            c.primary_stride,
            c.primary_padding,
            c.primary_bias,
            c.primary_grouping,
            c.primary_groups,
        )
        grid = output_size(
            self._grid_after_stem(), c.primary_kernel, c.primary_stride, c.primary_padding
        )
        self.chosen = ChosenPositions(grid, c.primary_positions) if c.primary_positions else None
        if self.chosen is not None:
            grid = self.chosen.grid
        types, dim = c.primary_types, c.primary_dim
        layers: list[nn.Module] = []
        for layer in c.capsule_layers:
            routed = DynamicCapsules(
                grid,
                types,
                dim,
                layer.types,
                c.capsule_dim,
                kernel=layer.kernel,
                stride=layer.stride,
                iterations=c.iterations,
                epsilon=c.epsilon,
            )
            layers.append(routed)
            grid, types, dim = routed.grid, layer.types, c.capsule_dim
        self.capsules = nn.Sequential(*layers)
        self.classes = DynamicCapsules(
            grid,
            types,
            dim,
            c.classes,
            c.capsule_dim,
            iterations=c.iterations,
            leaky=c.leaky,
            bias=c.class_bias,
            learned_priors=c.learned_priors,
            vote_bias=c.vote_bias,
            softmax=c.softmax,
            squashed=c.class_squash,
            epsilon=c.epsilon,
        )
        self.classifier = nn.Linear(c.capsule_dim, 1) if c.linear_classifier else None
        if self.classifier is not None:
            self.score_name = "logits"
        if c.decoder:
            self.decoder = make_decoder((c.classes * c.capsule_dim, *c.decoder), self._picture)

    def forward(self, images: Tensor) -> CapsuleOutput:
        """See ``CapsuleModel.forward``."""
        primary = self.primary(self.stem(images))
        pose = self._squashed(primary if self.chosen is None else self.chosen(primary))
        for layer in self.capsules:
            pose, _ = layer(pose)
        pose, couplings = self.classes(pose)
        poses, couplings = pose.flatten(1, 3), couplings.flatten(1, 3)
        if self.classifier is not None:
            return CapsuleOutput(self.classifier(poses).squeeze(-1), poses, couplings)
        if self.config.length_epsilon:
            lengths = (poses.square().sum(-1) + self.config.length_epsilon).sqrt()
        else:
            lengths = torch.linalg.vector_norm(poses, dim=-1)
        scores = lengths.softmax(-1) if self.config.softmax_scores else lengths
        return CapsuleOutput(scores, poses, couplings)

    def _squashed(self, pose: Tensor) -> Tensor:
        """The primary capsules ``[N, H, W, C, P]``, squashed."""
        if self.config.primary_squash == "pose":
            return ops.squash(pose, epsilon=self.config.epsilon)
        children = ops.squash(pose.flatten(1, 3), 1, self.config.epsilon)
        return children.reshape(pose.shape)
