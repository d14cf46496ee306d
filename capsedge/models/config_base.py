"""Define `ModelConfig`, the base of all configurations, and the checks of their fields.

Needs no torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from capsedge.errors import UsageError
from capsedge.runtime.metadata.metadata import Outputs, Preprocessing
from capsedge.spec import limits
from capsedge.spec.vocabularies import CLASSIFICATION, REGRESSION

# --- Checks of fields ---


def check_range(least: int, most: int, **values: object) -> None:
    """Refuse numbers outside of a range."""
    for name, value in values.items():
        if not isinstance(value, int) or not least <= value <= most:
            raise UsageError(f"{name} is {value}.", f"Expected: {least} to {most:,}.")


def check_padding(padding: int | str) -> None:
    """Refuse a padding that is neither ``same`` nor a number of pixels in range."""
    if padding != "same":
        check_range(0, limits.KERNEL, padding=padding)


_DIALECTS = {
    "primary_grouping": ("channels", "pixels"),
    "primary_squash": ("pose", "children"),
    "softmax": ("parents", "children"),
    "class_squash": ("pose", "elements", "parents"),
    "schedule": ("rising", "constant"),
    "coordinates": ("centers", "corners", "none"),
    "patches": ("windows", "kernel", "elements"),
    "statistics": ("paper", "clamped"),
    "vote_layout": ("poses", "mixed"),
    "routed_softmax": ("positions", "types"),
    "routed_squash": ("maps", "rows", "pose", "elements"),
}


def check_dialects(config: object) -> None:
    """Refuse unknown words in the fields that describe how a network differs from its paper."""
    for name, known in _DIALECTS.items():
        value = getattr(config, name, known[0])
        if value not in known:
            raise UsageError(f"{name} is '{value}'.", "", f"Choose one of: {', '.join(known)}.")


# --- The parts of stems, and the base class ---


@dataclass(frozen=True)
class Conv:
    """The configuration of a stem's convolution, with optional batch normalization, then ReLU.

    Attributes:
        channels, kernel, stride, groups: as in ``nn.Conv2d``.
        padding: pixels on each side, or ``same``: as much as makes the output ``ceil(in / stride)``,
            the odd pixel at the end.
        bias, batch_norm: whether it has these parameters.
        norm_epsilon: added to the variance in the normalization.
        norm_last: whether normalization comes after the ReLU instead of before it.
        instance_norm: whether normalization is over each image (with weight and bias) instead of the batch.
        leak: the ReLU's slope below zero.
        activation: ``relu``, ``hardswish`` or ``linear``.
        channel_norm: whether normalization is over the channels at each position (LayerNorm) instead of the
            batch.
        pooled: rows and columns of the map after fractional max pooling at the end; 0 for none.
        squeeze: hidden units of a squeeze-and-excitation block at the end (Hu et al. 2018); 0 for none.
        attention: hidden channels of a convolutional block attention module at the end (Woo et al. 2018);
            0 for none.
        attention_kernel: kernel size of that module's convolution.
    """

    channels: int
    kernel: int
    stride: int = 1
    padding: int | str = 0
    bias: bool = True
    batch_norm: bool = False
    norm_epsilon: float = 1e-5
    norm_last: bool = False
    instance_norm: bool = False
    leak: float = 0.0
    groups: int = 1
    activation: str = "relu"
    channel_norm: bool = False
    pooled: int = 0
    squeeze: int = 0
    attention: int = 0
    attention_kernel: int = 3

    def __post_init__(self) -> None:
        check_range(1, limits.WIDTH, channels=self.channels, groups=self.groups)
        check_range(1, limits.KERNEL, kernel=self.kernel, stride=self.stride)
        check_range(0, limits.WIDTH, squeeze=self.squeeze, attention=self.attention)
        check_range(0, limits.IMAGE_SIDE, pooled=self.pooled)
        check_range(1, limits.KERNEL, attention_kernel=self.attention_kernel)
        check_padding(self.padding)
        if self.activation not in ("relu", "hardswish", "linear"):
            raise UsageError(
                f"Unknown activation of a convolution: '{self.activation}'.",
                "",
                "Choose one of: relu, hardswish, linear.",
            )
        if self.attention_kernel % 2 == 0:
            raise UsageError(
                f"attention_kernel is {self.attention_kernel}.", "Expected: an odd one."
            )
        if not 0 < self.norm_epsilon < math.inf:
            raise UsageError(
                f"norm_epsilon is {self.norm_epsilon:g}.", "Expected: a finite number above 0."
            )
        if not 0 <= self.leak <= 1:
            raise UsageError(f"leak is {self.leak:g}.", "Expected: 0 to 1.")


@dataclass(frozen=True)
class ResNet:
    """The configuration of Tsai et al.'s residual stem: a convolution, then stages of basic blocks.

    Attributes:
        stages: (channels, blocks, stride of the first block) of each stage.
    """

    stages: tuple[tuple[int, int, int], ...] = ((64, 3, 1), (128, 4, 2))

    def __post_init__(self) -> None:
        check_range(1, limits.LAYERS, stages=len(self.stages))
        for channels, blocks, stride in self.stages:
            check_range(1, limits.WIDTH, channels=channels)
            check_range(1, limits.LAYERS, blocks=blocks)
            check_range(1, limits.KERNEL, stride=stride)
        check_range(1, limits.LAYERS, blocks=sum(blocks for _, blocks, _ in self.stages))


@dataclass(frozen=True)
class CapsuleConv:
    """A convolutional capsule layer: its number of types, window and stride; no padding."""

    types: int
    kernel: int
    stride: int = 1

    def __post_init__(self) -> None:
        check_range(1, limits.WIDTH, types=self.types)
        check_range(1, limits.KERNEL, kernel=self.kernel, stride=self.stride)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Base of the configurations of all families.

    Attributes:
        class_names: one per class; their number is the number of class capsules.
        preprocessing: size, channels and scaling of the input.
        stem: the layers before the primary capsules.
        primary_types: number of primary capsule types.
        primary_kernel, primary_stride, primary_padding: parameters of the primary convolution.
        capsule_layers: convolutional capsule layers between primary and class capsules.
        iterations: routing iterations.
        task: ``single-label`` or ``multi-label``.
    """

    architecture: ClassVar[str]
    routing: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]] = CLASSIFICATION

    class_names: tuple[str, ...]
    preprocessing: Preprocessing
    stem: tuple[Conv, ...] | ResNet
    primary_types: int
    primary_kernel: int = 1
    primary_stride: int = 1
    primary_padding: int | str = 0
    capsule_layers: tuple[CapsuleConv, ...] = ()
    iterations: int = 3
    task: str = "single-label"

    def __post_init__(self) -> None:
        if not 1 <= self.iterations <= limits.ITERATIONS:
            raise UsageError(
                f"Routing cannot run {self.iterations} iterations.",
                "",
                f"Ask for 1 to {limits.ITERATIONS}.",
            )
        if self.task not in self.tasks:
            raise UsageError(
                f"Unknown task '{self.task}'.", "", f"Choose one of: {', '.join(self.tasks)}."
            )
        if self.task != REGRESSION and not self.class_names:
            raise UsageError("A model needs at least one class.")
        check_range(0, limits.WIDTH, classes=len(self.class_names))
        if max(map(len, self.class_names), default=0) > limits.NAME_CHARACTERS:
            raise UsageError(f"A class name has over {limits.NAME_CHARACTERS:,} characters.")
        if not isinstance(self.stem, ResNet):
            check_range(0, limits.LAYERS, layers_of_the_stem=len(self.stem))
        check_range(0, limits.LAYERS, capsule_layers=len(self.capsule_layers))
        check_range(1, limits.WIDTH, primary_types=self.primary_types)
        check_range(
            1,
            limits.KERNEL,
            primary_kernel=self.primary_kernel,
            primary_stride=self.primary_stride,
        )
        check_padding(self.primary_padding)

    @property
    def classes(self) -> int:
        """Number of class capsules."""
        return len(self.class_names)

    @property
    def fixed_batch(self) -> int | None:
        """The only batch size at which the network can be exported; None if the batch is free."""
        return None

    @property
    def outputs(self) -> Outputs | None:
        """The outputs of an exported file that hold the results; None for class scores and poses."""
        return None

    def replace(self, **changes: Any) -> ModelConfig:
        """A copy of the configuration with some fields changed."""
        return dataclasses.replace(self, **changes)

    def with_classes(self, names: Sequence[str]) -> ModelConfig:
        """The configuration for other classes, one for each name.

        Raises:
            UsageError: the network has no classes: it estimates values.
        """
        if self.task == REGRESSION:
            raise UsageError(
                f"A network of the architecture {self.architecture} estimates values.",
                "It has no classes.",
                "Choose another model.",
            )
        return self.replace(class_names=tuple(names))

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON values, which ``config_from_dict`` reads back."""
        values = dataclasses.asdict(self)
        if isinstance(self.stem, ResNet):
            values["stem"] = {"resnet": self.stem.stages}
        return {"architecture": self.architecture, **values}
