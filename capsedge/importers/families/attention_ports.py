"""Import capsules with inverted dot-product attention: Apple's release, and its first author's.

Both have the same keys but different patches: Apple's code stacks them and reads the stack with axes in
    another order. Letters: C0 types of the primary capsules, C1, C2 ... of the layers after them; K1, K2 ...
        their windows; F1, F2 ... children of fully connected layers; D, S elements and side of a pose.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from itertools import product

from capsedge.errors import UsageError
from capsedge.importers.families.capsnet_base import layer, with_renamed_prefix
from capsedge.importers.family import (
    DataSet,
    Family,
    Floats,
    ImportChoices,
    Sizes,
    Tensors,
    Variant,
    images_and_classes,
    size_of,
    variant_of,
    weighted_sums_of,
    with_fields,
)
from capsedge.importers.key_patterns import Patterns, Shapes
from capsedge.models.configs import AttentionCapsulesConfig, CapsuleConv, Conv, ModelConfig, ResNet
from capsedge.models.registry import CIFAR10, CIFAR100

_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_WEIGHT = re.compile(r"capsule_layers\.(\d+)\.w")
_RESNET = "U"  # blocks of the first stage, if the backbone has residual blocks


def keys(shapes: Shapes) -> Patterns:
    """The tensors of a network with as many capsule layers and residual blocks as the file has."""
    matrix = math.isqrt(next(iter(shapes.get("nonlinear_act.weight", (0,))), 0))
    patterns = {
        "pc_layer.weight": "CD X P P",
        "nonlinear_act.weight": "D",
        "nonlinear_act.bias": "D",
        "final_fc.weight": "1 D",
        "final_fc.bias": "1",
        **_stem(shapes),
    }
    count = max([0, *(int(m[1]) + 1 for k in shapes if (m := _WEIGHT.fullmatch(k)))])
    for k in range(max(count, 1)):
        name = f"capsule_layers.{k}"
        shape = shapes.get(f"{name}.w", ())
        # A matrix pose multiplies [S, S, parents], a vector pose [D, parents, D].
        matrices = len(shape) in (4, 6) and matrix * matrix > 1 and shape[-3] == shape[-2] == matrix
        pose = f"S S C{k + 1}" if matrices else f"D C{k + 1} D"
        children = f"K{k} K{k} C{k}" if len(shape) == 6 else f"F{k}"
        patterns[f"{name}.w"] = f"{children} {pose}"
        for part in ("weight", "bias"):
            patterns[f"{name}.nonlinear_act.{part}"] = "D"
    return patterns


def _stem(shapes: Shapes) -> Patterns:
    """The backbone: one convolution with a bias, or residual blocks."""
    first = "pre_caps.pre_caps.0"
    if f"{first}.bias" in shapes or "pre_caps.pre_caps.1.weight" not in shapes:
        return {f"{first}.weight": "X A B B", f"{first}.bias": "X"}
    patterns = {f"{first}.weight": "R A 3 3", **_norm("pre_caps.pre_caps.1", "R")}
    for stage, width, before, count in (3, "R", "R", "U"), (4, "X", "R", "V"):
        blocks = f"pre_caps.pre_caps.{stage}.{{{count}}}"
        patterns |= {f"{blocks}.conv2.weight": f"{width} {width} 3 3"}
        patterns |= {**_norm(f"{blocks}.bn1", width), **_norm(f"{blocks}.bn2", width)}
        name = f"pre_caps.pre_caps.{stage}"
        for block in range(
            sum(k.endswith("conv1.weight") for k in shapes if k.startswith(f"{name}."))
        ):
            patterns[f"{name}.{block}.conv1.weight"] = (
                f"{width} {before if block == 0 else width} 3 3"
            )
        if f"{name}.0.shortcut.0.weight" in shapes:
            patterns[f"{name}.0.shortcut.0.weight"] = f"{width} {before} 1 1"
            patterns |= _norm(f"{name}.0.shortcut.1", width)
    return patterns


def _norm(name: str, size: str) -> Patterns:
    parts = ("weight", "bias", "running_mean", "running_var")
    return {f"{name}.{part}": size for part in parts}


def configure(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """Configure attention capsules. Raises UsageError if a choice is missing or the strides are open."""
    last = max(int(k[1:]) for k in sizes if re.fullmatch(r"C\d+", k))
    layers = [k for k in range(last) if f"K{k}" in sizes]
    dense = [sizes[f"C{k + 1}"] for k in range(len(layers), last - 1)]
    classes, channels = sizes[f"C{last}"], sizes["A"]
    size = size_of(family, classes, channels, choices, notes)
    stem, primary, *strides = _strides(size, sizes, layers, notes)
    config = AttentionCapsulesConfig(
        **images_and_classes(family, classes, channels, choices, notes, size),
        stem=_stem_config(sizes, stem),
        primary_types=sizes["CD"] // sizes["D"],
        primary_kernel=sizes["P"],
        primary_stride=primary,
        capsule_layers=tuple(
            CapsuleConv(sizes[f"C{k + 1}"], sizes[f"K{k}"], s)
            for k, s in zip(layers, strides, strict=True)
        ),
        dense_layers=tuple(dense),
        pose_dim=sizes["D"],
        matrix_pose="S" in sizes,
        iterations=weighted_sums_of(family, choices, notes),
        task=choices.task or "single-label",
        patches="elements" if family is APPLE else "windows",
    )
    return with_fields(config, {**variant_of(family, choices, notes), **choices.fields})


def _stem_config(sizes: Sizes, stride: int) -> tuple[Conv, ...] | ResNet:
    if _RESNET in sizes:
        return ResNet(((sizes["R"], sizes["U"], 1), (sizes["X"], sizes["V"], stride)))
    return (Conv(sizes["X"], sizes["B"], stride, sizes["B"] // 2),)


def _strides(
    size: tuple[int, int], sizes: Sizes, layers: list[int], notes: list[str]
) -> tuple[int, ...]:
    """Strides of the backbone, the primary capsules and the convolutional capsule layers.

    The file does not store them. Those of the authors' configurations are used if they lead to the number of
    positions of the first fully connected layer, otherwise the only strides that do.
    """
    kernels = [sizes["P"], *(sizes[f"K{k}"] for k in layers)]
    dense = min(int(k[1:]) for k in sizes if re.fullmatch(r"F\d+", k))
    places = sizes[f"F{dense}"] / sizes.get(f"C{dense}", sizes["CD"] // sizes["D"])
    usual = (2, 1, *(2 if k == 0 else 1 for k in range(len(layers))))
    fitting = []
    for strides in product((1, 2), repeat=2 + len(layers)):
        grid = [-(-n // strides[0]) for n in size]
        for kernel, stride in zip(kernels, strides[1:], strict=True):
            grid = [(n - kernel) // stride + 1 for n in grid]
        if min(grid) > 0 and math.prod(grid) == places:
            fitting.append(strides)
    if usual in fitting or len(fitting) == 1:
        taken = usual if usual in fitting else fitting[0]
        notes.append(
            f"strides {', '.join(map(str, taken))}: backbone, primary capsules, capsule layers"
        )
        return taken
    raise UsageError(
        f"The network's strides cannot be determined for images of {size[0]}x{size[1]} pixels.",
        f"{len(fitting)} choices lead to the {places:g} positions of its first fully connected layer.",
        "Add --size with the HEIGHTxWIDTH of the training images, or export the author's module: "
        "capsedge export --module (docs/how-to/your-model.md).",
    )


def convert(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; in the file, children of a fully connected layer are ordered by type first."""
    assert isinstance(config, AttentionCapsulesConfig)
    tensors: Tensors = {
        "primary.conv.weight": weights["pc_layer.weight"],
        **with_renamed_prefix(weights, "nonlinear_act.", "norm."),
        **layer(weights, "final_fc", "classifier"),
        **dict(_stem_tensors(weights)),
    }
    types, depth = config.primary_types, len(config.capsule_layers) + len(config.dense_layers) + 1
    for k in range(depth):
        weight = weights[f"capsule_layers.{k}.w"]
        if weight.ndim in (3, 4) and k >= len(config.capsule_layers):
            side = math.isqrt(weight.shape[0] // types)
            places = (types, side, weight.shape[0] // types // side)
            weight = weight.reshape(*places, *weight.shape[1:]).transpose(1, 2, 0, 3, 4, 5)
        order = (0, 1, 2, 5, 3, 4) if config.matrix_pose else (0, 1, 2, 4, 3, 5)
        tensors[f"capsules.{k}.weight"] = weight.transpose(order)
        tensors[f"capsules.{k}.scale"] = weights[f"capsule_layers.{k}.nonlinear_act.weight"]
        tensors[f"capsules.{k}.bias"] = weights[f"capsule_layers.{k}.nonlinear_act.bias"]
        types = weight.shape[5] if config.matrix_pose else weight.shape[4]
    return tensors


def _stem_tensors(weights: Mapping[str, Floats]) -> Iterator[tuple[str, Floats]]:
    """The backbone's tensors; in this package, its residual blocks are numbered through, without stages."""
    first = sum(
        bool(re.fullmatch(r"pre_caps\.pre_caps\.3\.\d+\.conv1\.weight", k)) for k in weights
    )
    for key, tensor in weights.items():
        if not key.startswith("pre_caps.pre_caps."):
            continue
        name = key.removeprefix("pre_caps.pre_caps.")
        if m := re.fullmatch(r"([34])\.(\d+)\.(.*)", name):
            part = m[3]
            for theirs, ours in ("conv1", 0), ("bn1", 1), ("conv2", 3), ("bn2", 4):
                part = re.sub(rf"^{theirs}\.", f"body.{ours}.", part)
            name = f"{3 + int(m[2]) + (first if m[1] == '4' else 0)}.{part}"
        yield f"stem.{name}", tensor


_VARIANTS = (
    Variant("concurrent", "all capsule layers route at once, as without --sequential_routing", {}),
    Variant("sequential", "one capsule layer after the other", {"concurrent": False}),
)
_AT = "the option --num_routing of main_capsule.py (1 by default, 2 in its README)"
_DATA_SETS = (
    DataSet("CIFAR-10", 3, 32, CIFAR10, _MEAN, _STD),
    DataSet("CIFAR-100", 3, 32, CIFAR100, _MEAN, _STD),
)
APPLE = Family(
    name="apple",
    source="github.com/apple/ml-capsules-inverted-attention-routing, src/layers.py; also yaohungt's "
    "repository before 14 February 2020",
    licence="Apple's own (LICENSE in the repository)",
    dialect="attention routing over patches whose elements and positions are mixed up",
    differences=(
        "patches [d, h w] at each position of the kernel are read as [h w, d]: elements and positions mix",
    ),
    keys=keys,
    configure=configure,
    convert=convert,
    iterations_at=_AT,
    data_sets=_DATA_SETS,
    variants=_VARIANTS,
    variant="concurrent",
)
YAOHUNGT = dataclasses.replace(
    APPLE,
    name="yaohungt",
    source="github.com/yaohungt/Capsules-Inverted-Attention-Routing, src/layers.py since 14 February 2020",
    dialect="attention routing as in the paper",
    differences=(),
)
