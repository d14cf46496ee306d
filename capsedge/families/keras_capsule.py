"""The ``Capsule`` layer of Keras' examples (K. Su), as in COVID-CAPS: replaced logits, one weight for all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.families import keras_layers as keras
from capsedge.families.family import (
    Answers,
    DataSet,
    Family,
    Sizes,
    Tensors,
    Variant,
    classes_of,
    preprocessing_of,
    unknown_size,
    variant_of,
)
from capsedge.families.keras_layers import KerasLayer, stem_layer
from capsedge.families.shapes import Fit, Shapes
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsuleStackConfig, ModelConfig, RoutedLayer, StemLayer

_KERNEL = "capsule_kernel"


def recognized(config: Mapping[str, Any], shapes: Shapes) -> Fit:
    """By the layers ``Capsule`` in the configuration, and a kernel for each."""
    layers = keras.chain(config)
    capsules = [layer for layer in layers if layer.kind == "Capsule"]
    found = Fit(missing=[] if capsules else ["a chain of layers with Capsule"])
    for layer in capsules:
        key = keras.weight(shapes, layer, _KERNEL, 0)
        if key is None:
            found.missing.append(f"{layer.name}/{_KERNEL}")
        elif len(shapes[key]) != 3:
            found.wrong.append(f"{key} has {len(shapes[key])} axes, not 3")
        else:
            found.matched.append(key)
            found.sizes[layer.name] = shapes[key][0]
    return found


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration.

    Raises:
        UsageError: an answer is missing or does not fit the file.
        UnsupportedModelError: a layer is not known.
    """
    stored = keras.chain(answers.stored or {})
    height, width, channels = keras.input_of(stored)
    layers, dim, routed = _layers(stored, channels or 0, sizes, notes)
    size = answers.size or (height, width)
    if None in size or channels is None:
        raise unknown_size(
            f"The configuration leaves it open: {height} x {width} pixels, {channels} channels.",
            64 if channels is not None else None,
        )
    sides = (int(size[0] or 0), int(size[1] or 0))
    counts = {layer.values.get("routings", 3) for layer in stored if layer.kind == "Capsule"}
    if answers.iterations is None and len(counts) != 1:
        raise UsageError("The layers have several numbers of iterations.", f"{counts}.", "")
    config = CapsuleStackConfig(
        class_names=classes_of(family, routed[-1].capsules, sides, channels, answers, notes),
        preprocessing=preprocessing_of(family, sides, channels, answers, notes),
        layers=tuple(layers),
        primary_dim=dim,
        routed=tuple(routed),
        iterations=answers.iterations or counts.pop(),
        task=answers.task or "single-label",
        **variant_of(family, answers, notes),
    )
    return config.replace(**answers.fields)


def _layers(
    stored: list[KerasLayer], channels: int, sizes: Sizes, notes: list[str]
) -> tuple[list[StemLayer], int, list[RoutedLayer]]:
    """The stem, the elements of its capsules, and the layers of capsules.

    Raises:
        UnsupportedModelError: a layer is not known.
    """
    layers: list[StemLayer] = []
    routed: list[RoutedLayer] = []
    dim = 0
    for k, layer in enumerate(stored):
        if layer.kind == "Capsule" and dim:
            routed.append(
                RoutedLayer(
                    layer.number("num_capsule"), layer.number("dim_capsule"),
                    bool(layer.values.get("share_weights", layer.values.get("share_weight", True))),
                    layer.name,
                )
            )  # fmt: skip
        elif layer.kind == "Reshape" and not dim:
            shape = layer.values.get("target_shape")
            if not isinstance(shape, list) or len(shape) != 2 or type(shape[1]) is not int:
                raise layer.refused(f"it makes {str(shape)[:40]}, not capsules")
            dim = shape[1]
        elif routed and k == len(stored) - 1 and layer.kind in ("Lambda", "Length"):
            notes.append(f"the last layer, '{layer.name}' ({layer.kind}), is taken for the length")
        elif dim:
            raise layer.refused("this layer is not known among capsules")
        else:
            made = stem_layer(layer, channels)
            if made is not None:
                layers.append(made)
                channels = made.channels
    if not routed or sizes.get(routed[0].name) is None:
        raise UnsupportedModelError("The network has no capsules of a known kind.", "", "")
    return layers, dim, routed


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; convolutions are ``[height, width, in, out]`` there."""
    assert isinstance(config, CapsuleStackConfig)
    made: Tensors = {}
    for k, layer in enumerate(config.layers):
        place = f"stem.{k}.0" if layer.activation != "linear" else f"stem.{k}"
        made.update(stem_tensors(found, layer, config, k, place))
    factor = 1 / math.sqrt(config.offset)
    for k, each in enumerate(config.routed):
        key = _key(found, each.name, "Capsule", k, _KERNEL, 0)
        kernel = found[key]
        own = kernel.reshape(*kernel.shape[:2], each.capsules, -1).transpose(0, 2, 3, 1)
        made[f"routed.{k}.weight"] = np.pad(factor * own, ((0, 0), (0, 0), (0, 1), (0, 0)))
        constant = np.zeros((each.capsules, each.dim + 1), np.float32)
        constant[:, -1] = factor * math.sqrt(config.epsilon)
        made[f"routed.{k}.constant"] = constant
    return {name: np.asarray(value, np.float32) for name, value in made.items()}


def _key(found: Mapping[str, Any], name: str, kind: str, count: int, which: str, index: int) -> str:
    snake = {"conv": "conv2d", "norm": "batch_normalization", "Capsule": "capsule"}[kind]
    stored = KerasLayer(kind, name, f"{snake}_{count}" if count else snake, {})
    key = keras.weight(found, stored, which, index)
    if key is None:
        raise stored.refused(f"the file has no weight '{which}' of it")
    return key


def stem_tensors(
    found: Mapping[str, Floats],
    layer: StemLayer,
    config: CapsuleStackConfig,
    k: int,
    place: str,
) -> Tensors:
    """The tensors of one layer of the stem."""
    count = sum(one.kind == layer.kind for one in config.layers[:k])

    def take(which: str, index: int) -> Floats:
        return found[_key(found, layer.name, layer.kind, count, which, index)]

    if layer.kind == "conv":
        made = {f"{place}.weight": take("kernel", 0).transpose(3, 2, 0, 1)}
        return made | ({f"{place}.bias": take("bias", 1)} if layer.bias else {})
    if layer.kind == "norm":
        ones = np.ones(layer.channels, np.float32)
        names = {"gamma": ones, "beta": 0 * ones, "moving_mean": None, "moving_variance": None}
        values = []
        for index, (which, default) in enumerate(names.items()):
            key = keras.weight(found, KerasLayer("", layer.name, layer.name, {}), which, -1)
            if key is not None:
                values.append(found[key])
            elif default is not None and any(n.startswith(f"{layer.name}/") for n in found):
                values.append(default)  # scale=False or center=False
            else:
                values.append(take(which, index))
        ours = ("weight", "bias", "running_mean", "running_var")
        return {f"{place}.{n}": v for n, v in zip(ours, values, strict=True)}
    return {}


FAMILY = Family(
    name="keras-capsule",
    source="github.com/ShahinSHH/COVID-CAPS, binary.py; the layer Capsule of Keras' examples",
    licence="",
    dialect="dynamic routing; one weight for all children, agreements replace the logits",
    differences=(
        "all children share one weight, unless the layer says otherwise",
        "agreements replace the logits instead of being added, in most versions",
        "epsilon is added to the squared norm everywhere in the squash",
    ),
    keys={f"a configuration with layers Capsule, each with {_KERNEL}": ""},
    by_configuration=recognized,
    marks=rf".*/{_KERNEL}",
    configure=configure,
    convert=convert,
    iterations=3,
    iterations_at="routings of the layer",
    data_sets=(DataSet("COVIDx", 3, 224, ("other", "COVID-19")),),
    variants=(
        Variant("replaced", "logits replaced, squash with 1 + n (COVID-CAPS)", {"replaced": True}),
        Variant(
            "replaced-half",
            "logits replaced, squash with 0.5 + n (cifar10_cnn_capsule.py of Keras)",
            {"replaced": True, "offset": 0.5},
        ),
        Variant("added", "logits added up, squash with 1 + n", {"replaced": False}),
        Variant(
            "added-half",
            "logits added up, squash with 0.5 + n",
            {"replaced": False, "offset": 0.5},
        ),
    ),
    variant_at="It is in call() and squash() of the training script: `b =` or `b +=`, `1 +` or `0.5 +`.",
    lambdas=".*",
)
