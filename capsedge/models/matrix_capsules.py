"""Matrix capsules with EM routing (Hinton, Sabour, Frosst 2018)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from capsedge.models.base import CapsuleModel, CapsuleOutput
from capsedge.models.configs import MatrixCapsulesConfig
from capsedge.models.em_layers import ClampedEMCapsules, EMCapsules
from capsedge.models.layers import PrimaryCapsules, output_size, window_positions


class MatrixCapsules(CapsuleModel):
    """Stem, primary poses and activations, convolutional EM layers, shared class capsules."""

    config: MatrixCapsulesConfig

    def __init__(self, config: MatrixCapsulesConfig) -> None:
        super().__init__(config)
        c = config
        shape = (c.primary_kernel, c.primary_stride, c.primary_padding)
        size = c.pose_side**2
        self.primary_pose = PrimaryCapsules(self.stem_channels, c.primary_types, size, *shape)
        self.primary_activation = PrimaryCapsules(self.stem_channels, c.primary_types, 1, *shape)
        # Votes of unit variance start the parents' activations near one half, where the spread loss
        # has a gradient.
        nn.init.kaiming_normal_(self.primary_pose.conv.weight, nonlinearity="relu")
        grid = output_size(self._grid_after_stem(), *shape)
        types, layers = c.primary_types, []
        capsules = self._capsules()
        for layer in c.capsule_layers:
            layers.append(
                capsules(
                    grid,
                    types,
                    layer.types,
                    c.pose_side,
                    kernel=layer.kernel,
                    stride=layer.stride,
                    patches=c.patches,
                )
            )
            grid = window_positions(grid, (layer.kernel, layer.kernel), layer.stride)
            types = layer.types
        self.capsules = nn.ModuleList(layers)
        self.classes = capsules(
            grid, types, c.classes, c.pose_side, shared=True, coordinates=c.coordinates
        )

    def _capsules(self) -> Callable[..., nn.Module]:
        """A function that builds a layer."""
        c = self.config
        if c.statistics == "clamped":
            return partial(ClampedEMCapsules, inverse_temperatures=c.inverse_temperatures)
        return partial(
            EMCapsules,
            inverse_temperatures=c.inverse_temperatures,
            epsilon=c.epsilon,
            normalized=c.normalized_activations,
        )

    def forward(self, images: Tensor) -> CapsuleOutput:
        """See ``CapsuleModel.forward``; the scores are the class capsules' activations."""
        x = self.stem(images)
        pose, a = self.primary_pose(x), self.primary_activation(x).squeeze(-1).sigmoid()
        for layer in self.capsules:
            pose, a, _ = layer(pose, a)
        pose, a, couplings = self.classes(pose, a)
        return CapsuleOutput(a.flatten(1), pose.flatten(1, 3), couplings.flatten(1, 3))
