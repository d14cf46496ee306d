"""The configuration of `capsedge.models.pscapsnet`. No torch needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from capsedge.errors import UsageError
from capsedge.models.config_base import ModelConfig, ResNet
from capsedge.models.config_fields import check_range
from capsedge.runtime.files import limits

UPDATES = ("agreement", "k-means")


@dataclass(frozen=True, kw_only=True)
class PSCapsNetConfig(ModelConfig):
    """Parameter-sharing capsules on residual blocks (Ren, Su, Lu 2019).

    Attributes:
        primary_dim: elements of a child: channels of one position of the stem's map.
        capsule_dim: elements of a class capsule.
        shared: all children have one weight; otherwise each has its own.
        pooled: rows and columns that the map is averaged to before; 0 for as it is.
        update: ``agreement`` (Sabour et al. 2017); or ``k-means``: the logits are each time the votes'
            products with the sum divided by its norm, and ``iterations`` come after a first uniform sum.
        epsilon: under the root of the squash and of that norm.
    """

    architecture: ClassVar[str] = "pscapsnet"
    routing: ClassVar[str] = "dynamic"

    stem: ResNet
    primary_types: int = 1
    primary_dim: int = 32
    capsule_dim: int = 8
    shared: bool = True
    pooled: int = 0
    update: str = "k-means"
    epsilon: float = 1e-24

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.update not in UPDATES:
            raise UsageError(f"update is '{self.update}'.", f"Known: {', '.join(UPDATES)}.")
        if self.capsule_layers:
            raise UsageError("PSCapsNet has no layers of capsules before those of the classes.")
        check_range(1, limits.WIDTH, primary_dim=self.primary_dim, capsule_dim=self.capsule_dim)
        check_range(0, limits.IMAGE_SIDE, pooled=self.pooled)
        if self.stem.stages[-1][0] % self.primary_dim:
            raise UsageError(
                f"{self.stem.stages[-1][0]} channels do not make capsules of {self.primary_dim}.",
                "The last stage's channels must be a multiple of primary_dim.",
            )
        if not 0 < self.epsilon < math.inf:
            raise UsageError(f"epsilon is {self.epsilon:g}.", "Wanted: a finite number above 0.")
