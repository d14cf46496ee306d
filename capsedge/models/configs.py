"""Define the configurations from which models are built and which checkpoints store. No torch needed.

Each family's model has its own module; the configurations of all are here, three of them imported from
their own files (`capsule_stack_config`, `fsanet_config`, `segcaps_config`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from capsedge.errors import UsageError
from capsedge.models.capsule_stack_config import CapsuleStackConfig, RoutedLayerConfig, StemLayer
from capsedge.models.config_base import (
    CapsuleConv,
    Conv,
    ModelConfig,
    ResNet,
    check_dialects,
    check_padding,
    check_range,
)
from capsedge.models.fsanet_config import FSANetConfig, PooledFSANetConfig
from capsedge.models.segcaps_config import CapsuleMap, SegCapsConfig
from capsedge.runtime.files.documents import MalformedJson, check_plain_values, decode
from capsedge.spec import limits

# --- CapsNet ---


@dataclass(frozen=True, kw_only=True)
class CapsNetConfig(ModelConfig):
    """CapsNet with dynamic routing (Sabour et al. 2017).

    Attributes:
        primary_dim: elements of a primary capsule's pose.
        capsule_dim: elements of a pose in all later layers, including the class capsules.
        leaky: whether the class layer has a "none of the above" parent.
        class_bias: whether class capsules have a bias inside the squash, as in the authors' release.
        learned_priors: whether the start logits are parameters (the log priors of equation 3).
        decoder: hidden sizes of the reconstruction decoder; none if empty.
        linear_classifier: whether the scores are logits from one linear map shared by all class capsules,
            instead of their lengths (the dynamic-routing model of Tsai et al. on DiverseMultiMNIST).

    The rest is where published networks differ from the paper (docs/how-to/import.md):

    Attributes:
        primary_grouping: a primary capsule consists of the ``channels`` at one position (the paper), or of
            ``pixels``: consecutive elements of the convolution's output ``[C, H, W]``, across rows and
            channels.
        primary_squash: squash of the primary capsules over each ``pose`` (the paper), or over all
            ``children``, element by element of the pose.
        softmax: the couplings of the class layer sum to one over the ``parents`` (the paper) or the
            ``children``.
        class_squash: squash of the class capsules over each ``pose`` (the paper), of single ``elements``
            (``x|x| / (1 + x²)``), or over all ``parents``.
        vote_bias: whether a learned constant ``[J, P]`` is added to the votes.
        epsilon: the constant under the root of every squash.
        length_epsilon: the constant under the root of the lengths.
        softmax_scores: whether the scores are the softmax of the lengths.
        batch_average: whether the original code averages agreements over the batch. The network here equals
            that code at batch 1, and is exported with the batch fixed to 1.
        primary_groups, primary_bias: groups and bias of the primary convolution.

    Set by pruning (docs/how-to/prune.md):

    Attributes:
        primary_positions: the positions of the primary capsules' map that are routed, counted row by row, in
            rising order; all if empty.
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
            raise UsageError(f"epsilon is {self.epsilon:g}.", "Expected: a finite number above 0.")
        if not 0 <= self.length_epsilon < math.inf:
            raise UsageError(f"length_epsilon is {self.length_epsilon:g}.", "Expected: 0 or more.")
        if self.capsule_layers and self.primary_grouping != "channels":
            raise UsageError(
                "Convolutional capsule layers need capsules that have a position.",
                "With primary_grouping 'pixels' they have none.",
                "Use 'channels', or no capsule_layers.",
            )
        self._check_positions()
        if self.class_squash == "parents" and (self.leaky or self.class_bias or self.vote_bias):
            raise UsageError(
                "A squash over the parents cannot be combined with leaky routing or biases.",
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
            raise UsageError("primary_positions must be in ascending order, each once.")
        if chosen and (self.capsule_layers or self.primary_grouping != "channels"):
            raise UsageError(
                "primary_positions apply only to class capsules over a map of primary capsules.",
                "Windows of convolutional layers, and capsules of pixels, need the whole map.",
                "Leave them out.",
            )

    @property
    def fixed_batch(self) -> int | None:
        """1 if the original code averages over the batch."""
        return 1 if self.batch_average else None


# --- Matrix capsules ---


@dataclass(frozen=True, kw_only=True)
class MatrixCapsulesConfig(ModelConfig):
    """Matrix capsules with EM routing (Hinton et al. 2018).

    Attributes:
        pose_side: side of the pose matrix.
        inverse_temperature: final λ of the schedule ``λ_t = final (1 - 0.95^t)``, t = 1, 2, ...
        epsilon: the constant in the EM statistics.

    The rest is where published networks differ from the paper (docs/how-to/import.md):

    Attributes:
        schedule: λ is ``rising``, or ``constant`` in all iterations.
        coordinates: those added to the votes for the class capsules: the ``centers`` of the children's cells,
            ``(i + 1/2) / H``, in the right-hand column of the vote; the ``corners``, ``i / H``, in the first
            two elements of its first row; or ``none``.
        normalized_activations: whether the children's activations are ``a / (a + epsilon)``, as computed by
            code that normalizes ``R a`` over the parents.
        patches: how the convolutional capsule layers read their input: ``windows``, or ``kernel``, for
            patches ``[K, K, H', W']`` read as ``[H', W', K, K]``.
        statistics: those of the ``paper``, or ``clamped`` (`capsedge.models.em_layers`), where ``patches``
            are of poses, as in ``AttentionCapsulesConfig``.
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
            raise UsageError(f"Patches '{self.patches}' do not fit these statistics.")
        if clamped and (self.coordinates == "centers" or self.normalized_activations):
            raise UsageError("Clamped statistics need corner coordinates and plain activations.")
        check_range(1, limits.KERNEL, pose_side=self.pose_side)
        if not (0 < self.epsilon < math.inf and math.isfinite(self.inverse_temperature)):
            raise UsageError(
                f"epsilon {self.epsilon:g}, inverse temperature {self.inverse_temperature:g}.",
                "Expected: finite numbers, and epsilon above 0.",
            )

    @property
    def inverse_temperatures(self) -> tuple[float, ...]:
        """λ of each iteration."""
        if self.schedule == "constant":
            return (self.inverse_temperature,) * self.iterations
        return tuple(
            self.inverse_temperature * (1 - 0.95 ** (t + 1)) for t in range(self.iterations)
        )


# --- Attention capsules ---


@dataclass(frozen=True, kw_only=True)
class AttentionCapsulesConfig(ModelConfig):
    """Capsules with inverted dot-product attention routing (Tsai et al. 2020).

    Attributes:
        pose_dim: elements of every pose.
        matrix_pose: whether poses are square matrices instead of vectors.
        dense_layers: numbers of types in the fully connected capsule layers between the convolutional ones
            and the class capsules.
        concurrent: whether all layers route at once, pass by pass, instead of one after the other.
        patches: how the convolutional capsule layers read their input: ``windows`` (the paper), or
            ``elements``, for patches ``[P, H' W']`` at each place of the kernel read as ``[H' W', P]``.
    """

    architecture: ClassVar[str] = "attention-capsules"
    routing: ClassVar[str] = "attention"

    pose_dim: int = 16
    matrix_pose: bool = True
    dense_layers: tuple[int, ...] = ()
    concurrent: bool = True
    iterations: int = 2
    patches: str = "windows"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dialects(self)
        check_range(1, limits.WIDTH, pose_dim=self.pose_dim)
        if self.matrix_pose and math.isqrt(self.pose_dim) ** 2 != self.pose_dim:
            raise UsageError(
                f"A pose of {self.pose_dim} elements does not form a square matrix.", "", "Use 16."
            )
        check_range(0, limits.LAYERS, dense_layers=len(self.dense_layers))
        for size in self.dense_layers:
            check_range(1, limits.WIDTH, dense_layers=size)


# --- DeepCaps ---


@dataclass(frozen=True, kw_only=True)
class DeepCapsConfig(ModelConfig):
    """DeepCaps (Rajasegaran et al. 2019): cells of convolutional capsules, the last of which is routed.

    Attributes:
        primary_types: number of capsule types in every cell.
        dims: elements of a pose in each cell.
        capsule_dim: elements of a class capsule's pose.
        padding: that of the convolutions in the cells.
        vote_bias: whether the convolutions, including that of the votes, have a bias; otherwise routing adds
            one to the sum of the votes.
        squashed_stem: whether the stem's channels are squashed one by one.
        vote_elements: how many elements of a pose, from the first, votes are computed from; 0 for all.
        vote_layout: votes are computed from ``poses``, or from a map ``[H, W, C, P]`` read as
            ``[C, P, H, W]``: ``mixed``.
        routed_iterations: iterations of the routed cell; ``iterations`` are those of the class capsules.
        routed_softmax: a type's couplings sum to one over all types and ``positions``, or over the ``types``
            at one position.
        routed_squash: the squash of the routed cell: over the elements and positions of a type (``maps``),
            the columns of an element's ``rows``, the elements of a ``pose``, or single ``elements``.
        last_bias: whether the class capsules' bias is added in the last iteration only.
        epsilon, routing_epsilon: constants of the squash in convolutions and in routing.
        length_offset: added to the elements of class capsules when computing their lengths.
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
    vote_layout: str = "poses"
    routed_iterations: int = 3
    routed_softmax: str = "positions"
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
            raise UsageError(
                "The last two cells must have poses of the same size, because both feed the "
                "classes."
            )
        if self.capsule_layers:
            raise UsageError("DeepCaps has cells and no other capsule layers.")
        if not (0 < self.epsilon < math.inf and 0 < self.routing_epsilon < math.inf):
            raise UsageError("The epsilons of DeepCaps must be finite numbers above 0.")
        if not 0 <= self.length_offset < math.inf:
            raise UsageError("The offset of the lengths must be 0 or more.")


# --- Efficient-CapsNet ---


@dataclass(frozen=True, kw_only=True)
class EfficientCapsNetConfig(ModelConfig):
    """Efficient-CapsNet (Mazzia, Salvetti, Chiaberge 2021): one pass of self-attention routing.

    Attributes:
        primary_dim: elements of a primary capsule's pose; the depthwise primary convolution covers its whole
            input, so there is one capsule of each type.
        capsule_dim: elements of a class capsule's pose.
        decoder: hidden sizes of the reconstruction decoder; none if empty.
        epsilon: the constant of both squashes.
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
                raise UsageError(
                    f"{name} is {getattr(self, name):g}.", "Expected: a number above 0."
                )


# --- PSCapsNet ---

UPDATES = ("agreement", "k-means")


@dataclass(frozen=True, kw_only=True)
class PSCapsNetConfig(ModelConfig):
    """Parameter-sharing capsules on residual blocks (Ren, Su, Lu 2019).

    Attributes:
        primary_dim: elements of a child: the channels at one position of the stem's map.
        capsule_dim: elements of a class capsule.
        shared: whether all children share one weight; otherwise each has its own.
        pooled: rows and columns to which the map is averaged first; 0 leaves it unchanged.
        update: ``agreement`` (Sabour et al. 2017); or ``k-means``: in each iteration, the logits are the
            votes' products with the sum divided by its norm, and ``iterations`` follow a first uniform sum.
        epsilon: the constant under the root of the squash and of that norm.
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
            raise UsageError(
                f"update is '{self.update}'.", "", f"Choose one of: {', '.join(UPDATES)}."
            )
        if self.capsule_layers:
            raise UsageError("PSCapsNet has no capsule layers before the class capsules.")
        check_range(1, limits.WIDTH, primary_dim=self.primary_dim, capsule_dim=self.capsule_dim)
        check_range(0, limits.IMAGE_SIDE, pooled=self.pooled)
        if self.stem.stages[-1][0] % self.primary_dim:
            raise UsageError(
                f"{self.stem.stages[-1][0]} channels cannot be divided into capsules of {self.primary_dim}.",
                "The last stage's channels must be a multiple of primary_dim.",
            )
        if not 0 < self.epsilon < math.inf:
            raise UsageError(f"epsilon is {self.epsilon:g}.", "Expected: a finite number above 0.")


__all__ = [
    "ARCHITECTURES",
    "AttentionCapsulesConfig",
    "CapsNetConfig",
    "CapsuleConv",
    "CapsuleMap",
    "CapsuleStackConfig",
    "Conv",
    "DeepCapsConfig",
    "EfficientCapsNetConfig",
    "FSANetConfig",
    "MatrixCapsulesConfig",
    "ModelConfig",
    "PSCapsNetConfig",
    "PooledFSANetConfig",
    "ResNet",
    "RoutedLayerConfig",
    "SegCapsConfig",
    "StemLayer",
    "config_from_dict",
]

ARCHITECTURES: dict[str, type[ModelConfig]] = {
    c.architecture: c
    for c in (
        CapsNetConfig,
        MatrixCapsulesConfig,
        AttentionCapsulesConfig,
        EfficientCapsNetConfig,
        FSANetConfig,
        PooledFSANetConfig,
        CapsuleStackConfig,
        DeepCapsConfig,
        PSCapsNetConfig,
        SegCapsConfig,
    )
}


def config_from_dict(values: object) -> ModelConfig:
    """Build a configuration from the result of ``ModelConfig.to_dict``.

    Raises:
        UsageError: the architecture is unknown, or fields do not fit it.
    """
    try:
        rest = dict(decode(dict[str, Any], check_plain_values(values)))
        architecture = rest.pop("architecture", None)
        family = ARCHITECTURES.get(str(architecture))
        if family is None:
            raise UsageError(
                f"Unknown architecture '{architecture}'.",
                "",
                f"Choose one of: {', '.join(sorted(ARCHITECTURES))}.",
            )
        stem = rest.get("stem")
        if isinstance(stem, dict) and stem.keys() == {"resnet"}:
            rest["stem"] = {"stages": stem["resnet"]}
        return decode(family, rest)
    except MalformedJson as error:
        raise UsageError("The model configuration cannot be read.", f"{error}.") from error
