"""The configuration of `capsedge.models.deepcaps`. No torch needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from capsedge.errors import UsageError
from capsedge.models.config_base import ModelConfig
from capsedge.models.config_fields import check_dialects, check_padding, check_range
from capsedge.runtime.files import limits


@dataclass(frozen=True, kw_only=True)
class DeepCapsConfig(ModelConfig):
    """DeepCaps (Rajasegaran et al. 2019): cells of convolutional capsules, routing in the last one.

    Attributes:
        primary_types: types of capsules in all cells.
        dims: elements of a pose in each cell.
        capsule_dim: elements of a class capsule's pose.
        padding: of the convolutions in the cells.
        vote_bias: the convolutions have a bias, that of the votes too; otherwise routing adds one to the
            sum of the votes.
        squashed_stem: the stem's channels are squashed one by one.
        vote_elements: elements of a pose that votes are made of, the first ones; 0 for all.
        vote_reading: votes are made of ``poses``, or of a map ``[H, W, C, P]`` read as ``[C, P, H, W]``:
            ``mixed``.
        routed_iterations: of the cell that is routed; ``iterations`` are those of the class capsules.
        routed_softmax: a type's couplings sum to one over all types and ``places``, or over the ``types``
            at a place.
        routed_squash: of the cell that is routed: over the elements and places of a type (``maps``), the
            columns of an element's ``rows``, the elements of a ``pose``, or single ``elements``.
        last_bias: the class capsules' bias is added in the last iteration only.
        epsilon, routing_epsilon: of the squash of convolutions and of routing.
        length_offset: added to the elements of class capsules in their lengths.
    """

    architecture: ClassVar[str] = "deep-caps"
    routing: ClassVar[str] = "dynamic"

    primary_types: int = 32
    dims: tuple[int, ...] = (4, 8, 8, 8)
    capsule_dim: int = 32
    padding: int | str = "same"
    vote_bias: bool = False
    squashed_stem: bool = False
    vote_elements: int = 0
    vote_reading: str = "poses"
    routed_iterations: int = 3
    routed_softmax: str = "places"
    routed_squash: str = "maps"
    last_bias: bool = False
    epsilon: float = 1e-7
    routing_epsilon: float = 1e-16
    length_offset: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dialects(self)
        check_range(2, limits.LAYERS, cells=len(self.dims))
        for dim in self.dims:
            check_range(1, limits.WIDTH, capsule_dim=self.capsule_dim, dim=dim)
        check_range(0, self.dims[-1], vote_elements=self.vote_elements)
        check_range(1, limits.ITERATIONS, routed_iterations=self.routed_iterations)
        check_padding(self.padding)
        if self.dims[-2] != self.dims[-1]:
            raise UsageError("The last two cells have poses of one size: both go to the classes.")
        if self.capsule_layers:
            raise UsageError("DeepCaps has cells, and no other capsule layers.")
        if not (0 < self.epsilon < math.inf and 0 < self.routing_epsilon < math.inf):
            raise UsageError("The epsilons of DeepCaps are finite numbers above 0.")
        if not 0 <= self.length_offset < math.inf:
            raise UsageError("The offset of the lengths is 0 or more.")
