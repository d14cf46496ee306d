"""Capsules after deep stems with attention: FixCaps and HR-SEMobileCapsNet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from capsedge.importers.families import capsnet_base
from capsedge.importers.families.capsnet_ports import TIMOMERNICK
from capsedge.importers.family import (
    DataSet,
    Family,
    Floats,
    ImportChoices,
    Sizes,
    Tensors,
    images_and_classes,
    weighted_sums_of,
    with_fields,
)
from capsedge.importers.key_patterns import Patterns, Shapes
from capsedge.models.configs import CapsNetConfig, Conv, ModelConfig

# FixCaps of Woodman718: a large convolution, fractional max pooling, attention, routing over the classes.
#
# Letters: C channels of the stem; M hidden ones of the attention, L its kernel, R its running statistics;
# T, D, P types, elements and kernel of the primary capsules, G input channels of each type, U their bias; I
# children, J classes, O elements of a class capsule. Of layer n of the stem: In, Cn, Kn input channels of a
# group, channels and kernel of a convolution, Bn its bias; Nn channels of a normalization, Rn its running
# statistics.

_POOLED = 20  # rows and columns after fractional pooling
WINDOWS = (
    "its fractional max pooling draws new windows at every call, at inference too, so that an image has many "
    "results; here they are always those of the fraction 5/16, and a comparison gives the author's code the "
    "same"
)
_STRIDE = 2
_UNITS = "primary.Caps_{}.Cpas.0"
_STATISTICS = ("running_mean", "running_var")
_CHANNEL_EPSILON = 1e-6
_HALF = (0.5, 0.5, 0.5)


def _fixcaps_keys(shapes: Shapes) -> Patterns:
    """The tensors of a network with the stem that the file has."""
    patterns: dict[str, str] = {}
    k = 0
    while (name := f"Convolution.{k}") and (k == 0 or f"{name}.weight" in shapes):
        if len(shapes.get(f"{name}.weight", (0,) * 4)) == 4:
            patterns[f"{name}.weight"] = f"C{k} I{k} K{k} K{k}"
            if f"{name}.bias" in shapes:
                patterns[f"{name}.bias"] = f"B{k}"
        else:
            patterns |= _norm(shapes, name, f"N{k}", f"R{k}")
        k += 1
    units = _UNITS.format("{D}")
    if f"{_UNITS.format(0)}.bias" in shapes:
        patterns[f"{units}.bias"] = "U"
    return patterns | {
        "CBAM.conv.weight": "C C 1 1",
        **_norm(shapes, "CBAM.bn", "C", "R"),
        "CBAM.ca.fc1.weight": "M C 1 1",
        "CBAM.ca.fc2.weight": "C M 1 1",
        "CBAM.sa.conv1.weight": "1 2 L L",
        f"{units}.weight": "T G P P",
        "digits.W": "1 I J O D",
    }


def _norm(shapes: Shapes, name: str, size: str, statistics: str) -> Patterns:
    """A normalization: of the batch, or, without running statistics, of each position's channels."""
    patterns = {f"{name}.{part}": size for part in ("weight", "bias")}
    if f"{name}.running_mean" in shapes:
        patterns |= {f"{name}.{part}": statistics for part in _STATISTICS}
    return patterns


def _configure_fixcaps(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The configuration. Raises UsageError if a choice is missing or does not fit the file."""
    # Among the data sets whose images have one size, the one with this number of classes.
    own = tuple(d for d in family.data_sets if len(d.classes) == sizes["J"])
    family = dataclasses.replace(family, data_sets=own)
    stem = _stem(sizes, notes)
    channels = sizes["I0"] * stem[0].groups
    config = CapsNetConfig(
        **images_and_classes(family, sizes["J"], channels, choices, notes),
        stem=stem,
        primary_types=sizes["T"],
        primary_dim=sizes["D"],
        primary_kernel=sizes["P"],
        primary_stride=_STRIDE,
        primary_groups=max(sizes["C"] // sizes["G"], 1),
        primary_bias="U" in sizes,
        capsule_dim=sizes["O"],
        iterations=weighted_sums_of(family, choices, notes),
        class_bias=False,
        task=choices.task or "single-label",
        epsilon=capsnet_base.NO_EPSILON,
        primary_squash="children",
        softmax="children",
        class_squash="parents",
        batch_average=True,
    )
    return with_fields(config, choices.fields)


def _stem(sizes: Sizes, notes: list[str]) -> tuple[Conv, ...]:
    """The stem's convolutions; the last one has a ReLU and pooling, and the attention comes after it."""
    # Only the code of May 2022, which has a bias everywhere, does not halve the map in 1x1 convolutions.
    early = "U" in sizes and "B0" in sizes
    layers: list[Conv] = []
    k = 0
    while f"C{k}" in sizes or f"N{k}" in sizes:
        if f"N{k}" in sizes:
            layers[-1] = _normalized(layers[-1], f"R{k}" in sizes)
        else:
            inputs, kernel = sizes[f"I{k}"], sizes[f"K{k}"]
            before = layers[-1].channels if layers else _channels(sizes)
            stride = 1 if early and kernel == 1 else _STRIDE
            conv = Conv(
                sizes[f"C{k}"], kernel, stride,
                bias=f"B{k}" in sizes, groups=max(before // inputs, 1), activation="linear",
            )  # fmt: skip
            layers.append(conv)
        k += 1
    if any(conv.kernel == 1 for conv in layers):
        notes.append(
            f"1x1 convolutions with stride {1 if early else _STRIDE}, inferred from the biases"
        )
    layers[-1] = dataclasses.replace(layers[-1], activation="relu", pooled=_POOLED)
    attention = Conv(
        sizes["C"], 1, bias=False, activation="hardswish",
        attention=sizes["M"], attention_kernel=sizes["L"],
    )  # fmt: skip
    return (*layers, _normalized(attention, "R" in sizes))


def _channels(sizes: Sizes) -> int:
    """Channels of the images; a first convolution with 1 to 3 input channels has three groups."""
    return 3 if (sizes["I0"], sizes["C0"]) == (1, 3) else sizes["I0"]


def _normalized(conv: Conv, statistics: bool) -> Conv:
    if statistics:
        return dataclasses.replace(conv, batch_norm=True)
    return dataclasses.replace(conv, channel_norm=True, norm_epsilon=_CHANNEL_EPSILON)


def _convert_fixcaps(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; the file orders children by type, and each unit makes one element."""
    assert isinstance(config, CapsNetConfig)
    assert isinstance(config.stem, tuple)
    places = _module_numbers(config.stem)
    tensors: Tensors = {}
    layers = sorted({int(key.split(".")[1]) for key in weights if key.startswith("Convolution.")})
    for k, place in zip(layers, places, strict=False):
        tensors |= capsnet_base.with_renamed_prefix(weights, f"Convolution.{k}.", f"stem.{place}.")
    conv, norm, block = places[-3:]
    return tensors | {
        f"stem.{conv}.weight": weights["CBAM.conv.weight"],
        **capsnet_base.with_renamed_prefix(weights, "CBAM.bn.", f"stem.{norm}."),
        f"stem.{block}.squeeze.weight": weights["CBAM.ca.fc1.weight"][:, :, 0, 0],
        f"stem.{block}.excite.weight": weights["CBAM.ca.fc2.weight"][:, :, 0, 0],
        f"stem.{block}.places.weight": weights["CBAM.sa.conv1.weight"],
        **capsnet_base.joined(weights, _UNITS, config.primary_dim, dims_apart=True),
        "classes.weight": capsnet_base.positions_first(
            weights["digits.W"][0], config.primary_types
        ),
    }


def _module_numbers(stem: tuple[Conv, ...]) -> list[int]:
    """Numbers of the modules with tensors in the package's stem; the last three belong to the attention."""
    numbers, place = [], 0
    for conv in stem:
        numbers.append(place)
        place += 1
        if conv.batch_norm or conv.channel_norm:
            numbers.append(place)
            place += 1
        place += conv.activation != "linear"
        if conv.attention:
            numbers.append(place)
        place += bool(conv.attention) + bool(conv.pooled)
    return numbers


FIXCAPS = Family(
    name="fixcaps",
    source="github.com/Woodman718/FixCaps, Module/*/model*.py",
    licence="MIT",
    dialect="dynamic routing; softmax over the children, squash over the classes; fractional pooling fixed",
    differences=(WINDOWS, *TIMOMERNICK.differences),
    keys=_fixcaps_keys,
    configure=_configure_fixcaps,
    convert=_convert_fixcaps,
    iterations=3,
    iterations_at="num_iterations in Digits_Caps.forward",
    data_sets=(
        DataSet(
            "HAM10000", 3, 299, ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"), _HALF, _HALF
        ),
        DataSet(
            "the COVID-19 Radiography Database", 3, 299,
            ("covid", "normal", "opacity", "viral"), _HALF, _HALF,
        ),
        DataSet(
            "NCT-CRC-HE-100K", 3, 224,
            ("ADI", "BACK", "DEB", "LYM", "MUC", "MUS", "NORM", "STR", "TUM"), _HALF, _HALF,
        ),
    ),
)  # fmt: skip


# HR-SEMobileCapsNet of Aakash67: convolutions with squeeze and excitation, routing as in the paper.
#
# Letters: A input channels; Cn, Hn channels and hidden units of the stem's layer n; N, P channels and kernel
# of the primary convolution; I children, J classes, O, D elements of a class capsule and of a child.

_HR_STRIDES = (1, 2, 2)  # strides of the stem
_HR_PRIMARY = {"primary_stride": 2, "primary_padding": 1}
_BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


def _hr_keys() -> Patterns:
    patterns: dict[str, str] = {}
    for k in range(len(_HR_STRIDES)):
        name, before = f"feature_extractor.layer{k + 1}", f"C{k - 1}" if k else "A"
        patterns |= {f"{name}.0.weight": f"C{k} {before} 3 3"}
        patterns |= {f"{name}.1.{part}": f"C{k}" for part in _BATCH_NORM}
        patterns |= {f"{name}.4.fc1.weight": f"H{k} C{k}", f"{name}.4.fc1.bias": f"H{k}"}
        patterns |= {f"{name}.4.fc2.weight": f"C{k} H{k}", f"{name}.4.fc2.bias": f"C{k}"}
    return patterns | {
        "primary_capsules.capsules.weight": "N C2 P P",
        "primary_capsules.capsules.bias": "N",
        "digit_capsules.W": "1 I J O D",
    }


def _configure_hr(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The configuration. Raises UsageError if a choice is missing or does not fit the file."""
    config = CapsNetConfig(
        **images_and_classes(family, sizes["J"], sizes["A"], choices, notes),
        stem=tuple(
            Conv(sizes[f"C{k}"], 3, s, 1, bias=False, batch_norm=True, squeeze=sizes[f"H{k}"])
            for k, s in enumerate(_HR_STRIDES)
        ),
        primary_types=max(sizes["N"] // sizes["D"], 1),
        primary_dim=sizes["D"],
        primary_kernel=sizes["P"],
        capsule_dim=sizes["O"],
        iterations=weighted_sums_of(family, choices, notes),
        class_bias=False,
        task=choices.task or "single-label",
        epsilon=capsnet_base.NO_EPSILON,
    )
    return with_fields(config, {**_HR_PRIMARY, **choices.fields})


def _convert_hr(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; in the file, children are ordered by type first."""
    assert isinstance(config, CapsNetConfig)
    tensors: Tensors = {}
    for k in range(len(_HR_STRIDES)):
        name, place = f"feature_extractor.layer{k + 1}", 4 * k  # here, each layer has four modules
        tensors[f"stem.{place}.weight"] = weights[f"{name}.0.weight"]
        tensors |= capsnet_base.with_renamed_prefix(weights, f"{name}.1.", f"stem.{place + 1}.")
        tensors |= capsnet_base.layer(weights, f"{name}.4.fc1", f"stem.{place + 3}.squeeze")
        tensors |= capsnet_base.layer(weights, f"{name}.4.fc2", f"stem.{place + 3}.excite")
    return {
        **tensors,
        **capsnet_base.layer(weights, "primary_capsules.capsules", "primary.conv"),
        "classes.weight": capsnet_base.positions_first(
            weights["digit_capsules.W"][0], config.primary_types
        ),
    }


HR_SEMOBILECAPSNET = Family(
    name="hr-semobilecapsnet",
    source="github.com/Aakash67/Lung-Cancer-Detection-with-HR-SEMobileCapsNet, cv_model/network.py",
    licence="",
    dialect="dynamic routing as in the paper; convolutions with squeeze and excitation before it",
    differences=("class capsules without bias", "1e-8 is added to the norm in the squash"),
    keys=_hr_keys(),
    configure=_configure_hr,
    convert=_convert_hr,
    iterations=3,
    iterations_at="routing_iters of DigitCapsules",
    data_sets=(DataSet("lung scans", 1, 128, ("benign", "malignant", "normal"), (0.5,), (0.5,)),),
)
