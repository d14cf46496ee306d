"""The configuration of `capsedge.models.capsnet`. No torch needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from capsedge.errors import UsageError
from capsedge.models.config_base import ModelConfig
from capsedge.models.config_fields import check_dialects, check_range
from capsedge.runtime.files import limits


@dataclass(frozen=True, kw_only=True)
class CapsNetConfig(ModelConfig):
    """CapsNet with dynamic routing (Sabour et al. 2017).

    Attributes:
        primary_dim: elements of a primary capsule's pose.
        capsule_dim: elements of a pose in the layers after it; the class capsules' too.
        leaky: "none of the above" in the class layer.
        class_bias: whether class capsules have a bias inside the squash, as in the authors' release.
        learned_priors: whether start logits are parameters (equation 3 speaks of log priors).
        decoder: hidden sizes of the reconstruction decoder; none if empty.
        linear_classifier: one linear map shared by all class capsules gives logits, instead of their
            lengths (the dynamic-routing model of Tsai et al. on DiverseMultiMNIST).

    The rest is where published networks differ from the paper (docs/how-to/import.md):

    Attributes:
        primary_grouping: a primary capsule is ``channels`` of one position (the paper), or ``pixels``:
            consecutive elements of the convolution's output ``[C, H, W]``, across rows and channels.
        primary_squash: squash of the primary capsules over each ``pose`` (the paper), or over all
            ``children``, element by element of the pose.
        softmax: the couplings of the class layer sum to one over the ``parents`` (the paper) or the
            ``children``.
        class_squash: squash of the class capsules over each ``pose`` (the paper), of single ``elements``
            (``x|x| / (1 + x²)``), or over all ``parents``.
        vote_bias: a learned constant ``[J, P]`` is added to the votes.
        epsilon: under the root of every squash.
        length_epsilon: the same of the lengths.
        softmax_scores: the scores are the softmax of the lengths.
        batch_average: its author's code averages agreements over the batch. The network here is that code
            at batch 1, and is exported with the batch fixed to 1.
        primary_groups, primary_bias: of the primary convolution.

    And what pruning leaves (docs/how-to/prune.md):

    Attributes:
        primary_positions: the positions of the primary capsules' map that are routed, row by row, in rising
            order; all if empty.
    """

    architecture: ClassVar[str] = "capsnet"
    routing: ClassVar[str] = "dynamic"

    primary_dim: int = 8
    capsule_dim: int = 16
    leaky: bool = False
    class_bias: bool = True
    learned_priors: bool = False
    decoder: tuple[int, ...] = ()
    linear_classifier: bool = False
    primary_grouping: str = "channels"
    primary_squash: str = "pose"
    softmax: str = "parents"
    class_squash: str = "pose"
    vote_bias: bool = False
    epsilon: float = 1e-8
    length_epsilon: float = 0.0
    softmax_scores: bool = False
    batch_average: bool = False
    primary_groups: int = 1
    primary_bias: bool = True
    primary_positions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dialects(self)
        if not 0 < self.epsilon < math.inf:
            raise UsageError(f"epsilon is {self.epsilon:g}.", "Wanted: a finite number above 0.")
        if not 0 <= self.length_epsilon < math.inf:
            raise UsageError(f"length_epsilon is {self.length_epsilon:g}.", "Wanted: 0 or more.")
        if self.capsule_layers and self.primary_grouping != "channels":
            raise UsageError(
                "Convolutional capsule layers need capsules that have a position.",
                "With primary_grouping 'pixels' they have none.",
                "Use 'channels', or no capsule_layers.",
            )
        self._check_positions()
        if self.class_squash == "parents" and (self.leaky or self.class_bias or self.vote_bias):
            raise UsageError(
                "A squash over the parents goes with neither leaky routing nor biases.",
                "",
                "Leave out leaky, class_bias and vote_bias.",
            )
        check_range(1, limits.WIDTH, primary_dim=self.primary_dim, capsule_dim=self.capsule_dim)
        check_range(1, limits.WIDTH, primary_groups=self.primary_groups)
        check_range(0, limits.LAYERS, layers_of_the_decoder=len(self.decoder))
        for size in self.decoder:
            check_range(1, limits.WIDTH, decoder=size)

    def _check_positions(self) -> None:
        chosen = self.primary_positions
        check_range(0, limits.IMAGE_SIDE**2, primary_positions=len(chosen))
        for position in chosen:
            check_range(0, limits.IMAGE_SIDE**2, primary_positions=position)
        if list(chosen) != sorted(set(chosen)):
            raise UsageError("primary_positions are not in rising order, each once.")
        if chosen and (self.capsule_layers or self.primary_grouping != "channels"):
            raise UsageError(
                "primary_positions are for class capsules over a map of primary capsules.",
                "Windows of convolutional layers, and capsules of pixels, need the whole map.",
                "Leave them out.",
            )

    @property
    def fixed_batch(self) -> int | None:
        """1 where its author's code averages over the batch."""
        return 1 if self.batch_average else None
