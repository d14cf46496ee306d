"""Define the configuration of a capsule stack: layers before the capsules, and layers of routed capsules."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from capsedge.errors import UsageError
from capsedge.models.config_base import Conv, ModelConfig, check_range
from capsedge.spec import limits


@dataclass(frozen=True)
class StemLayer:
    """A layer of a `CapsuleStackConfig` before the capsules, with the names and defaults of Keras.

    Attributes:
        kind: ``conv``, ``norm`` (batch normalization), ``max``, ``average`` (pooling) or ``activation``.
        channels: output channels of a convolution; for other layers, the incoming ones.
        kernel, stride: size in rows and columns.
        same: whether padding is ``same``; otherwise it is ``valid``.
        bias: whether a convolution has one.
        activation: ``linear``, ``relu``, ``tanh`` or ``sigmoid``.
        epsilon: that of batch normalization.
        name: name of the layer that it was imported from.
    """

    kind: str
    channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    same: bool = False
    bias: bool = True
    activation: str = "linear"
    epsilon: float = 1e-3
    name: str = ""

    def __post_init__(self) -> None:
        for what, value, known in (
            ("kind", self.kind, ("conv", "norm", "max", "average", "activation")),
            ("activation", self.activation, ("linear", "relu", "tanh", "sigmoid")),
        ):
            if value not in known:
                raise UsageError(
                    f"A layer's {what} is '{value}'.", "", f"Choose one of: {', '.join(known)}."
                )
        check_range(1, limits.WIDTH, channels=self.channels)
        for size in (*self.kernel, *self.stride):
            check_range(1, limits.KERNEL, kernel=size)
        if (
            self.same
            and self.kind in ("max", "average")
            and not self.kernel == self.stride == (2, 2)
        ):
            raise UsageError(
                "Pooling with padding is supported only for windows of 2x2 and strides of 2."
            )
        if not 0 < self.epsilon < math.inf or len(self.name) > limits.NAME_CHARACTERS:
            raise UsageError(
                "A layer's epsilon must be a finite number above 0, and its name must be short."
            )

    def size(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of its output for a grid.

        Raises:
            UsageError: its window is larger than the grid.
        """
        if self.kind in ("norm", "activation"):
            return grid
        pairs = list(zip(grid, self.kernel, self.stride, strict=True))
        if self.same:
            rows, columns = (-(-n // s) for n, _, s in pairs)
        else:
            rows, columns = ((n - k) // s + 1 for n, k, s in pairs)
        if min(rows, columns) < 1:
            raise UsageError(f"A window of {self.kernel} does not fit a map of {grid}.")
        return rows, columns


@dataclass(frozen=True)
class RoutedLayerConfig:
    """A layer of routed capsules.

    Attributes:
        capsules, dim: number of parents and size of their poses.
        shared: whether all children share one weight.
        name: name of the layer that it was imported from.
    """

    capsules: int
    dim: int
    shared: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        check_range(1, limits.WIDTH, capsules=self.capsules, capsule_dim=self.dim)
        if len(self.name) > limits.NAME_CHARACTERS:
            raise UsageError(f"A layer's name has over {limits.NAME_CHARACTERS:,} characters.")


@dataclass(frozen=True, kw_only=True)
class CapsuleStackConfig(ModelConfig):
    """Any stem, its map as capsules, and layers of routed capsules: the ``Capsule`` layer of Keras' examples.

    ``squash(s) = s·√q / (offset + q)`` with ``q = |s|² + epsilon``.

    Attributes:
        layers: the stem.
        primary_dim: elements of a capsule: the channels at one position, or a part of them.
        routed: the layers of capsules; the last one has a capsule for each class.
        replaced: whether agreements replace the logits instead of being added to them.
        offset, epsilon: parameters of the squash.
    """

    architecture: ClassVar[str] = "capsule-stack"
    routing: ClassVar[str] = "dynamic"

    stem: tuple[Conv, ...] = ()
    primary_types: int = 1
    layers: tuple[StemLayer, ...] = ()
    primary_dim: int
    routed: tuple[RoutedLayerConfig, ...]
    replaced: bool = True
    offset: float = 1.0
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(0, limits.LAYERS, layers=len(self.layers))
        check_range(1, limits.LAYERS, routed=len(self.routed))
        check_range(1, limits.WIDTH, primary_dim=self.primary_dim)
        if self.stem or self.capsule_layers:
            raise UsageError(
                "A capsule stack declares its stem in layers and its capsules in routed."
            )
        if self.routed[-1].capsules != self.classes:
            raise UsageError(
                f"{self.classes} class names were given.",
                f"The last layer has {self.routed[-1].capsules} capsules.",
            )
        if not (0 < self.epsilon < math.inf and 0 < self.offset < math.inf):
            raise UsageError("The offset and epsilon of a squash must be finite numbers above 0.")

    def with_classes(self, names: Sequence[str]) -> ModelConfig:
        """See ``ModelConfig``: the last layer has a capsule for each."""
        last = dataclasses.replace(self.routed[-1], capsules=len(names))
        return self.replace(class_names=tuple(names), routed=(*self.routed[:-1], last))
