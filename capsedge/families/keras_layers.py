"""The chain of layers in a Keras configuration. Nothing of it is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsedge.errors import UnsupportedModelError
from capsedge.families.shapes import Shapes
from capsedge.models.config import StemLayer

_WHOLE = {"Model", "Functional", "Sequential"}


@dataclass(frozen=True)
class KerasLayer:
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
        """Rows and columns.

        Raises:
            UnsupportedModelError: they are not two whole numbers.
        """
        found = self.values.get(key) or default
        found = (found, found) if type(found) is int else found
        if not isinstance(found, (list, tuple)) or [type(n) for n in found] != [int, int]:
            raise self.refused(f"its {key} is {str(found)[:40]}")
        return found[0], found[1]

    def number(self, key: str) -> int:
        """A whole number above 0.

        Raises:
            UnsupportedModelError: it is none.
        """
        found = self.values.get(key)
        if type(found) is not int or found < 1:
            raise self.refused(f"its {key} is {str(found)[:40]}")
        return found

    def refused(self, why: str) -> UnsupportedModelError:
        """The error for a layer that is not known."""
        return UnsupportedModelError(
            f"The layer '{self.name[:80]}' ({self.kind[:40]}) cannot be imported.",
            f"{why[:1].upper()}{why[1:]}.",
            "Write the network in PyTorch and export it: capsedge export --module "
            "(docs/how-to/your-model.md).",
        )


def chain(config: Mapping[str, Any]) -> list[KerasLayer]:
    """The layers from the input to the output; none where the configuration is no chain of them."""
    inner = config.get("config")
    if config.get("class_name") not in _WHOLE:
        return []
    layers = inner.get("layers") if isinstance(inner, dict) else inner
    if not isinstance(layers, list):
        return []
    found: list[KerasLayer] = []
    counts: dict[str, int] = {}
    before = ""
    for layer in layers:
        values = layer.get("config") if isinstance(layer, dict) else None
        kind = layer.get("class_name") if isinstance(layer, dict) else None
        if not isinstance(values, dict) or type(kind) is not str:
            return []
        name = str(values.get("name") or layer.get("name"))
        sources = set(_named(layer.get("inbound_nodes"), {one.name for one in found}))
        if config["class_name"] != "Sequential" and found and sources != {before}:
            return []
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower().replace("2_d", "2d")
        count = counts[snake] = counts.get(snake, -1) + 1
        found.append(KerasLayer(kind, name, f"{snake}_{count}" if count else snake, values))
        before = name
    return found


def _named(nodes: Any, known: set[str]) -> Iterator[str]:
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


def input_of(layers: Sequence[KerasLayer]) -> tuple[int | None, int | None, int | None]:
    """Height, width and channels of the input; None where they are free."""
    for layer in layers[:2]:
        shape = layer.values.get("batch_input_shape") or layer.values.get("batch_shape")
        if isinstance(shape, list) and len(shape) == 4:
            height, width, channels = (n if type(n) is int else None for n in shape[1:])
            return height, width, channels
    return None, None, None


def weight(names: Mapping[str, Any], layer: KerasLayer, which: str, index: int) -> str | None:
    """The key of a layer's weight, by its name or its number."""
    for key in names:
        parts = key.split("/")
        if parts[0] == layer.name and parts[-1] == which:
            return key
    others = (f"{layer.stored}/{which}", f"{layer.stored}/{index}", f"{layer.name}/{index}")
    return next((key for key in others if key in names), None)


def stem_layer(layer: KerasLayer, channels: int) -> StemLayer | None:
    """A layer before the capsules; None where it changes nothing.

    Raises:
        UnsupportedModelError: it is not known.
    """
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


def _activation(layer: KerasLayer) -> str:
    found = layer.values.get("activation") or "linear"
    if found not in ("linear", "relu", "tanh", "sigmoid"):
        raise layer.refused(f"its activation is {str(found)[:40]}")
    return str(found)


def unknown_keys(shapes: Shapes, known: Sequence[str | None]) -> list[str]:
    """Keys that no layer of the chain speaks of."""
    return [key for key in shapes if key not in known]
