"""Capsule networks of Keras: the paper's by Xifeng Guo, and chains of layers with ``Capsule``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.importers.families import capsnet_base
from capsedge.importers.family import (
    DataSet,
    Family,
    Floats,
    ImportChoices,
    Sizes,
    Tensors,
    Variant,
    image_size_question,
    images_and_classes,
    variant_of,
)
from capsedge.importers.key_patterns import Fit, Shapes
from capsedge.models.configs import (
    CapsNetConfig,
    CapsuleStackConfig,
    ModelConfig,
    RoutedLayerConfig,
    StemLayer,
)

# --- CapsNet-Keras by Xifeng Guo: capsules of channels, as in the paper ---

_EPSILON = 1e-7  # Keras's epsilon


def _configure_xifengguo(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The configuration."""
    return capsnet_base.configure(
        family, sizes, choices, notes, epsilon=_EPSILON, length_epsilon=_EPSILON
    )


def _convert_xifengguo(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors.

    In the file, convolutions are ``[height, width, in, out]``, the routing weight is ``[J, I, O, D]``, and
    the decoder makes ``[height, width, channels]``.
    """
    assert isinstance(config, CapsNetConfig)
    tensors = {"classes.weight": weights["digitcaps/W"].swapaxes(0, 1)}
    for theirs, ours in (("conv1", "stem.0"), ("primarycap_conv2d", "primary.conv")):
        tensors[f"{ours}.weight"] = weights[f"{theirs}/kernel"].transpose(3, 2, 0, 1)
        tensors[f"{ours}.bias"] = weights[f"{theirs}/bias"]
    if config.decoder:
        for k in range(3):
            tensors[f"decoder.{2 * k}.weight"] = weights[f"decoder/dense_{k}/kernel"].T
            tensors[f"decoder.{2 * k}.bias"] = weights[f"decoder/dense_{k}/bias"]
        shape = config.preprocessing.shape
        last = tensors["decoder.4.weight"]
        pixels = last.reshape(*shape[1:], shape[0], -1).transpose(2, 0, 1, 3)
        tensors["decoder.4.weight"] = pixels.reshape(last.shape)
        tensors["decoder.4.bias"] = (
            tensors["decoder.4.bias"].reshape(*shape[1:], shape[0]).transpose(2, 0, 1).reshape(-1)
        )
    return tensors


XIFENGGUO = Family(
    name="xifengguo-keras",
    source="github.com/XifengGuo/CapsNet-Keras, capsulelayers.py",
    licence="MIT",
    dialect="dynamic routing as in the paper",
    differences=(
        "class capsules without bias",
        "epsilon 1e-7 under the root of the squash and of the length",
    ),
    keys={
        "conv1/kernel": "K K A C",
        "conv1/bias": "C",
        "primarycap_conv2d/kernel": "P P C N",
        "primarycap_conv2d/bias": "N",
        "digitcaps/W": "J I O D",
    },
    optional=(
        {
            "decoder/dense_0/kernel": "M H1",
            "decoder/dense_0/bias": "H1",
            "decoder/dense_1/kernel": "H1 H2",
            "decoder/dense_1/bias": "H2",
            "decoder/dense_2/kernel": "H2 X",
            "decoder/dense_2/bias": "X",
        },
    ),
    renames=(  # Keras 3
        (r"conv2d/(kernel|bias)", r"conv1/\1"),
        (r"conv2d_1/(kernel|bias)", r"primarycap_conv2d/\1"),
        (r"(?:digitcaps|capsule_layer)/0", "digitcaps/W"),
        (r"sequential/(dense.*)", r"decoder/\1"),
    ),
    counted=r"(?P<name>decoder/dense)(_(?P<number>\d+))?(?=/)",
    configure=_configure_xifengguo,
    convert=_convert_xifengguo,
    iterations_at="the option --routings of capsulenet.py (3 by default)",
    data_sets=(capsnet_base.MNIST,),
    lambdas="primarycap_squash",
)


# --- The chain of layers in a Keras configuration; nothing of it is run ---

_WHOLE = {"Model", "Functional", "Sequential"}


@dataclass(frozen=True)
class _KerasLayer:
    """A layer.

    Attributes:
        kind: its class.
        name: its own.
        stored: its name among the weights; Keras 3 counts layers of a class instead.
        values: its configuration.
    """

    kind: str
    name: str
    stored: str
    values: Mapping[str, Any]

    def pair(self, key: str, default: Sequence[int]) -> tuple[int, int]:
        """Rows and columns. Raises UnsupportedModelError if they are not two whole numbers."""
        sizes = self.values.get(key) or default
        sizes = (sizes, sizes) if type(sizes) is int else sizes
        if not isinstance(sizes, (list, tuple)) or [type(n) for n in sizes] != [int, int]:
            raise self.refused(f"its {key} is {str(sizes)[:40]}")
        return sizes[0], sizes[1]

    def number(self, key: str) -> int:
        """A whole number above 0. Raises UnsupportedModelError if it is not one."""
        number = self.values.get(key)
        if type(number) is not int or number < 1:
            raise self.refused(f"its {key} is {str(number)[:40]}")
        return number

    def refused(self, why: str) -> UnsupportedModelError:
        """The error for a layer that is not known."""
        return UnsupportedModelError(
            f"The layer '{self.name[:80]}' ({self.kind[:40]}) cannot be imported.",
            f"{why[:1].upper()}{why[1:]}.",
            "Write the network in PyTorch and export it: capsedge export --module "
            "(docs/how-to/your-model.md).",
        )


def _chain(config: Mapping[str, Any]) -> list[_KerasLayer]:
    """The layers from the input to the output; empty if the configuration is not a chain of layers."""
    inner = config.get("config")
    if config.get("class_name") not in _WHOLE:
        return []
    layers = inner.get("layers") if isinstance(inner, dict) else inner
    if not isinstance(layers, list):
        return []
    chain: list[_KerasLayer] = []
    counts: dict[str, int] = {}
    before = ""
    for layer in layers:
        values = layer.get("config") if isinstance(layer, dict) else None
        kind = layer.get("class_name") if isinstance(layer, dict) else None
        if not isinstance(values, dict) or type(kind) is not str:
            return []
        name = str(values.get("name") or layer.get("name"))
        sources = set(_sources(layer.get("inbound_nodes"), {one.name for one in chain}))
        if config["class_name"] != "Sequential" and chain and sources != {before}:
            return []
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower().replace("2_d", "2d")
        count = counts[snake] = counts.get(snake, -1) + 1
        chain.append(_KerasLayer(kind, name, f"{snake}_{count}" if count else snake, values))
        before = name
    return chain


def _sources(nodes: Any, known: set[str]) -> Iterator[str]:
    """Names of layers anywhere in an entry ``inbound_nodes`` of Keras 1 to 3."""
    rest = [nodes]
    while rest:
        value = rest.pop()
        if isinstance(value, str) and value in known:
            yield value
        elif isinstance(value, Mapping):
            rest += value.values()
        elif isinstance(value, list):
            rest += value


def _input_of(layers: Sequence[_KerasLayer]) -> tuple[int | None, int | None, int | None]:
    """Height, width and channels of the input; None for those that are free."""
    for layer in layers[:2]:
        shape = layer.values.get("batch_input_shape") or layer.values.get("batch_shape")
        if isinstance(shape, list) and len(shape) == 4:
            height, width, channels = (n if type(n) is int else None for n in shape[1:])
            return height, width, channels
    return None, None, None


def _weight_key(names: Mapping[str, Any], layer: _KerasLayer, which: str, index: int) -> str | None:
    """The key of a layer's weight, by its name or its number."""
    for key in names:
        parts = key.split("/")
        if parts[0] == layer.name and parts[-1] == which:
            return key
    others = (f"{layer.stored}/{which}", f"{layer.stored}/{index}", f"{layer.name}/{index}")
    return next((key for key in others if key in names), None)


def _stem_layer(layer: _KerasLayer, channels: int) -> StemLayer | None:
    """A layer before the capsules; None if it changes nothing."""
    values = layer.values
    if layer.kind in ("InputLayer", "Dropout", "SpatialDropout2D", "GaussianNoise"):
        return None
    if values.get("data_format", "channels_last") != "channels_last":
        raise layer.refused("it has the channels first")
    if layer.kind == "Activation":
        return StemLayer("activation", channels, activation=_activation(layer), name=layer.name)
    if layer.kind == "ReLU" and not any(
        values.get(k) for k in ("max_value", "negative_slope", "threshold")
    ):
        return StemLayer("activation", channels, activation="relu", name=layer.name)
    if layer.kind == "BatchNormalization":
        if values.get("axis") not in (3, -1, [3], [-1]):
            raise layer.refused("it does not normalize channels")
        return StemLayer(
            "norm", channels, epsilon=float(values.get("epsilon", 1e-3)), name=layer.name
        )
    if values.get("padding", "valid") not in ("valid", "same"):
        raise layer.refused(f"its padding is {str(values['padding'])[:40]}")
    same = values.get("padding") == "same"
    pools = {"MaxPooling2D": "max", "AveragePooling2D": "average"}
    if layer.kind in pools:
        window = layer.pair("pool_size", (2, 2))
        stride = layer.pair("strides", window)
        return StemLayer(pools[layer.kind], channels, window, stride, same, name=layer.name)
    if layer.kind in ("Conv2D", "Convolution2D"):
        if layer.pair("dilation_rate", (1, 1)) != (1, 1) or values.get("groups", 1) != 1:
            raise layer.refused("it is dilated or grouped")
        return StemLayer(
            "conv", layer.number("filters"), layer.pair("kernel_size", ()),
            layer.pair("strides", (1, 1)), same, bool(values.get("use_bias", True)),
            _activation(layer), name=layer.name,
        )  # fmt: skip
    raise layer.refused("it is none of the layers that are known before capsules")


def _activation(layer: _KerasLayer) -> str:
    name = layer.values.get("activation") or "linear"
    if name not in ("linear", "relu", "tanh", "sigmoid"):
        raise layer.refused(f"its activation is {str(name)[:40]}")
    return str(name)


# --- ``Capsule`` from Keras' examples (K. Su), as in COVID-CAPS: logits replaced, one weight ---

_KERNEL = "capsule_kernel"


def _fit_configuration(config: Mapping[str, Any], shapes: Shapes) -> Fit:
    """Identify a file by the ``Capsule`` layers in its configuration, with a kernel for each."""
    layers = _chain(config)
    capsules = [layer for layer in layers if layer.kind == "Capsule"]
    fit = Fit(missing=[] if capsules else ["a chain of layers with Capsule"])
    for layer in capsules:
        key = _weight_key(shapes, layer, _KERNEL, 0)
        if key is None:
            fit.missing.append(f"{layer.name}/{_KERNEL}")
        elif len(shapes[key]) != 3:
            fit.wrong.append(f"{key} has {len(shapes[key])} axes, not 3")
        else:
            fit.matched.append(key)
            fit.sizes[layer.name] = shapes[key][0]
    return fit


def _configure_chain(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The configuration."""
    stored = _chain(choices.stored or {})
    height, width, channels = _input_of(stored)
    layers, dim, routed = _layers(stored, channels or 0, sizes, notes)
    size = choices.size or (height, width)
    if None in size or channels is None:
        raise image_size_question(
            f"The configuration leaves it open: {height} x {width} pixels, {channels} channels.",
            64 if channels is not None else None,
        )
    sides = (int(size[0] or 0), int(size[1] or 0))
    counts = {layer.values.get("routings", 3) for layer in stored if layer.kind == "Capsule"}
    if choices.iterations is None and len(counts) != 1:
        raise UsageError("The layers have different numbers of iterations.", f"{counts}.", "")
    config = CapsuleStackConfig(
        **images_and_classes(family, routed[-1].capsules, channels, choices, notes, sides),
        layers=tuple(layers),
        primary_dim=dim,
        routed=tuple(routed),
        iterations=choices.iterations or counts.pop(),
        task=choices.task or "single-label",
        **variant_of(family, choices, notes),
    )
    return config.replace(**choices.fields)


def _layers(
    stored: list[_KerasLayer], channels: int, sizes: Sizes, notes: list[str]
) -> tuple[list[StemLayer], int, list[RoutedLayerConfig]]:
    """The stem, the elements of its capsules, and the layers of capsules."""
    layers: list[StemLayer] = []
    routed: list[RoutedLayerConfig] = []
    dim = 0
    for k, layer in enumerate(stored):
        if layer.kind == "Capsule" and dim:
            routed.append(
                RoutedLayerConfig(
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
            notes.append(
                f"the last layer, '{layer.name}' ({layer.kind}), is read as the length of the "
                "capsules"
            )
        elif dim:
            raise layer.refused("this layer is not known among capsules")
        else:
            stem = _stem_layer(layer, channels)
            if stem is not None:
                layers.append(stem)
                channels = stem.channels
    if not routed or sizes.get(routed[0].name) is None:
        raise UnsupportedModelError("The network has no known kind of capsule layer.", "", "")
    return layers, dim, routed


def _convert_chain(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; in the file, convolutions are ``[height, width, in, out]``."""
    assert isinstance(config, CapsuleStackConfig)
    tensors: Tensors = {}
    for k, layer in enumerate(config.layers):
        place = f"stem.{k}.0" if layer.activation != "linear" else f"stem.{k}"
        tensors.update(_stem_tensors(weights, layer, config, k, place))
    factor = 1 / math.sqrt(config.offset)
    for k, each in enumerate(config.routed):
        key = _key(weights, each.name, "Capsule", k, _KERNEL, 0)
        kernel = weights[key]
        own = kernel.reshape(*kernel.shape[:2], each.capsules, -1).transpose(0, 2, 3, 1)
        tensors[f"routed.{k}.weight"] = np.pad(factor * own, ((0, 0), (0, 0), (0, 1), (0, 0)))
        constant = np.zeros((each.capsules, each.dim + 1), np.float32)
        constant[:, -1] = factor * math.sqrt(config.epsilon)
        tensors[f"routed.{k}.constant"] = constant
    return {name: np.asarray(value, np.float32) for name, value in tensors.items()}


def _key(
    weights: Mapping[str, Any], name: str, kind: str, count: int, which: str, index: int
) -> str:
    snake = {"conv": "conv2d", "norm": "batch_normalization", "Capsule": "capsule"}[kind]
    stored = _KerasLayer(kind, name, f"{snake}_{count}" if count else snake, {})
    key = _weight_key(weights, stored, which, index)
    if key is None:
        raise stored.refused(f"the file has no weight '{which}' of it")
    return key


def _stem_tensors(
    weights: Mapping[str, Floats],
    layer: StemLayer,
    config: CapsuleStackConfig,
    k: int,
    place: str,
) -> Tensors:
    """The tensors of one layer of the stem."""
    count = sum(one.kind == layer.kind for one in config.layers[:k])

    def take(which: str, index: int) -> Floats:
        return weights[_key(weights, layer.name, layer.kind, count, which, index)]

    if layer.kind == "conv":
        tensors = {f"{place}.weight": take("kernel", 0).transpose(3, 2, 0, 1)}
        return tensors | ({f"{place}.bias": take("bias", 1)} if layer.bias else {})
    if layer.kind == "norm":
        ones = np.ones(layer.channels, np.float32)
        names = {"gamma": ones, "beta": 0 * ones, "moving_mean": None, "moving_variance": None}
        values = []
        for index, (which, default) in enumerate(names.items()):
            key = _weight_key(weights, _KerasLayer("", layer.name, layer.name, {}), which, -1)
            if key is not None:
                values.append(weights[key])
            elif default is not None and any(n.startswith(f"{layer.name}/") for n in weights):
                values.append(default)  # scale=False or center=False
            else:
                values.append(take(which, index))
        ours = ("weight", "bias", "running_mean", "running_var")
        return {f"{place}.{n}": v for n, v in zip(ours, values, strict=True)}
    return {}


CAPSULE = Family(
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
    by_configuration=_fit_configuration,
    signature=rf".*/{_KERNEL}",
    configure=_configure_chain,
    convert=_convert_chain,
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
