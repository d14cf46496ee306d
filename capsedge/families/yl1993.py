"""Matrix-Capsules-EM-PyTorch of Lei Yang (yl-1993) and its many forks: EM routing.

Letters: A channels, I input channels of the first convolution; B, C, D types of the primary and the two
convolutional capsule layers, E classes; S side of a pose; M1, M2 children of a window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from capsedge.errors import UsageError
from capsedge.families.capsnets import MNIST_NORMALIZED, layer, renamed
from capsedge.families.family import (
    Answers,
    DataSet,
    Family,
    Sizes,
    Tensors,
    Variant,
    classes_of,
    preprocessing_of,
    size_of,
    sums_of,
    variant_of,
    with_fields,
)
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsuleConv, Conv, MatrixCapsulesConfig, ModelConfig
from capsedge.models.registry import SMALLNORB

_STRIDES = (2, 1)  # of the convolutional capsule layers


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration.

    Raises:
        UsageError: an answer is missing, or the layers' sizes are not those of square windows.
    """
    size = size_of(family, sizes["E"], sizes["I"], answers, notes)
    kernels = [_kernel(sizes[m], sizes[b]) for m, b in (("M1", "B"), ("M2", "C"))]
    config = MatrixCapsulesConfig(
        class_names=classes_of(family, sizes["E"], size, sizes["I"], answers, notes),
        preprocessing=preprocessing_of(family, size, sizes["I"], answers, notes),
        stem=(Conv(sizes["A"], 5, 2, 2, batch_norm="R" in sizes, norm_epsilon=1e-3),),
        primary_types=sizes["B"],
        capsule_layers=tuple(
            CapsuleConv(sizes[t], k, s) for t, k, s in zip("CD", kernels, _STRIDES, strict=True)
        ),
        iterations=sums_of(family, answers, notes),
        task=answers.task or "single-label",
        pose_side=sizes["S"],
        inverse_temperature=1e-3,
        schedule="constant",
        epsilon=1e-8,
        coordinates="corners",
        normalized_activations=True,
    )
    return with_fields(config, {**variant_of(family, answers, notes), **answers.fields})


def _kernel(children: int, types: int) -> int:
    side = math.isqrt(children // types)
    if side * side * types != children:
        raise UsageError(
            f"A window of {children} children of {types} types is not square.",
            "",
            "Export the author's module instead: capsedge export --module (docs/how-to/your-model.md).",
        )
    return side


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; a routing weight is ``[1, K K B, C, S, S]`` there."""
    assert isinstance(config, MatrixCapsulesConfig)
    made: Tensors = {
        **layer(found, "conv1", "stem.0"),
        **renamed(found, "bn1.", "stem.1."),
        **layer(found, "primary_caps.pose", "primary_pose.conv"),
        **layer(found, "primary_caps.a", "primary_activation.conv"),
    }
    kernels = [c.kernel for c in config.capsule_layers] + [1]
    for theirs, ours, kernel in zip(
        ("conv_caps1", "conv_caps2", "class_caps"),
        ("capsules.0", "capsules.1", "classes"),
        kernels,
        strict=True,
    ):
        weight = found[f"{theirs}.weights"][0]
        made[f"{ours}.weight"] = weight.reshape(kernel, kernel, -1, *weight.shape[1:])
        for beta in ("beta_u", "beta_a"):
            made[f"{ours}.{beta}"] = found[f"{theirs}.{beta}"]
    return made


FAMILY = Family(
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
    configure=configure,
    convert=convert,
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
