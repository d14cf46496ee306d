"""The configuration of `capsedge.models.matrix_capsules`. No torch needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from capsedge.errors import UsageError
from capsedge.models.config_base import ModelConfig
from capsedge.models.config_fields import check_dialects, check_range
from capsedge.runtime.files import limits


@dataclass(frozen=True, kw_only=True)
class MatrixCapsulesConfig(ModelConfig):
    """Matrix capsules with EM routing (Hinton et al. 2018).

    Attributes:
        pose_side: side of the pose matrix.
        inverse_temperature: final λ of the schedule ``λ_t = final (1 - 0.95^t)``, t = 1, 2, ...
        epsilon: of the EM statistics.

    The rest is where published networks differ from the paper (docs/how-to/import.md):

    Attributes:
        schedule: λ is ``rising``, or ``constant`` in all iterations.
        coordinates: of the votes for the class capsules: the ``centers`` of the children's cells,
            ``(i + 1/2) / H``, in the right-hand column of the vote; the ``corners``, ``i / H``, in the
            first two elements of its first row; or ``none``.
        normalized_activations: the children's activations are ``a / (a + epsilon)``, which is what code
            computes that normalizes ``R a`` over the parents.
        patches: of the convolutional capsule layers: ``windows``, or patches ``[K, K, H', W']`` read as
            ``[H', W', K, K]``: ``kernel``.
        statistics: of the ``paper``, or ``clamped`` (`capsedge.models.clamped_em`), where ``patches`` are of
            poses, as in ``AttentionCapsulesConfig``.
    """

    architecture: ClassVar[str] = "matrix-capsules"
    routing: ClassVar[str] = "em"

    pose_side: int = 4
    inverse_temperature: float = 0.01
    epsilon: float = 1e-4
    schedule: str = "rising"
    coordinates: str = "centers"
    normalized_activations: bool = False
    patches: str = "windows"
    statistics: str = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dialects(self)
        clamped = self.statistics == "clamped"
        if self.patches == ("kernel" if clamped else "elements"):
            raise UsageError(f"Patches '{self.patches}' go with other statistics.")
        if clamped and (self.coordinates == "centers" or self.normalized_activations):
            raise UsageError(
                "Clamped statistics have coordinates of corners, and plain activations."
            )
        check_range(1, limits.KERNEL, pose_side=self.pose_side)
        if not (0 < self.epsilon < math.inf and math.isfinite(self.inverse_temperature)):
            raise UsageError(
                f"epsilon {self.epsilon:g}, inverse temperature {self.inverse_temperature:g}.",
                "Wanted: finite numbers, and epsilon above 0.",
            )

    @property
    def inverse_temperatures(self) -> tuple[float, ...]:
        """λ of each iteration."""
        if self.schedule == "constant":
            return (self.inverse_temperature,) * self.iterations
        return tuple(
            self.inverse_temperature * (1 - 0.95 ** (t + 1)) for t in range(self.iterations)
        )
