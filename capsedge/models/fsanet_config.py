"""Define the configurations of FSA-Net, with capsules and without: a regression by stages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from capsedge.errors import UsageError
from capsedge.models.config_base import Conv, ModelConfig, check_range
from capsedge.runtime.metadata.metadata import Outputs
from capsedge.spec import limits
from capsedge.spec.vocabularies import REGRESSION


@dataclass(frozen=True, kw_only=True)
class FSANetConfig(ModelConfig):
    """FSA-Net: head pose, or other values, by stage-wise regression (Yang et al. 2019).

    Attributes:
        value_names, units: name and unit of each value.
        ranges: the largest magnitude of each value.
        scorings: one entry per part of the network; the results of the parts are averaged. An entry states
            how the part scores the positions of its maps: ``convolution`` (1x1, sigmoid), ``variance`` of the
            channels, ``uniform``, or ``none``: every position is a capsule.
        rows: capsules are mixed from the features of ``positions`` (the paper), or from ``channels``:
            maps ``[C, H, W]`` read as ``[H·W, C]``.
        primary_types: capsules of each stage that fine-grained mapping makes.
        mixtures: rank of a mapping (m in the paper).
        capsule_dim: elements of a stage's capsule.
        bins: number of bins in each stage.
        second_stream: activation of the second stream's first block.
        depthwise_bias: whether depthwise convolutions have a bias.
        norm_epsilon: that of batch normalization.
        epsilon: the constant of the squash.
    """

    architecture: ClassVar[str] = "fsa-net"
    routing: ClassVar[str] = "dynamic"
    tasks: ClassVar[tuple[str, ...]] = (REGRESSION,)

    class_names: tuple[str, ...] = ()
    stem: tuple[Conv, ...] = ()
    primary_types: int = 7
    iterations: int = 2
    task: str = REGRESSION
    value_names: tuple[str, ...] = ("yaw", "pitch", "roll")
    units: tuple[str, ...] = ("degrees", "degrees", "degrees")
    ranges: tuple[float, ...] = (99.0, 99.0, 99.0)
    scorings: tuple[str, ...] = ("convolution",)
    rows: str = "positions"
    mixtures: int = 5
    capsule_dim: int = 16
    bins: int = 3
    second_stream: str = "tanh"
    depthwise_bias: bool = False
    norm_epsilon: float = 1e-3
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values, known in (
            ("scorings", self.scorings, ("convolution", "variance", "uniform", "none")),
            ("rows", (self.rows,), ("positions", "channels")),
            ("second_stream", (self.second_stream,), ("relu", "tanh")),
        ):
            unknown = [v for v in values if v not in known]
            if unknown:
                raise UsageError(
                    f"{name} is '{unknown[0]}'.", "", f"Choose one of: {', '.join(known)}."
                )
        if self.class_names or self.stem or self.capsule_layers:
            raise UsageError(
                "FSA-Net estimates values; it has no classes, and its layers are fixed."
            )
        if not len(self.value_names) == len(self.units) == len(self.ranges):
            raise UsageError("FSA-Net needs as many units and ranges as values.")
        if max(map(len, (*self.value_names, *self.units)), default=0) > limits.NAME_CHARACTERS:
            raise UsageError(f"A name or unit has over {limits.NAME_CHARACTERS:,} characters.")
        if not all(map(math.isfinite, self.ranges)):
            raise UsageError("The ranges of FSA-Net must be finite numbers.")
        if not (0 < self.epsilon < math.inf and 0 < self.norm_epsilon < math.inf):
            raise UsageError("epsilon and norm_epsilon must be finite numbers above 0.")
        check_range(1, limits.LAYERS, parts=len(self.scorings))
        check_range(
            1, limits.WIDTH, values=len(self.value_names), mixtures=self.mixtures, bins=self.bins
        )
        check_range(9, limits.WIDTH, capsule_dim=self.capsule_dim)
        check_range(
            8, limits.IMAGE_SIDE, height=self.preprocessing.height, width=self.preprocessing.width
        )

    @property
    def outputs(self) -> Outputs:
        """The values."""
        return Outputs(values=("values",), names=self.value_names, units=self.units)


@dataclass(frozen=True, kw_only=True)
class PooledFSANetConfig(FSANetConfig):
    """FSA-Net without capsules or routing, which its authors compare with.

    Attributes:
        pooling: what makes the features of the stages: ``metric``, two linear maps, or ``netvlad``.
    """

    architecture: ClassVar[str] = "fsa-net-pooled"
    routing: ClassVar[str] = ""

    iterations: int = 1
    pooling: str = "metric"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling not in ("metric", "netvlad"):
            raise UsageError(f"pooling is '{self.pooling}'.", "", "Choose one of: metric, netvlad.")
