"""Define the configuration of SegCaps. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from capsedge.errors import UsageError
from capsedge.models.config_base import Conv, ModelConfig, check_range
from capsedge.runtime.metadata.metadata import Outputs
from capsedge.spec import limits
from capsedge.spec.fields import UNKNOWN
from capsedge.spec.vocabularies import LENGTHS, SEGMENTATION


@dataclass(frozen=True)
class CapsuleMap:
    """A convolutional capsule layer of SegCaps: its number of types, the elements of a pose, and whether
    agreement routes it; otherwise its parents share every vote equally."""

    types: int
    dim: int
    routed: bool = True

    def __post_init__(self) -> None:
        check_range(1, limits.WIDTH, types=self.types, dim=self.dim)


@dataclass(frozen=True, kw_only=True)
class SegCapsConfig(ModelConfig):
    """SegCaps (LaLonde and Bagci 2018): a U-shaped network of capsules that are routed at each position.

    With two classes, background and foreground, there is one capsule at each pixel, whose length says whether
    it is foreground; with more, one for each class.

    Attributes:
        down: on the way down, pairs of layers: the first halves the map, the second keeps it.
        up: on the way up, one pair for each pair of ``down``: the first doubles the map, to which that of the
            way down is joined; the second mixes both. The pixels' own layer mixes those of the last step, so
            there is one layer less than in ``down``.
        kernel: side of the convolutions that make votes.
        capsule_dim: elements of a pixel's pose.
        epsilon: the constant under the root of every squash.
    """

    architecture: ClassVar[str] = "segcaps"
    routing: ClassVar[str] = "dynamic"
    tasks: ClassVar[tuple[str, ...]] = (SEGMENTATION,)

    stem: tuple[Conv, ...] = (Conv(16, 5, padding="same"),)
    primary_types: int = 1
    task: str = SEGMENTATION
    down: tuple[CapsuleMap, ...] = (
        *(CapsuleMap(2, 16, False), CapsuleMap(4, 16, False), CapsuleMap(4, 32), CapsuleMap(8, 32)),
        *(CapsuleMap(8, 64), CapsuleMap(8, 32)),
    )
    up: tuple[CapsuleMap, ...] = (
        *(CapsuleMap(8, 32), CapsuleMap(4, 32), CapsuleMap(4, 16), CapsuleMap(4, 16)),
        CapsuleMap(2, 16),
    )
    kernel: int = 5
    capsule_dim: int = 16
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        p = self.preprocessing
        if self.capsule_layers:
            raise UsageError(
                "SegCaps has its layers in 'down' and 'up', and no other capsule layers."
            )
        if not 2 <= self.classes <= UNKNOWN:
            raise UsageError(f"SegCaps has {self.classes} classes.", f"A mask has 2 to {UNKNOWN}.")
        check_range(2, limits.LAYERS, layers_down=len(self.down))
        if len(self.down) % 2 or len(self.up) != len(self.down) - 1:
            raise UsageError(
                f"SegCaps has {len(self.down)} layers down and {len(self.up)} up.",
                "Layers down come in pairs, and there is one less up.",
            )
        check_range(1, limits.KERNEL, kernel=self.kernel)
        check_range(1, limits.WIDTH, capsule_dim=self.capsule_dim)
        if self.kernel % 2 == 0:
            raise UsageError(f"kernel is {self.kernel}.", "Expected: an odd one.")
        joined = [self.stem[-1].channels if self.stem else p.channels]
        joined += [layer.dim for layer in self.down[1:-2:2]]
        if joined != [layer.dim for layer in self.up[::-2]]:
            raise UsageError(
                "Maps that SegCaps joins have poses of different sizes.",
                f"Elements on the way down: {joined}; up: {[layer.dim for layer in self.up[::-2]]}.",
            )
        if any(conv.stride != 1 or conv.padding != "same" for conv in self.stem):
            raise UsageError(
                "The stem of SegCaps keeps the size of the image.",
                "One of its convolutions has a stride, or no padding 'same'.",
            )
        step = 2 ** (len(self.down) // 2)
        if p.height % step or p.width % step:
            raise UsageError(
                f"SegCaps halves its map {len(self.down) // 2} times; {p.height}x{p.width} cannot be.",
                "",
                f"Use a size that is a multiple of {step}.",
            )
        if not 0 < self.epsilon < math.inf:
            raise UsageError(f"epsilon is {self.epsilon:g}.", "Expected: a finite number above 0.")

    @property
    def maps(self) -> int:
        """Maps of lengths: one for two classes, or else one for each class."""
        return 1 if self.classes == 2 else self.classes

    @property
    def outputs(self) -> Outputs:
        """The lengths of the pixels' capsules."""
        return Outputs(scores=LENGTHS, kind="length")
