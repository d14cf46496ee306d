"""Configurations: what builds a model, and what its checkpoint stores. No torch needed."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from capsedge.errors import UsageError
from capsedge.runtime.files import limits
from capsedge.runtime.files.documents import Malformed, check, decode
from capsedge.runtime.metadata import CLASSIFICATION, Preprocessing


def _check(least: int, most: int, **values: object) -> None:
    """Refuse numbers outside of a range."""
    for name, value in values.items():
        if not isinstance(value, int) or not least <= value <= most:
            raise UsageError(f"{name} is {value}.", f"Wanted: {least} to {most:,}.")


def _check_padding(padding: int | str) -> None:
    if padding != "same":
        _check(0, limits.KERNEL, padding=padding)


_DIALECTS = {
    "primary_grouping": ("channels", "pixels"),
    "primary_squash": ("pose", "children"),
    "softmax": ("parents", "children"),
    "class_squash": ("pose", "elements", "parents"),
}


@dataclass(frozen=True)
class Conv:
    """A convolution of the stem, then batch normalization if asked for, then ReLU.

    Attributes:
        channels, kernel, stride: as usual.
        padding: pixels on each side, or ``same``: as much as makes the output ``ceil(in / stride)``,
            the odd pixel at the end.
        bias, batch_norm: which parameters there are.
    """

    channels: int
    kernel: int
    stride: int = 1
    padding: int | str = 0
    bias: bool = True
    batch_norm: bool = False

    def __post_init__(self) -> None:
        _check(1, limits.WIDTH, channels=self.channels)
        _check(1, limits.KERNEL, kernel=self.kernel, stride=self.stride)
        _check_padding(self.padding)


@dataclass(frozen=True)
class ResNet:
    """The residual stem of Tsai et al. 2020: a 3x3 convolution, then stages of basic blocks.

    Attributes:
        stages: (channels, blocks, stride of the first block) of each stage.
    """

    stages: tuple[tuple[int, int, int], ...] = ((64, 3, 1), (128, 4, 2))

    def __post_init__(self) -> None:
        _check(1, limits.LAYERS, stages=len(self.stages))
        for channels, blocks, stride in self.stages:
            _check(1, limits.WIDTH, channels=channels)
            _check(1, limits.LAYERS, blocks=blocks)
            _check(1, limits.KERNEL, stride=stride)
        _check(1, limits.LAYERS, blocks=sum(blocks for _, blocks, _ in self.stages))


@dataclass(frozen=True)
class CapsuleConv:
    """A convolutional capsule layer: its number of types, window and stride; no padding."""

    types: int
    kernel: int
    stride: int = 1

    def __post_init__(self) -> None:
        _check(1, limits.WIDTH, types=self.types)
        _check(1, limits.KERNEL, kernel=self.kernel, stride=self.stride)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What all families have.

    Attributes:
        class_names: one a class; their number is the number of class capsules.
        preprocessing: size, channels and scaling of the input.
        stem: the layers before the primary capsules.
        primary_types: number of primary capsule types.
        primary_kernel, primary_stride, primary_padding: of the primary convolution.
        capsule_layers: convolutional capsule layers between primary and class capsules.
        iterations: routing iterations.
        task: ``single-label`` or ``multi-label``.
    """

    architecture: ClassVar[str]
    routing: ClassVar[str]

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
        if self.task not in CLASSIFICATION:
            raise UsageError(f"Unknown task '{self.task}'.", f"Known: {', '.join(CLASSIFICATION)}.")
        if not self.class_names:
            raise UsageError("A model needs at least one class.")
        _check(1, limits.WIDTH, classes=len(self.class_names))
        if max(map(len, self.class_names)) > limits.NAME_CHARACTERS:
            raise UsageError(f"A class name has over {limits.NAME_CHARACTERS:,} characters.")
        if not isinstance(self.stem, ResNet):
            _check(0, limits.LAYERS, layers_of_the_stem=len(self.stem))
        _check(0, limits.LAYERS, capsule_layers=len(self.capsule_layers))
        _check(1, limits.WIDTH, primary_types=self.primary_types)
        _check(
            1,
            limits.KERNEL,
            primary_kernel=self.primary_kernel,
            primary_stride=self.primary_stride,
        )
        _check_padding(self.primary_padding)

    @property
    def classes(self) -> int:
        """Number of class capsules."""
        return len(self.class_names)

    @property
    def fixed_batch(self) -> int | None:
        """The only batch that the network is exported with; None where the batch is free."""
        return None

    def replace(self, **changes: Any) -> ModelConfig:
        """The same configuration with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """JSON values that ``config_from_dict`` reads back."""
        values = dataclasses.asdict(self)
        values["preprocessing"] = self.preprocessing.to_dict()
        values["stem"] = (
            {"resnet": self.stem.stages} if isinstance(self.stem, ResNet) else values["stem"]
        )
        return {"architecture": self.architecture, **values}


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

    The rest is where published networks differ from the paper (docs/import.md):

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
        softmax_scores: the scores are the softmax of the lengths.
        batch_average: its author's code averages agreements over the batch. The network here is that code
            at batch 1, and is exported with the batch fixed to 1.
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
    softmax_scores: bool = False
    batch_average: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in _DIALECTS.items():
            if getattr(self, name) not in known:
                raise UsageError(
                    f"{name} is '{getattr(self, name)}'.", f"Known: {', '.join(known)}."
                )
        if not 0 < self.epsilon < math.inf:
            raise UsageError(f"epsilon is {self.epsilon:g}.", "Wanted: a finite number above 0.")
        if self.capsule_layers and self.primary_grouping != "channels":
            raise UsageError(
                "Convolutional capsule layers need capsules that have a position.",
                "With primary_grouping 'pixels' they have none.",
                "Use 'channels', or no capsule_layers.",
            )
        if self.class_squash == "parents" and (self.leaky or self.class_bias or self.vote_bias):
            raise UsageError(
                "A squash over the parents goes with neither leaky routing nor biases.",
                "",
                "Leave out leaky, class_bias and vote_bias.",
            )
        _check(1, limits.WIDTH, primary_dim=self.primary_dim, capsule_dim=self.capsule_dim)
        _check(0, limits.LAYERS, layers_of_the_decoder=len(self.decoder))
        for size in self.decoder:
            _check(1, limits.WIDTH, decoder=size)

    @property
    def fixed_batch(self) -> int | None:
        """1 where its author's code averages over the batch."""
        return 1 if self.batch_average else None


@dataclass(frozen=True, kw_only=True)
class MatrixCapsulesConfig(ModelConfig):
    """Matrix capsules with EM routing (Hinton et al. 2018).

    Attributes:
        pose_side: side of the pose matrix.
        inverse_temperature: final λ of the schedule ``λ_t = final (1 - 0.95^t)``, t = 1, 2, ...
        epsilon: of the EM statistics.
    """

    architecture: ClassVar[str] = "matrix-capsules"
    routing: ClassVar[str] = "em"

    pose_side: int = 4
    inverse_temperature: float = 0.01
    epsilon: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(1, limits.KERNEL, pose_side=self.pose_side)
        if not (0 < self.epsilon < math.inf and math.isfinite(self.inverse_temperature)):
            raise UsageError(
                f"epsilon {self.epsilon:g}, inverse temperature {self.inverse_temperature:g}.",
                "Wanted: finite numbers, and epsilon above 0.",
            )

    @property
    def inverse_temperatures(self) -> tuple[float, ...]:
        """λ of each iteration."""
        return tuple(
            self.inverse_temperature * (1 - 0.95 ** (t + 1)) for t in range(self.iterations)
        )


@dataclass(frozen=True, kw_only=True)
class AttentionCapsulesConfig(ModelConfig):
    """Capsules with inverted dot-product attention routing (Tsai et al. 2020).

    Attributes:
        pose_dim: elements of every pose.
        matrix_pose: square matrix poses, or vectors.
        dense_layers: types of fully connected capsule layers between the convolutional ones and the
            class capsules.
        concurrent: all layers route at once, pass by pass; otherwise one layer after the other.
    """

    architecture: ClassVar[str] = "attention-capsules"
    routing: ClassVar[str] = "attention"

    pose_dim: int = 16
    matrix_pose: bool = True
    dense_layers: tuple[int, ...] = ()
    concurrent: bool = True
    iterations: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(1, limits.WIDTH, pose_dim=self.pose_dim)
        if self.matrix_pose and math.isqrt(self.pose_dim) ** 2 != self.pose_dim:
            raise UsageError(
                f"A pose of {self.pose_dim} elements do not form a square matrix.", "", "Use 16."
            )
        _check(0, limits.LAYERS, dense_layers=len(self.dense_layers))
        for size in self.dense_layers:
            _check(1, limits.WIDTH, dense_layers=size)


FAMILIES: dict[str, type[ModelConfig]] = {
    c.architecture: c for c in (CapsNetConfig, MatrixCapsulesConfig, AttentionCapsulesConfig)
}


def config_from_dict(values: object) -> ModelConfig:
    """Build a configuration from what ``ModelConfig.to_dict`` gave.

    Raises:
        UsageError: an unknown architecture, or fields that do not fit it.
    """
    try:
        rest = dict(decode(dict[str, Any], check(values)))
        architecture = rest.pop("architecture", None)
        family = FAMILIES.get(str(architecture))
        if family is None:
            raise UsageError(
                f"Unknown architecture '{architecture}'.", f"Known: {', '.join(sorted(FAMILIES))}."
            )
        stem = rest.get("stem")
        if isinstance(stem, dict) and stem.keys() == {"resnet"}:
            rest["stem"] = {"stages": stem["resnet"]}
        return decode(family, rest)
    except Malformed as error:
        raise UsageError("The model configuration cannot be read.", f"{error}.") from error
