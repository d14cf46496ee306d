"""The configuration of `capsedge.models.efficient_capsnet`. No torch needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from capsedge.errors import UsageError
from capsedge.models.config_base import ModelConfig
from capsedge.models.config_fields import check_range
from capsedge.runtime.files import limits


@dataclass(frozen=True, kw_only=True)
class EfficientCapsNetConfig(ModelConfig):
    """Efficient-CapsNet (Mazzia, Salvetti, Chiaberge 2021): one pass of self-attention routing.

    Attributes:
        primary_dim: elements of a primary capsule's pose; the depthwise primary convolution covers its whole
            input, so that there is one capsule of each type.
        capsule_dim: elements of a class capsule's pose.
        decoder: hidden sizes of the reconstruction decoder; none if empty.
        epsilon: of both squashes.
        length_epsilon: added under the root of the class capsules' lengths.
    """

    architecture: ClassVar[str] = "efficient-capsnet"
    routing: ClassVar[str] = "self-attention"

    primary_dim: int = 8
    capsule_dim: int = 16
    decoder: tuple[int, ...] = ()
    iterations: int = 1
    epsilon: float = 1e-20
    length_epsilon: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(1, 1, iterations=self.iterations)
        check_range(1, limits.WIDTH, primary_dim=self.primary_dim, capsule_dim=self.capsule_dim)
        check_range(0, limits.LAYERS, layers_of_the_decoder=len(self.decoder))
        for size in self.decoder:
            check_range(1, limits.WIDTH, decoder=size)
        for name in ("epsilon", "length_epsilon"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name):g}.", "Wanted: a number above 0.")
