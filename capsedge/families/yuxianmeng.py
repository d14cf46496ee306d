"""Matrix-Capsules-pytorch of Yuxian Meng (shzygmyx before): EM routing with clamped statistics.

Letters: A channels, I input channels of the first convolution; B, C, D types of the primary and the two
convolutional capsule layers, E classes; K, L their kernels, S side of a pose.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from capsedge.families.capsnets import MNIST, layer
from capsedge.families.family import (
    Answers,
    Family,
    Sizes,
    Tensors,
    classes_of,
    preprocessing_of,
    size_of,
    sums_of,
    with_fields,
)
from capsedge.families.questions import MissingAnswer
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsuleConv, Conv, MatrixCapsulesConfig, ModelConfig

_STRIDES = (2, 1)  # of the convolutional capsule layers
_LAYERS = {"convcaps1": "capsules.0", "convcaps2": "capsules.1", "classcaps": "classes"}


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration.

    Raises:
        UsageError: an answer is missing or does not fit the file.
    """
    size = size_of(family, sizes["E"], sizes["I"], answers, notes)
    config = MatrixCapsulesConfig(
        class_names=classes_of(family, sizes["E"], size, sizes["I"], answers, notes),
        preprocessing=preprocessing_of(family, size, sizes["I"], answers, notes),
        stem=(Conv(sizes["A"], 5, 2),),
        primary_types=sizes["B"],
        capsule_layers=tuple(
            CapsuleConv(sizes[t], sizes[k], s) for t, k, s in zip("CD", "KL", _STRIDES, strict=True)
        ),
        iterations=sums_of(family, answers, notes),
        task=answers.task or "single-label",
        pose_side=sizes["S"],
        inverse_temperature=_temperature(answers),
        schedule="constant",
        coordinates="corners",
        patches="elements",
        statistics="clamped",
    )
    return with_fields(config, answers.fields)


def _temperature(answers: Answers) -> float:
    if answers.inverse_temperature is None:
        raise MissingAnswer(
            "Which inverse temperature (lambda_) does the network run with?",
            "The author's code takes it as an argument of forward(), and the file does not tell. train.py "
            "starts at 0.001 and adds 0.2 in an epoch until it is 1: 0.201 after one epoch, 0.401 after "
            "two, 1 after five.",
            "--inverse-temperature 1, or what forward() was given",
            "inverse_temperature=1.0",
            {"inverse_temperature": 1.0},
        )
    return answers.inverse_temperature


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors.

    One convolution makes each type of primary capsules, and the channels of all are read as ``[P, B]``. A
    routing weight is ``[B, K, K, C, S, S]`` there, and ``beta_v`` one number for all types.
    """
    assert isinstance(config, MatrixCapsulesConfig)
    made: Tensors = dict(layer(found, "conv1", "stem.0"))
    types = config.primary_types
    for part in ("weight", "bias"):
        for theirs, ours in (("pose", "primary_pose"), ("activation", "primary_activation")):
            names = (f"primary_caps.capsules_{theirs}.{k}.{part}" for k in range(types))
            channels = np.concatenate([found[name] for name in names])
            by_type = channels.reshape(-1, types, *channels.shape[1:]).swapaxes(0, 1)
            made[f"{ours}.conv.{part}"] = by_type.reshape(channels.shape)
    for theirs, ours in _LAYERS.items():
        weight = found[f"{theirs}.W"]
        windows = weight if weight.ndim == 6 else weight[:, None, None]
        made[f"{ours}.weight"] = windows.transpose(1, 2, 0, 3, 4, 5)
        made[f"{ours}.beta_a"] = found[f"{theirs}.beta_a"]
        made[f"{ours}.beta_u"] = np.broadcast_to(
            found[f"{theirs}.beta_v"], made[f"{ours}.beta_a"].shape
        )
    return made


FAMILY = Family(
    name="yuxianmeng",
    source="github.com/YuxianMeng/Matrix-Capsules-pytorch, Capsules.py since 23 November 2017",
    licence="",
    dialect="EM routing with R a and the variance clamped at 0.01; inverse temperature given to forward()",
    differences=(
        "R a and the variance are at least 0.01; R starts from one over the parents of all positions",
        "the cost takes the log of the variance, not of the deviation, and one beta_v for all types",
        "the E-step does not divide squared distances by the variance, takes votes of the mirrored place of "
        "a window, and normalizes over all windows that see a child",
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
    configure=configure,
    convert=convert,
    iterations_at="the option -r of train.py (1 in its README, 3 by default)",
    data_sets=(MNIST,),
)
