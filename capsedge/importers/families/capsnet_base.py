"""Share code between the families of Sabour's CapsNet in PyTorch.

Letters: C, A, K: channels, input channels and kernel of the first convolution; T, D, P: types, elements and
kernel of the primary capsules; I children, J classes, O elements of a class capsule; H1, H2, X: the decoder.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from capsedge.errors import UsageError
from capsedge.importers.family import (
    DataSet,
    Family,
    Floats,
    ImportChoices,
    Sizes,
    Tensors,
    data_set_of,
    image_size_question,
    images_and_classes,
    variant_of,
    weighted_sums_of,
    with_fields,
)
from capsedge.models.configs import CapsNetConfig, Conv, EfficientCapsNetConfig
from capsedge.models.registry import CIFAR10, DIGITS

MNIST = DataSet("MNIST", 1, 28, DIGITS)
MNIST_NORMALIZED = dataclasses.replace(MNIST, mean=(0.1307,), std=(0.3081,))
CIFAR_NORMALIZED = DataSet("CIFAR-10", 3, 32, CIFAR10, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
STRIDE = 2  # stride of the primary convolution in all of them
SEQUENTIAL = ("decoder.0", "decoder.2", "decoder.4")  # the decoder's layers, with a ReLU after each
NO_EPSILON = 1e-16
NAN = "its squash divides by the norm without an epsilon: a zero vector is NaN there and zero here"
BATCH = (
    "agreements are averaged over the batch, so that an image's result depends on the others; here "
    "it is the author's result at batch 1, and the batch of the export is fixed at 1"
)


def configure(
    family: Family,
    sizes: Sizes,
    choices: ImportChoices,
    notes: list[str],
    **dialect: object,
) -> CapsNetConfig:
    """The configuration of a network with these sizes and the dialect's fields."""
    fields = {**dialect, **variant_of(family, choices, notes), **choices.fields}
    size = _size(family, sizes, choices, notes)
    channels = sizes["A"]
    decoder = tuple(sizes[h] for h in ("H1", "H2") if h in sizes)
    config = CapsNetConfig(
        **images_and_classes(family, sizes["J"], channels, choices, notes, size),
        stem=(Conv(sizes["C"], sizes["K"]),),
        primary_types=_types(sizes),
        primary_dim=sizes["D"],
        primary_kernel=sizes["P"],
        primary_stride=STRIDE,
        capsule_dim=sizes["O"],
        iterations=weighted_sums_of(family, choices, notes),
        class_bias=False,
        decoder=decoder if "X" in sizes else (),
        task=choices.task or "single-label",
        epsilon=NO_EPSILON,
    )
    changed = with_fields(config, fields)
    assert isinstance(changed, CapsNetConfig)
    return changed


def _types(sizes: Sizes) -> int:
    """Types of primary capsules: N / D if a single convolution with N channels makes them all."""
    return sizes["T"] if "T" in sizes else sizes["N"] // sizes["D"]


def _size(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> tuple[int, int]:
    """Height and width of the input: chosen, the decoder's, the author's, or the only possible ones."""
    places = sizes["I"] // _types(sizes)
    if choices.size is not None:
        if math.prod(_grid(n, sizes) for n in choices.size) != places:
            raise UsageError(
                f"The network does not take images of {choices.size[0]}x{choices.size[1]} pixels.",
                f"It has {sizes['I']:,} primary capsules of {_types(sizes)} types: {places} positions.",
                "Leave out the size, or use that of the training images.",
                command="Leave out --size, or set it to the HEIGHTxWIDTH of the training images.",
            )
        return choices.size
    side = math.isqrt(places)
    least = STRIDE * (side - 1) + sizes["P"] + sizes["K"] - 1
    possible = [n for n in range(least, least + STRIDE) if side * side == places]
    decoded = sizes["X"] / sizes["A"] if "X" in sizes else None
    if decoded is not None:
        possible = [n for n in possible if n * n == decoded]
    own = [n for n in possible if data_set_of(family, (n, n), sizes["A"])]
    if len(possible) != 1 and len(own) == 1:
        notes.append(
            f"images of {own[0]}x{own[0]} pixels, as in the author's code (change with --size)"
        )
        possible = own
    if len(possible) != 1:
        several = " or ".join(f"{n}x{n}" for n in possible) or "not square"
        raise image_size_question(
            f"The file leaves it open: {several}, with {places} positions of primary capsules.",
            next((n for n in possible if n not in own), None),
        )
    return possible[0], possible[0]


def _grid(n: int, sizes: Sizes) -> int:
    """Positions of primary capsules along a side of n pixels."""
    return max((n - sizes["K"] + 1 - sizes["P"]) // STRIDE + 1, 0)


def layer(weights: Mapping[str, Floats], theirs: str, ours: str) -> Tensors:
    """Weight and bias of a layer under another name."""
    return {f"{ours}.{part}": weights[f"{theirs}.{part}"] for part in ("weight", "bias")}


def with_renamed_prefix(weights: Mapping[str, Floats], theirs: str, ours: str) -> Tensors:
    """All tensors of a prefix, under another prefix."""
    return {ours + k.removeprefix(theirs): v for k, v in weights.items() if k.startswith(theirs)}


def decoder_tensors(
    weights: Mapping[str, Floats],
    names: Sequence[str],
    config: CapsNetConfig | EfficientCapsNetConfig,
) -> Tensors:
    """The decoder's three layers.

    If it takes the capsule of one class, instead of all capsules with the others set to zero, its first
    weight is repeated for every class, so the sum has the same terms.
    """
    if not config.decoder:
        return {}
    layers = [layer(weights, name, f"decoder.{2 * k}") for k, name in enumerate(names)]
    tensors = {key: value for one in layers for key, value in one.items()}
    first = tensors["decoder.0.weight"]
    if first.shape[1] == config.capsule_dim and config.classes > 1:
        tensors["decoder.0.weight"] = np.tile(first, (1, config.classes))
    return tensors


def decoder_keys(names: Sequence[str], takes: str = "M") -> dict[str, str]:
    """The keys of the decoder's three layers.

    Args:
        names: names of the layers.
        takes: the size of its input: the pose of one class, of all (``JO``), or either (``M``).
    """
    sizes = (takes, "H1", "H2", "X")
    patterns: dict[str, str] = {}
    for name, (before, after) in zip(names, pairwise(sizes), strict=True):
        patterns |= {f"{name}.weight": f"{after} {before}", f"{name}.bias": after}
    return patterns


def joined(weights: Mapping[str, Floats], names: str, count: int, dims_apart: bool) -> Tensors:
    """One primary convolution made from several, with or without a bias.

    Args:
        names: their names, with ``{}`` for the number.
        dims_apart: whether each makes one element of all types, so types and elements must be swapped;
            otherwise their channels are concatenated.
    """
    tensors = {}
    for part in ("weight", "bias"):
        if f"{names.format(0)}.{part}" not in weights:
            continue
        stacked = np.stack([weights[f"{names.format(k)}.{part}"] for k in range(count)])
        ordered = stacked.swapaxes(0, 1) if dims_apart else stacked
        tensors[f"primary.conv.{part}"] = ordered.reshape(-1, *stacked.shape[2:])
    return tensors


def positions_first(weight: Floats, types: int) -> Floats:
    """Children ``[I, ...]`` reordered from types first to this package's order, positions first."""
    places = weight.shape[0] // types
    apart = weight.reshape(types, places, *weight.shape[1:])
    return apart.swapaxes(0, 1).reshape(weight.shape)
