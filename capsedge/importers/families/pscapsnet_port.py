"""Import PSCapsNet of Hao Ren (leftthomas): residual blocks, shared weight, k-means routing.

Letters: A input channels; Cn channels and Xn blocks of the residual stage n (2 is the first); J classes, I
children, O, D elements of a class capsule and of a child.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from capsedge.importers.families.capsnet_base import with_renamed_prefix
from capsedge.importers.family import (
    Family,
    Floats,
    ImportChoices,
    Sizes,
    Tensors,
    Variant,
    images_and_classes,
    variant_of,
    weighted_sums_of,
    with_fields,
)
from capsedge.importers.key_patterns import Patterns, Shapes
from capsedge.models.configs import ModelConfig, PSCapsNetConfig, ResNet

_FIRST = 2  # number of the first residual stage
_POOLED = 4  # if each capsule has its own weight
_BLOCK = re.compile(r"features\.(\d+)\.(\d+)\.(.*)")
_PARTS = {
    "conv1": "body.0", "bn1": "body.1", "conv2": "body.3", "bn2": "body.4",
    "downsample.0": "shortcut.0", "downsample.1": "shortcut.1",
}  # fmt: skip


def keys(shapes: Shapes) -> Patterns:
    """The tensors of a network with as many residual blocks as the file has."""
    patterns = {"conv1.0.weight": "C1 A 3 3", **_norm("features.0", "C1")}
    blocks = {(int(m[1]), int(m[2])) for key in shapes if (m := _BLOCK.fullmatch(key))}
    for stage, block in sorted(blocks) or [(_FIRST, 0)]:
        name, width = f"features.{stage}.{block}", f"C{stage}"
        before = width if block else f"C{stage - 1}"
        patterns |= {f"{name}.conv1.weight": f"{width} {before} 3 3", **_norm(f"{name}.bn1", width)}
        patterns |= {f"{name}.conv2.weight": f"{width} {width} 3 3", **_norm(f"{name}.bn2", width)}
        if f"{name}.downsample.0.weight" in shapes:
            patterns[f"{name}.downsample.0.weight"] = f"{width} {before} 1 1"
            patterns |= _norm(f"{name}.downsample.1", width)
    # Counts the blocks of a stage.
    patterns |= {f"features.{s}.{{X{s}}}.conv2.weight": f"C{s} C{s} 3 3" for s, _ in blocks}
    own = len(shapes.get("classifier.weight", ())) == 4
    return patterns | {"classifier.weight": "J I O D" if own else "J O D"}


def _norm(name: str, size: str) -> Patterns:
    return {f"{name}.{part}": size for part in ("weight", "bias", "running_mean", "running_var")}


def configure(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """Configure PSCapsNet. Raises UsageError if a choice is missing or does not fit the file."""
    stages = sorted(int(k[1:]) for k in sizes if re.fullmatch(r"X\d+", k))
    if "I" in sizes:
        notes.append(f"the map is averaged to {_POOLED}x{_POOLED}, as with --capsule_type fc")
    config = PSCapsNetConfig(
        **images_and_classes(family, sizes["J"], sizes["A"], choices, notes),
        stem=ResNet(
            tuple((sizes[f"C{s}"], sizes[f"X{s}"], 1 if s == _FIRST else 2) for s in stages)
        ),
        primary_dim=sizes["D"],
        capsule_dim=sizes["O"],
        shared="I" not in sizes,
        pooled=_POOLED if "I" in sizes else 0,
        iterations=weighted_sums_of(family, choices, notes),
        task=choices.task or "single-label",
    )
    return with_fields(config, {**variant_of(family, choices, notes), **choices.fields})


def convert(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; residual blocks are numbered through; the file has a weight ``[J, I, O, D]``."""
    assert isinstance(config, PSCapsNetConfig)
    weight = weights["classifier.weight"]
    tensors: Tensors = {
        "weight": weight[None] if weight.ndim == 3 else weight.swapaxes(0, 1),
        "stem.0.weight": weights["conv1.0.weight"],
        **with_renamed_prefix(weights, "features.0.", "stem.1."),
    }
    blocks = {(int(m[1]), int(m[2])) for key in weights if (m := _BLOCK.fullmatch(key))}
    for place, (stage, block) in enumerate(sorted(blocks)):
        for theirs, ours in _PARTS.items():
            name = f"features.{stage}.{block}.{theirs}."
            tensors |= with_renamed_prefix(weights, name, f"stem.{place + 3}.{ours}.")
    return tensors


FAMILY = Family(
    name="pscapsnet",
    source="github.com/leftthomas/PSCapsNet, model.py; CapsuleLinear of github.com/leftthomas/CapsuleLayer, "
    "of 2018",
    licence="PSCapsNet: not stated; CapsuleLayer: MIT",
    dialect="k-means or dynamic routing; residual blocks, one weight for all children",
    differences=(
        "children are channels of the last residual block, neither convolved nor squashed",
        "all children share one weight, unless trained with --capsule_type fc",
        "k-means routing: the logits are each time the products of votes and normalized sum",
        "the class capsules are squashed; CapsuleLayer does not do so by default since August 2019, with the "
        "same keys: only a comparison with the author's module (--reference-code) shows it",
    ),
    keys=keys,
    configure=configure,
    convert=convert,
    iterations_at="the option --num_iterations of main.py (3 by default)",
    variants=(
        Variant(
            "k-means", "k-means routing, n iterations after a uniform sum", {"update": "k-means"}
        ),
        Variant("dynamic", "dynamic routing as in the paper", {"update": "agreement"}),
    ),
    variant_at="It is the option --routing_type of main.py (k_means by default).",
)
