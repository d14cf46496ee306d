"""Efficient-CapsNet: the authors' (EscVM, Keras) and its port to PyTorch (akhdanfadh).

Letters: A input channels, C0 to C3 and K0 to K3 channels and kernels of the stem; P kernel of the primary
capsules, I and D their number and elements, J classes, O elements of a class capsule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from capsedge.errors import UsageError
from capsedge.importers.families.capsnet_base import (
    MNIST,
    decoder_keys,
    decoder_tensors,
    layer,
    with_renamed_prefix,
)
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
from capsedge.importers.key_patterns import Patterns
from capsedge.models.configs import Conv, EfficientCapsNetConfig, ModelConfig
from capsedge.models.registry import DIGITS

# Strides of the stem and of the primary capsules, and the side of the images, by the kernels of the first
# layer and of the primary capsules.
_DESIGNS = {
    (5, 9): ((1, 1, 1, 2, 1), 28),
    (5, 5): ((1, 1, 2, 2, 2), 36),
    (7, 8): ((2, 1, 1, 2, 1), 48),
}
_ONE_PASS = "the network routes in one pass"


def _configure(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str], conv: Conv
) -> ModelConfig:
    """The configuration; ``conv`` states what follows each convolution of the stem."""
    kernels = [sizes[f"K{k}"] for k in range(4)]
    strides, side = _DESIGNS.get((kernels[0], sizes["P"]), (None, 0))
    if strides is None:
        raise UsageError(
            f"An Efficient-CapsNet with kernels {kernels} and {sizes['P']} is not one of the authors'.",
            "The file does not state its strides.",
            "Export the author's module instead: capsedge export --module (docs/how-to/your-model.md).",
        )
    size = choices.size or (side, side)
    stem = tuple(
        replace(conv, channels=sizes[f"C{k}"], kernel=kernels[k], stride=strides[k])
        for k in range(4)
    )
    hidden = tuple(sizes[h] for h in ("H1", "H2") if h in sizes)
    config = EfficientCapsNetConfig(
        **images_and_classes(family, sizes["J"], sizes["A"], choices, notes, size),
        stem=stem,
        primary_types=sizes["I"],
        primary_dim=sizes["D"],
        primary_kernel=sizes["P"],
        primary_stride=strides[4],
        capsule_dim=sizes["O"],
        iterations=weighted_sums_of(family, choices, notes),
        task=choices.task or "single-label",
        decoder=hidden,
    )
    return with_fields(config, choices.fields)


def _routing(weight: Floats, bias: Floats) -> Tensors:
    """Weight ``[J, I, D, O]`` and bias ``[J, I, 1]`` as ``[I, J, O, D]`` and ``[I, J]``."""
    return {"weight": weight.transpose(1, 0, 3, 2), "bias": bias[..., 0].T}


# --- PyTorch ---

_DECODER = ("generator.fc1", "generator.fc2", "generator.fc3")


def configure_torch(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The configuration of Efficient-CapsNet for the weights of its port to PyTorch."""
    return _configure(family, sizes, choices, notes, Conv(1, 1, batch_norm=True))


def convert_torch(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """Convert the tensors of the PyTorch port of Efficient-CapsNet to the package's."""
    assert isinstance(config, EfficientCapsNetConfig)
    tensors: Tensors = {}
    for k in range(4):
        tensors |= layer(weights, f"conv{k + 1}", f"stem.{3 * k}")
        tensors |= with_renamed_prefix(weights, f"bn{k + 1}.", f"stem.{3 * k + 1}.")
    return {
        **tensors,
        **layer(weights, "primary_caps.dw_conv2d", "primary"),
        **_routing(weights["routing_caps.W"], weights["routing_caps.b"]),
        **decoder_tensors(weights, _DECODER, config),
    }


def _torch_keys() -> Patterns:
    patterns: dict[str, str] = {}
    for k in range(4):
        before = "A" if k == 0 else f"C{k - 1}"
        patterns[f"conv{k + 1}.weight"] = f"C{k} {before} K{k} K{k}"
        patterns[f"conv{k + 1}.bias"] = f"C{k}"
        for part in ("weight", "bias", "running_mean", "running_var"):
            patterns[f"bn{k + 1}.{part}"] = f"C{k}"
    return patterns | {
        "primary_caps.dw_conv2d.weight": "ID 1 P P",
        "primary_caps.dw_conv2d.bias": "ID",
        "routing_caps.W": "J I D O",
        "routing_caps.b": "J I 1",
    }


PYTORCH = Family(
    name="akhdanfadh",
    source="github.com/akhdanfadh/efficient-capsnet-pytorch, model/layers.py",
    licence="MIT",
    dialect="self-attention routing in one pass; normalization before the ReLU",
    differences=("batch normalization stands before the ReLU, after it in the authors' code",),
    keys=_torch_keys(),
    optional=(decoder_keys(_DECODER, "JO"),),
    renames=((r"efficient_capsnet\.(.*)", r"\1"),),
    configure=configure_torch,
    convert=convert_torch,
    iterations=1,
    iterations_at=_ONE_PASS,
    data_sets=(MNIST,),
)


# --- Keras ---


def names_of_keras(keys: Iterable[str]) -> Mapping[str, str]:
    """Names by the order of the layers, which Keras numbers across a whole program.

    ``CapsNet/conv2d_4/kernel`` is ``conv2d.0/kernel`` if it is the first convolution of its model.
    """
    counted: dict[str, set[tuple[int, str]]] = {}
    of: dict[str, tuple[str, tuple[int, str], str]] = {}
    for key in keys:
        layer_name, _, weight = key.rpartition("/")
        match = re.fullmatch(r"(.*?)(?:_(\d+))?", layer_name.rpartition("/")[2])
        assert match is not None
        kind = "caps" if match[1] in ("fc_caps", "digit_caps") else match[1]
        if kind == "caps":  # Keras 3 counts its weights
            weight = {"0": "W", "1": "b"}.get(weight, weight)
        model = "generator." if "generator" in layer_name.lower() else ""
        of[key] = f"{model}{kind}", (int(match[2] or 0), layer_name), weight
        counted.setdefault(of[key][0], set()).add(of[key][1])
    places = {kind: sorted(layers) for kind, layers in counted.items()}
    return {
        key: f"{kind}.{places[kind].index(place)}/{weight}"
        for key, (kind, place, weight) in of.items()
    }


def _keras_keys(norm: str, parts: tuple[str, ...]) -> Patterns:
    patterns: dict[str, str] = {}
    for k in range(4):
        before = "A" if k == 0 else f"C{k - 1}"
        patterns[f"conv2d.{k}/kernel"] = f"K{k} K{k} {before} C{k}"
        patterns[f"conv2d.{k}/bias"] = f"C{k}"
        patterns |= {f"{norm}.{k}/{part}": f"C{k}" for part in parts}
    return patterns | {
        "conv2d.4/kernel": "P P 1 ID",
        "conv2d.4/bias": "ID",
        "caps.0/W": "J I D O",
        "caps.0/b": "J I 1",
    }


def configure_batch(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """Configure Efficient-CapsNet as its authors' networks for MNIST and MultiMNIST."""
    conv = Conv(1, 1, batch_norm=True, norm_epsilon=1e-3, norm_last=True)
    return _configure(family, sizes, choices, notes, conv)


def configure_instance(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The configuration of Efficient-CapsNet for its authors' weights for smallNORB."""
    if "G" in sizes:
        notes.append("the decoder is left out, because it has convolutions")
    notes.append(
        "the author's code subtracts the mean of all images and divides by their standard "
        "deviation: set these with --mean and --std"
    )
    conv = Conv(1, 1, norm_epsilon=1e-3, norm_last=True, instance_norm=True, leak=0.3)
    return _configure(family, sizes, choices, notes, conv)


def convert_keras(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """Convert the authors' Efficient-CapsNet in Keras, whose kernels are ``[K, K, in, out]``."""
    assert isinstance(config, EfficientCapsNetConfig)
    parts = {
        "gamma": "weight", "beta": "bias", "moving_mean": "running_mean",
        "moving_variance": "running_var",
    }  # fmt: skip
    tensors: Tensors = {}
    for k in range(5):
        name = "primary" if k == 4 else f"stem.{3 * k}"
        tensors[f"{name}.weight"] = weights[f"conv2d.{k}/kernel"].transpose(3, 2, 0, 1)
        tensors[f"{name}.bias"] = weights[f"conv2d.{k}/bias"]
    for key, tensor in weights.items():
        if norm := re.fullmatch(r"(?:batch|instance)_normalization\.(\d)/(\w+)", key):
            tensors[f"stem.{3 * int(norm[1]) + 2}.{parts[norm[2]]}"] = tensor
    for k in range(3 if config.decoder else 0):
        tensors[f"decoder.{2 * k}.weight"] = weights[f"generator.dense.{k}/kernel"].T
        tensors[f"decoder.{2 * k}.bias"] = weights[f"generator.dense.{k}/bias"]
    return {**tensors, **_routing(weights["caps.0/W"], weights["caps.0/b"])}


_SOURCE = "github.com/EscVM/Efficient-CapsNet, utils/layers.py"
_BATCH_PARTS = ("gamma", "beta", "moving_mean", "moving_variance")
KERAS = Family(
    name="escvm",
    source=f"{_SOURCE}: MNIST and MultiMNIST",
    licence="Apache-2.0",
    dialect="self-attention routing in one pass",
    differences=(),
    keys=_keras_keys("batch_normalization", _BATCH_PARTS),
    optional=(
        {
            "generator.dense.0/kernel": "JO H1",
            "generator.dense.0/bias": "H1",
            "generator.dense.1/kernel": "H1 H2",
            "generator.dense.1/bias": "H2",
            "generator.dense.2/kernel": "H2 X",
            "generator.dense.2/bias": "X",
        },
    ),
    renames=names_of_keras,
    configure=configure_batch,
    convert=convert_keras,
    iterations=1,
    iterations_at=_ONE_PASS,
    data_sets=(
        DataSet("MNIST", 1, 28, DIGITS, std=(256 / 255,)),
        DataSet("MultiMNIST", 1, 36, DIGITS),
    ),
)
KERAS_SMALLNORB = Family(
    name="escvm-smallnorb",
    source=f"{_SOURCE}: smallNORB",
    licence="Apache-2.0",
    dialect="self-attention routing in one pass; instance normalization",
    differences=(),
    keys=_keras_keys("instance_normalization", ("gamma", "beta")),
    optional=(
        {
            "generator.dense.0/kernel": "JO G",
            "generator.dense.0/bias": "G",
            **{
                f"generator.conv2d.{k}/{part}": pattern
                for k in range(4)
                for part, pattern in (("kernel", f"3 3 G{k} G{k + 1}"), ("bias", f"G{k + 1}"))
            },
        },
    ),
    renames=names_of_keras,
    configure=configure_instance,
    convert=convert_keras,
    iterations=1,
    iterations_at=_ONE_PASS,
)
