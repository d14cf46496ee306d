"""Public networks with EM routing in PyTorch.

Letters: A channels, I input channels of the first convolution; B, C, D types of the primary and the two
convolutional capsule layers, E classes; S side of a pose; M1, M2 children of one of their windows, or K, L
its side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from capsedge.errors import UsageError
from capsedge.importers.families.capsnet_base import (
    MNIST,
    MNIST_NORMALIZED,
    layer,
    with_renamed_prefix,
)
from capsedge.importers.family import (
    DataSet,
    Family,
    Floats,
    ImportChoices,
    MissingChoice,
    Sizes,
    Tensors,
    Variant,
    images_and_classes,
    variant_of,
    weighted_sums_of,
    with_fields,
)
from capsedge.models.configs import CapsuleConv, Conv, MatrixCapsulesConfig, ModelConfig
from capsedge.models.registry import SMALLNORB

_STRIDES = (2, 1)  # strides of the convolutional capsule layers
_LAYERS = {"convcaps1": "capsules.0", "convcaps2": "capsules.1", "classcaps": "classes"}


def _configured(
    family: Family,
    sizes: Sizes,
    choices: ImportChoices,
    notes: list[str],
    stem: Conv,
    kernels: tuple[int, int],
) -> MatrixCapsulesConfig:
    """The common parts of both families."""
    return MatrixCapsulesConfig(
        **images_and_classes(family, sizes["E"], sizes["I"], choices, notes),
        stem=(stem,),
        primary_types=sizes["B"],
        capsule_layers=tuple(
            CapsuleConv(sizes[t], k, s) for t, k, s in zip("CD", kernels, _STRIDES, strict=True)
        ),
        iterations=weighted_sums_of(family, choices, notes),
        task=choices.task or "single-label",
        pose_side=sizes["S"],
        schedule="constant",
        coordinates="corners",
    )  # fmt: skip


# --- Matrix-Capsules-EM-PyTorch by Lei Yang (yl-1993) and its many forks ---


def _configure_yl_1993(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The configuration."""
    stem = Conv(sizes["A"], 5, 2, 2, batch_norm="R" in sizes, norm_epsilon=1e-3)
    kernels = (_kernel(sizes["M1"], sizes["B"]), _kernel(sizes["M2"], sizes["C"]))
    config = _configured(family, sizes, choices, notes, stem, kernels)
    dialect = {"inverse_temperature": 1e-3, "epsilon": 1e-8, "normalized_activations": True}
    return with_fields(config, {**dialect, **variant_of(family, choices, notes), **choices.fields})


def _kernel(children: int, types: int) -> int:
    side = math.isqrt(children // types)
    if side * side * types != children:
        raise UsageError(
            f"A window of {children} children of {types} types is not square.",
            "",
            "Export the author's module instead: capsedge export --module (docs/how-to/your-model.md).",
        )
    return side


def _convert_yl_1993(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; in the file, a routing weight is ``[1, K K B, C, S, S]``."""
    assert isinstance(config, MatrixCapsulesConfig)
    tensors: Tensors = {
        **layer(weights, "conv1", "stem.0"),
        **with_renamed_prefix(weights, "bn1.", "stem.1."),
        **layer(weights, "primary_caps.pose", "primary_pose.conv"),
        **layer(weights, "primary_caps.a", "primary_activation.conv"),
    }
    kernels = [c.kernel for c in config.capsule_layers] + [1]
    for theirs, ours, kernel in zip(
        ("conv_caps1", "conv_caps2", "class_caps"),
        ("capsules.0", "capsules.1", "classes"),
        kernels,
        strict=True,
    ):
        weight = weights[f"{theirs}.weights"][0]
        tensors[f"{ours}.weight"] = weight.reshape(kernel, kernel, -1, *weight.shape[1:])
        for beta in ("beta_u", "beta_a"):
            tensors[f"{ours}.{beta}"] = weights[f"{theirs}.{beta}"]
    return tensors


YL_1993 = Family(
    name="yl-1993",
    source="github.com/yl-1993/Matrix-Capsules-EM-PyTorch, model/capsules.py; also Moeinh77, vic-w, "
    "esdrascosta and ds2268",
    licence="MIT",
    dialect="EM routing; activations cancel but for small ones, inverse temperature 0.001 throughout",
    differences=(
        "R a is normalized over the parents with 1e-8 in the quotient: the routing sees a / (a + 1e-8)",
        "the inverse temperature is 0.001 in all iterations",
        "the class capsules' coordinates are i / H and j / W, in the first two elements of the vote",
        "batch normalization with epsilon 0.001 after the first convolution",
    ),
    keys={
        "conv1.weight": "A I 5 5",
        "conv1.bias": "A",
        "primary_caps.pose.weight": "BP A 1 1",
        "primary_caps.pose.bias": "BP",
        "primary_caps.a.weight": "B A 1 1",
        "primary_caps.a.bias": "B",
        **{
            f"{name}.{part}": pattern
            for name, weight, parents in (
                ("conv_caps1", "1 M1 C S S", "C"),
                ("conv_caps2", "1 M2 D S S", "D"),
                ("class_caps", "1 D E S S", "E"),
            )
            for part, pattern in (("weights", weight), ("beta_u", parents), ("beta_a", parents))
        },
    },
    optional=(
        {
            "bn1.weight": "R",
            "bn1.bias": "R",
            "bn1.running_mean": "R",
            "bn1.running_var": "R",
        },
    ),
    configure=_configure_yl_1993,
    convert=_convert_yl_1993,
    iterations_at="the option --em-iters of train.py (2 by default)",
    data_sets=(MNIST_NORMALIZED, DataSet("smallNORB", 1, 32, SMALLNORB)),
    variants=(
        Variant("new", "patches are windows, as since November 2018", {}),
        Variant(
            "old",
            "the patches' axes are mixed up, as before 19 November 2018",
            {"patches": "kernel"},
        ),
    ),
    variant_at="In add_pathes of the author's model/capsules.py, the first line of idxs has k_idx in the new "
    "code and h_idx in the old one; or let --data FOLDER decide.",
)


# --- Matrix-Capsules-pytorch by Yuxian Meng (formerly shzygmyx): clamped statistics ---


def _configure_yuxianmeng(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The configuration. Raises UsageError if a choice is missing or does not fit the file."""
    kernels = (sizes["K"], sizes["L"])
    config = _configured(family, sizes, choices, notes, Conv(sizes["A"], 5, 2), kernels)
    dialect = {"patches": "elements", "statistics": "clamped"}
    temperature = {"inverse_temperature": _temperature(choices)}
    return with_fields(config, {**dialect, **temperature, **choices.fields})


def _temperature(choices: ImportChoices) -> float:
    if choices.inverse_temperature is None:
        raise MissingChoice(
            "Which inverse temperature (lambda_) does the network run with?",
            "The author's code takes it as an argument of forward(), and the file does not record "
            "it. train.py starts at 0.001 and adds 0.2 per epoch up to 1: 0.201 after one epoch, "
            "0.401 after two, 1 after five.",
            "Add --inverse-temperature 1, or the value that was passed to forward().",
            "inverse_temperature=1.0",
            {"inverse_temperature": 1.0},
        )
    return choices.inverse_temperature


def _convert_yuxianmeng(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors.

    In the author's code, one convolution makes each type of primary capsules, and the channels of all are
    read as ``[P, B]``. A routing weight is ``[B, K, K, C, S, S]``, and ``beta_v`` is one number for all
    types.
    """
    assert isinstance(config, MatrixCapsulesConfig)
    tensors: Tensors = dict(layer(weights, "conv1", "stem.0"))
    types = config.primary_types
    for part in ("weight", "bias"):
        for theirs, ours in (("pose", "primary_pose"), ("activation", "primary_activation")):
            names = (f"primary_caps.capsules_{theirs}.{k}.{part}" for k in range(types))
            channels = np.concatenate([weights[name] for name in names])
            by_type = channels.reshape(-1, types, *channels.shape[1:]).swapaxes(0, 1)
            tensors[f"{ours}.conv.{part}"] = by_type.reshape(channels.shape)
    for theirs, ours in _LAYERS.items():
        weight = weights[f"{theirs}.W"]
        windows = weight if weight.ndim == 6 else weight[:, None, None]
        tensors[f"{ours}.weight"] = windows.transpose(1, 2, 0, 3, 4, 5)
        tensors[f"{ours}.beta_a"] = weights[f"{theirs}.beta_a"]
        tensors[f"{ours}.beta_u"] = np.broadcast_to(
            weights[f"{theirs}.beta_v"], tensors[f"{ours}.beta_a"].shape
        )
    return tensors


YUXIANMENG = Family(
    name="yuxianmeng",
    source="github.com/YuxianMeng/Matrix-Capsules-pytorch, Capsules.py since 23 November 2017",
    licence="",
    dialect="EM routing with R a and the variance clamped at 0.01; inverse temperature given to forward()",
    differences=(
        "R a and the variance are at least 0.01; R starts from one over the parents of all positions",
        "the cost takes the log of the variance, not of the deviation, and one beta_v for all types",
        "the E-step does not divide squared distances by the variance, takes votes of the mirrored position "
        "of a window, and normalizes over all windows that see a child",
        "a vote is W pose; elements and positions of the convolutional layers' patches are mixed up",
        "the class capsules' coordinates are i / H and j / W, in the first two elements of the vote",
        "the inverse temperature is the same in all iterations",
        "shares that underflow are NaN there and numbers here (with 2 iterations or more)",
    ),
    keys={
        "conv1.weight": "A I 5 5",
        "conv1.bias": "A",
        "primary_caps.capsules_pose.{B}.weight": "SS A 1 1",
        "primary_caps.capsules_pose.{B}.bias": "SS",
        "primary_caps.capsules_activation.{B}.weight": "1 A 1 1",
        "primary_caps.capsules_activation.{B}.bias": "1",
        "convcaps1.W": "B K K C S S",
        "convcaps2.W": "C L L D S S",
        "classcaps.W": "D E S S",
        **{f"{name}.beta_v": "1" for name in _LAYERS},
        **{f"{name}.beta_a": types for name, types in zip(_LAYERS, "CDE", strict=True)},
    },
    configure=_configure_yuxianmeng,
    convert=_convert_yuxianmeng,
    iterations_at="the option -r of train.py (1 in its README, 3 by default)",
    data_sets=(MNIST,),
)
