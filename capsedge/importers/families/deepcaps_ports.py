"""DeepCaps: the authors' (brjathu, Keras) and its ports to PyTorch (HopefulRational, Ugenteraan).

Letters: A input channels, C channels of the stem; T types, N0 to N3 elements of a pose in each cell (T0 to T3
channels: types times elements), V elements that votes are made of; I children, J classes, O elements of a
class capsule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from capsedge.importers.families.capsnet_base import NAN, NO_EPSILON
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
from capsedge.models.configs import Conv, DeepCapsConfig, ModelConfig

_CELLS = range(4)
_NORM = ("weight", "bias", "running_mean", "running_var")
# Each cell has a convolution that halves the map, a skip connection, and two convolutions.
_CONVOLUTIONS = ("first", "skip", "rest.0", "rest.1")


def _configure(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str], **dialect: Any
) -> ModelConfig:
    """The configuration; ``dialect`` are its fields. Raises UsageError if a choice is missing."""
    if not choices.pixels.keys() & {"scale", "mean", "std", "per_image"}:
        notes.append(
            "pixels from 0 to 1, as in the author's code (change with --range, --mean, --std)"
        )
        choices = replace(choices, preprocessing={**choices.preprocessing, "scale": 1 / 255})
    notes.append("the decoder is left out, because it has convolutions")
    config = DeepCapsConfig(
        **images_and_classes(family, sizes["J"], sizes["A"], choices, notes),
        capsule_dim=sizes["O"],
        iterations=weighted_sums_of(family, choices, notes),
        task=choices.task or "single-label",
        **dialect,
    )
    return with_fields(config, {**variant_of(family, choices, notes), **choices.fields})


def _with_decoder(patterns: Patterns) -> Callable[[Shapes], Patterns]:
    """The patterns, plus any tensors of a decoder, which is left out."""

    def of(shapes: Shapes) -> Patterns:
        decoder = {k: s for k, s in shapes.items() if k.startswith("decoder")}
        return {**patterns, **{k: " ".join(map(str, s)) for k, s in decoder.items()}}

    return of


# --- PyTorch ---

_HOPEFUL = {
    "stem": ("conv2d", "batchNorm"),
    "classes": ("digCaps.W", "digCaps.bias"),
    "routed": "conv3dCaps4_nj_8.conv1",
}
_UGEN = {
    "stem": ("conv1", "bn1"),
    "classes": ("fc_caps.W", "fc_caps.b"),
    "routed": "conv3dcaps_31.conv_3d",
}


def _hopeful_name(cell: int, at: int) -> str:
    if cell == 3 and at == 1:
        return str(_HOPEFUL["routed"])
    number = at - (cell == 3 and at > 1)
    stride = "strd_2" if at == 0 else f"strd_1_{number}"
    return f"conv2dCaps{cell + 1}_nj_{4 if cell == 0 else 8}_{stride}.conv1"


def _ugen_name(cell: int, at: int) -> str:
    return str(_UGEN["routed"]) if (cell, at) == (3, 1) else f"conv2dcaps_{cell}{at}.conv"


Names = Callable[[int, int], str]


def _torch_keys(around: Mapping[str, Any], name: Names) -> Patterns:
    conv, norm = around["stem"]
    weight, bias = around["classes"]
    patterns = {f"{conv}.weight": "C A 3 3", f"{conv}.bias": "C"}
    patterns |= {f"{norm}.{part}": "C" for part in _NORM}
    for cell in _CELLS:
        for at in range(4):
            before = f"T{cell}" if at else ("C" if cell == 0 else f"T{cell - 1}")
            patterns[f"{name(cell, at)}.weight"] = f"T{cell} {before} 3 3"
            patterns[f"{name(cell, at)}.bias"] = f"T{cell}"
    patterns[f"{name(3, 1)}.weight"] = "T3 1 3 3 3"
    return {**patterns, weight: "1 I J O D", bias: "1 1 J O"}


def _configure_torch(
    **dialect: Any,
) -> Callable[[Family, Sizes, ImportChoices, list[str]], ModelConfig]:
    def configure(
        family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
    ) -> ModelConfig:
        """The configuration."""
        types = sizes["T3"] // sizes["D"]
        stem = Conv(sizes["C"], 3, 1, 1, batch_norm=True, norm_epsilon=1e-8, activation="linear")
        return _configure(
            family, sizes, choices, notes, stem=(stem,), primary_types=types,
            dims=tuple(sizes[f"T{k}"] // types for k in _CELLS), padding=1, vote_bias=True,
            vote_elements=3, **dialect,
        )  # fmt: skip

    return configure


def _convert_torch(
    around: Mapping[str, Any], name: Names
) -> Callable[[Mapping[str, Floats], ModelConfig], Tensors]:
    def convert(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
        """The package's tensors; in the file, votes are a convolution ``[T P, 1, V, 3, 3]``."""
        conv, norm = around["stem"]
        weight, bias = around["classes"]
        tensors = {f"stem.0.{part}": weights[f"{conv}.{part}"] for part in ("weight", "bias")}
        tensors |= {f"stem.1.{part}": weights[f"{norm}.{part}"] for part in _NORM}
        for cell in _CELLS:
            for at, ours in enumerate(_CONVOLUTIONS):
                theirs = name(cell, at)
                kernel = weights[f"{theirs}.weight"]
                place = f"cells.{cell}.{ours}.conv"
                tensors[f"{place}.weight"] = kernel[:, 0] if kernel.ndim == 5 else kernel
                tensors[f"{place}.bias"] = weights[f"{theirs}.bias"]
        return {**tensors, "weight": weights[weight][0], "bias": weights[bias][0, 0]}

    return convert


_OF_PORTS = (
    "the stem has no ReLU",
    "votes are made of the first three elements of a pose",
    "routing in the last cell has no bias; the convolutions have one",
)
HOPEFULRATIONAL = Family(
    name="hopefulrational",
    source="github.com/HopefulRational/DeepCaps-PyTorch, deepcaps.py",
    licence="",
    dialect="DeepCaps; the routed cell squashes elements one by one",
    differences=(*_OF_PORTS, "the routed cell squashes single elements"),
    keys=_with_decoder(_torch_keys(_HOPEFUL, _hopeful_name)),
    configure=_configure_torch(
        routed_squash="elements", epsilon=NO_EPSILON, routing_epsilon=NO_EPSILON
    ),
    convert=_convert_torch(_HOPEFUL, _hopeful_name),
    iterations=3,
    iterations_at="routing_iters of the layer digCaps in deepcaps.py",
)
UGENTERAAN = Family(
    name="ugenteraan",
    source="github.com/Ugenteraan/DeepCaps, model.py",
    licence="MIT",
    dialect="DeepCaps; the routed cell squashes poses, the class capsules have their bias in the last "
    "iteration alone",
    differences=(
        *_OF_PORTS,
        "the stem's channels are squashed one by one",
        "the routed cell squashes the pose at each position",
        "the class capsules' bias is added in the last iteration only",
    ),
    keys=_with_decoder(_torch_keys(_UGEN, _ugen_name)),
    configure=_configure_torch(
        routed_squash="pose", squashed_stem=True, last_bias=True, epsilon=1e-8, routing_epsilon=1e-8
    ),
    convert=_convert_torch(_UGEN, _ugen_name),
    iterations=3,
    iterations_at="routing_iter of the layer fc_caps in model.py",
)


# --- Keras ---

_KERAS_NORM = dict(zip(_NORM, ("gamma", "beta", "moving_mean", "moving_variance"), strict=True))
_ROUTED = "conv_capsule_layer3d_0"


def _keras_name(cell: int, at: int) -> str:
    number = 4 * cell + at - (cell == 3 and at > 1)
    return f"conv2d_caps_{number}"


def _keras_keys() -> Patterns:
    patterns = {"conv2d_0/kernel": "3 3 A C", "conv2d_0/bias": "C"}
    patterns |= {f"batch_normalization_0/{part}": "C" for part in _KERAS_NORM.values()}
    for cell in _CELLS:
        for at in range(4):
            before = f"T N{cell}" if at else ("C 1" if cell == 0 else f"T N{cell - 1}")
            if (cell, at) != (3, 1):
                patterns[f"{_keras_name(cell, at)}/kernel"] = f"3 3 {before} T N{cell}"
    return {
        **patterns,
        f"{_ROUTED}/W": "N3 3 3 1 T3",
        f"{_ROUTED}/b": "T N3 1 1",
        "digit_caps/W": "J I O N3",
        "digit_caps/B": "J O",
    }


def configure_keras(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The configuration of DeepCaps for the weights of its authors' Keras code."""
    stem = Conv(sizes["C"], 3, 1, "same", batch_norm=True, norm_epsilon=1e-3, norm_last=True)
    return _configure(
        family, sizes, choices, notes, stem=(stem,), primary_types=sizes["T"],
        dims=tuple(sizes[f"N{k}"] for k in _CELLS), vote_layout="mixed", epsilon=1e-7,
        routing_epsilon=NO_EPSILON, length_offset=1e-7,
    )  # fmt: skip


def convert_keras(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """Convert the tensors of the authors' DeepCaps in Keras to the package's.

    In the file, kernels are ``[3, 3, C, P, C', P']``, those of votes ``[P, 3, 3, 1, T P]``, and the last
    cell's children come before the third's.
    """
    assert isinstance(config, DeepCapsConfig)
    tensors: Tensors = {
        "stem.0.weight": weights["conv2d_0/kernel"].transpose(3, 2, 0, 1),
        "stem.0.bias": weights["conv2d_0/bias"],
    }
    tensors |= {
        f"stem.2.{a}": weights[f"batch_normalization_0/{b}"] for a, b in _KERAS_NORM.items()
    }
    for cell in _CELLS:
        for at, ours in enumerate(_CONVOLUTIONS):
            if (cell, at) != (3, 1):
                kernel = weights[f"{_keras_name(cell, at)}/kernel"]
                flat = kernel.reshape(3, 3, kernel.shape[2] * kernel.shape[3], -1)
                tensors[f"cells.{cell}.{ours}.conv.weight"] = flat.transpose(3, 2, 0, 1)
    tensors["cells.3.skip.conv.weight"] = weights[f"{_ROUTED}/W"][..., 0, :].transpose(3, 0, 1, 2)
    tensors["cells.3.skip.bias"] = weights[f"{_ROUTED}/b"][..., 0, 0]
    weight = weights["digit_caps/W"].swapaxes(0, 1)
    size = config.preprocessing.shape[1:]
    places = [-(-size[0] // n) * -(-size[1] // n) for n in (8, 16)]  # of the third and last cell
    last = places[1] * config.primary_types
    tensors["weight"] = np.concatenate([weight[last:], weight[:last]])
    tensors["bias"] = weights["digit_caps/B"]
    return tensors


_MIXED = "votes are made of a map [H, W, C, P] that is read as [C, P, H, W]"
KERAS = Family(
    name="brjathu",
    source="github.com/brjathu/deepcaps, capslayers.py and deepcaps.py",
    licence="MIT",
    dialect="DeepCaps; votes of a map whose elements and positions are mixed up",
    differences=(
        _MIXED,
        "the routed cell squashes the elements and positions of a type together",
        "lengths are those of the pose plus 1e-7",
        NAN,
    ),
    keys=_with_decoder(_keras_keys()),
    counted=r"(?P<name>conv2d_caps|conv2d|batch_normalization|conv_capsule_layer3d)"
    r"(_(?P<number>\d+))?(?=/)",
    configure=configure_keras,
    convert=convert_keras,
    iterations_at="routings in train.py (3)",
    variants=(
        Variant(
            "2019-11",
            "the routed cell's softmax is over types and positions, its squash over elements and positions: "
            "since 25 November 2019",
            {},
        ),
        Variant(
            "2019-08",
            "its softmax is over types and positions, its squash over each row: from August 2019 on",
            {"routed_squash": "rows"},
        ),
        Variant(
            "2019-03",
            "its softmax is over types, its squash over each row: before 6 August 2019",
            {"routed_squash": "rows", "routed_softmax": "types"},
        ),
    ),
    variant_at="It is in update_routing of the author's capslayers.py: softmax of logits or of logit_temp, "
    "_squash or squash; or let --data FOLDER decide.",
)
