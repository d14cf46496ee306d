"""The layers of a TensorRT engine, as its inspector or the build log reports them.

Both are written for people and differ between releases. TensorRT 10 and 11 write the type and the layout of a
tensor in one field or in two; an engine for several batch sizes has "N/A due to dynamic shapes" there, and
only some layers also report the type of their weights. Anything that is not reported stays unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from capsedge.errors import CapsedgeError

# How the first line of a list of layers begins, in the verbose log.
HEADS = ("Layers:\n", "Engine Layer Information:")
UNKNOWN = ""
_WORDS = {
    "FP32": "FP32", "FLOAT": "FP32", "FP16": "FP16", "HALF": "FP16", "INT8": "INT8", "BF16": "BF16",
    "BFLOAT16": "BF16", "FP8": "FP8", "INT32": "INT32", "INT64": "INT64", "BOOL": "BOOL",
}  # fmt: skip
_WORD = re.compile(rf"\b({'|'.join(_WORDS)})\b", re.IGNORECASE)
# Layers that only move or convert data; they do not show the type of any arithmetic.
_MOVING = re.compile(
    r"reformat|cast|quantize|shuffle|copy|constant|noop|signal|wait|shape", re.IGNORECASE
)
# Convolutions and matrix products, by the kind of layer or by the kernel that was chosen.
_PRODUCT = re.compile(r"conv|gemm|matrix|matmul|correlation|fully", re.IGNORECASE)
_PRODUCT_KERNEL = re.compile(r"xmma|cutlass|implicit_gemm|fprop", re.IGNORECASE)


@dataclass(frozen=True)
class EngineLayer:
    """A layer of an engine.

    Attributes:
        name: name of the layer, or of several that TensorRT fused.
        kind: what it is, such as ``CaskConvolution``, ``gemm`` or ``kgen``.
        inputs, outputs: element types of its data: ``FP32``, ``INT8``; empty for one that is not reported.
        weights: element types of its constants, if reported.
        kernel: the chosen kernel; empty if not reported.
        metadata: its reported origin, such as the names of ONNX nodes.
    """

    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    kernel: str = field(default="", compare=False)
    metadata: str = field(default="", compare=False)

    @property
    def moves(self) -> bool:
        """Whether it only moves or converts data."""
        return _MOVING.search(self.kind) is not None

    @property
    def is_product(self) -> bool:
        """Whether it is a convolution or a matrix product."""
        return not self.moves and (
            _PRODUCT.search(self.kind) is not None
            or _PRODUCT_KERNEL.search(self.kernel) is not None
        )

    @property
    def types(self) -> set[str]:
        """Element types of its data; those of its weights if none are reported for the data."""
        kinds = {kind for kind in (*self.inputs, *self.outputs) if kind != UNKNOWN}
        return kinds or set(self.weights)

    @property
    def input_types(self) -> set[str]:
        """Element types that it computes with: those of its data, otherwise those of its weights."""
        return {kind for kind in self.inputs if kind != UNKNOWN} or set(self.weights)


def from_inspector(information: str) -> list[EngineLayer]:
    """The layers in the JSON of TensorRT's engine inspector."""
    try:
        layers = json.loads(information)["Layers"]
        if not isinstance(layers, list):
            raise TypeError("'Layers' is not a list")
    except (ValueError, KeyError, TypeError) as error:
        raise CapsedgeError(
            "TensorRT's description of the engine cannot be read.",
            f"{type(error).__name__}: {error}.",
        ) from error
    if not all(isinstance(layer, Mapping) for layer in layers):
        raise CapsedgeError(
            "TensorRT does not report the engine's types.",
            "The engine has no detailed layer information.",
        )
    return [_from_mapping(layer) for layer in layers]


def _from_mapping(layer: Mapping[str, Any]) -> EngineLayer:
    kinds = [str(layer.get(key, "")) for key in ("LayerType", "ParameterType")]
    weights = layer.get("Weights")
    constants = [weights] if isinstance(weights, Mapping) else []
    constants += [c for c in layer.get("Constants") or () if isinstance(c, Mapping)]
    return EngineLayer(
        name=str(layer.get("Name", "")),
        kind=" ".join(kind for kind in kinds if kind),
        inputs=tuple(_type_of(tensor) for tensor in layer.get("Inputs") or ()),
        outputs=tuple(_type_of(tensor) for tensor in layer.get("Outputs") or ()),
        weights=tuple(kind for kind in map(_type_of, constants) if kind != UNKNOWN),
        kernel=str(layer.get("TacticName", "")),
        metadata=str(layer.get("Metadata", "")),
    )


def _type_of(tensor: object) -> str:
    """``FP16`` of ``{"Format/Datatype": "Row major linear FP16 format"}`` or ``{"Datatype": "Half"}``."""
    if isinstance(tensor, Mapping):
        for key, value in tensor.items():
            if "type" in str(key).lower() and (word := _WORD.search(str(value))):
                return _WORDS[word[1].upper()]
    return UNKNOWN


def from_log(lines: Iterable[str]) -> list[EngineLayer]:
    """The layers in messages of the verbose log that begin with one of `HEADS`.

    Two forms are known: that of TensorRT-RTX (``Name: .., LayerType: .., Inputs: [ {..} ]``) and that of
    TensorRT (``Layer(Kind): name, Tactic: .., in[Half(1,8)] -> out[Half(1,8)]``).
    """
    layers = (
        _from_fields(line) or _from_arrow(line)
        for message in lines
        for line in message.splitlines()
    )
    return [layer for layer in layers if layer is not None]


_FIELDS = re.compile(r"Name: (?P<name>.*?), LayerType: (?P<kind>[^,]+)")
_TENSOR_TYPE = re.compile(r"(?:Format/)?Datatype: (?P<words>[^,}]*)")
_KERNEL = re.compile(r"TacticName: (?P<kernel>[^,]*)")
_METADATA = re.compile(r", Metadata: (?P<words>.*)")


def _from_fields(line: str) -> EngineLayer | None:
    head = _FIELDS.match(line)
    if head is None:
        return None

    def types(section: str) -> tuple[str, ...]:
        return tuple(
            _type_of({"type": tensor["words"]})
            for tensor in _TENSOR_TYPE.finditer(_section(line, section))
        )

    kernel, metadata = _KERNEL.search(line), _METADATA.search(line)
    return EngineLayer(
        head["name"],
        head["kind"].strip(),
        types("Inputs"),
        types("Outputs"),
        types("Constants"),
        kernel["kernel"] if kernel else "",
        metadata["words"] if metadata else "",
    )


def _section(line: str, name: str) -> str:
    """``Inputs: [ .. ]`` of a line, whose tensors have brackets of their own."""
    start = line.find(f", {name}: [")
    depth = 0
    for at in range(start, len(line) if start >= 0 else start):
        depth += {"[": 1, "]": -1}.get(line[at], 0)
        if line[at] == "]" and depth == 0:
            return line[start:at]
    return ""


_ARROW = re.compile(r".*?Layer\((?P<kind>\w+)\): (?P<name>.*?), Tactic: \w+, (?P<rest>.*)")
# Sizes or none behind a type, and one of both kinds of bracket around it: "x[Half(1,8)]", "x (Half[1,8])".
_SHAPED = re.compile(rf"[\[(]({'|'.join(_WORDS)})[\[(][-\d,:? ]*[\])][\])]", re.IGNORECASE)


def _from_arrow(line: str) -> EngineLayer | None:
    match = _ARROW.match(line)
    if match is None:
        return None
    before, _, after = match["rest"].rpartition(" -> ")

    def types(side: str) -> tuple[str, ...]:
        return tuple(_WORDS[word[1].upper()] for word in _SHAPED.finditer(side))

    return EngineLayer(match["name"], match["kind"], types(before), types(after))


def fill(layers: Sequence[EngineLayer], other: Iterable[EngineLayer]) -> list[EngineLayer]:
    """Layers whose unknown types are taken from the layers of the same name in another source.

    If the first source has no layers, those of the other are returned.
    """
    named = {layer.name: layer for layer in other}
    if not layers:
        return list(named.values())

    def filled(layer: EngineLayer) -> EngineLayer:
        more = named.get(layer.name)
        if more is None or (layer.inputs + layer.outputs and all(layer.inputs + layer.outputs)):
            return layer
        return replace(
            layer,
            inputs=_better(layer.inputs, more.inputs),
            outputs=_better(layer.outputs, more.outputs),
            weights=layer.weights or more.weights,
        )

    return [filled(layer) for layer in layers]


def _better(mine: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return mine if mine and all(mine) else others or mine


def arithmetic_layers(layers: Iterable[EngineLayer]) -> Iterator[EngineLayer]:
    """The layers that do arithmetic."""
    return (layer for layer in layers if not layer.moves)
