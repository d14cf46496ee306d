"""The precision that was asked for, and the one that TensorRT built: read back, never assumed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from capsedge.errors import CapsedgeError, ParityError, UsageError
from capsedge.runtime.passport import PRECISIONS

# Words for element types in the descriptions of TensorRT 10 and 11.
_WORDS = {
    "FP32": "FP32", "FLOAT": "FP32", "FP16": "FP16", "HALF": "FP16", "INT8": "INT8", "BF16": "BF16",
    "BFLOAT16": "BF16", "FP8": "FP8", "INT32": "INT32", "INT64": "INT64", "BOOL": "BOOL",
}  # fmt: skip
_WORD = re.compile(rf"\b({'|'.join(_WORDS)})\b", re.IGNORECASE)
# Layers that only move or convert; they say nothing of where arithmetic is done.
_MOVING = re.compile(
    r"reformat|cast|quantize|shuffle|copy|constant|noop|signal|wait", re.IGNORECASE
)


def of_model(model: onnx.ModelProto) -> str:
    """What a graph's types say: ``fp32``, ``fp16``, ``int8``, or ``mixed`` for both of the last."""
    quantized = any(n.op_type == "DequantizeLinear" for n in model.graph.node)
    types = {t.data_type for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Cast":
            types |= {a.i for a in node.attribute if a.name == "to"}
    half = bool(types & {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
    if quantized:
        return "mixed" if half else "int8"
    return "fp16" if half else "fp32"


def resolve(asked: str | None, model: onnx.ModelProto) -> str:
    """The precision to build, which is always the file's own.

    Args:
        asked: by the caller; None takes what the file has.

    Raises:
        UsageError: the file has another one.
    """
    found = of_model(model)
    if asked is None or asked == found or (asked == "int8" and found == "mixed"):
        return asked or found
    if asked not in PRECISIONS:
        raise UsageError(f"Unknown precision '{asked}'.", "", f"Known: {', '.join(PRECISIONS)}.")
    raise UsageError(
        f"The model is {found}, not {asked}.",
        "TensorRT computes in the types of the graph; capsedge changes them before building, with "
        "calibration images and a comparison.",
        "Export the model again with `capsedge export`."
        if asked == "fp32"
        else f"Make the file first: `capsedge quantize MODEL.onnx --precision {asked} --target tensorrt`.",
    )


def layers(information: str) -> list[dict[str, Any]]:
    """The layers in the JSON of TensorRT's engine inspector.

    Raises:
        CapsedgeError: it says names only: the engine was built without details.
    """
    try:
        found = json.loads(information)["Layers"]
    except (ValueError, KeyError, TypeError) as error:
        raise CapsedgeError(
            "What TensorRT says of the engine cannot be read.", f"{type(error).__name__}: {error}."
        ) from error
    if not all(isinstance(layer, Mapping) for layer in found):
        raise CapsedgeError(
            "TensorRT says nothing of the engine's types.",
            "The engine has no detailed layer information.",
        )
    return list(found)


def types_of(layer: Mapping[str, Any]) -> set[str]:
    """Element types of a layer's inputs and outputs."""
    return {word for tensor in _tensors(layer) for word in _words(tensor)}


def _tensors(layer: Mapping[str, Any]) -> Iterator[Any]:
    for side in ("Inputs", "Outputs"):
        yield from layer.get(side) or ()


def _words(tensor: Any) -> Iterator[str]:
    if not isinstance(tensor, Mapping):
        return
    for key, value in tensor.items():
        # "Format/Datatype" in TensorRT 10; "Datatype" or "Data Type" apart from "Format" in 11.
        if "type" in key.lower() or "format" in key.lower():
            for word in _WORD.findall(str(value)):
                yield _WORDS[word.upper()]


def count(found: list[dict[str, Any]]) -> dict[str, int]:
    """How many computing layers have data of each floating-point or INT8 type."""
    counts: Counter[str] = Counter()
    for layer in found:
        if not _MOVING.search(str(layer.get("LayerType", ""))):
            counts.update(types_of(layer) & {"FP32", "FP16", "BF16", "FP8", "INT8"})
    return dict(sorted(counts.items()))


def compare(asked: str, counts: Mapping[str, int]) -> None:
    """Hold the engine to what was asked.

    Raises:
        ParityError: a type that was asked for is not in the engine, or one that was not is.
    """
    needed = {"fp32": {"FP32"}, "fp16": {"FP16"}, "int8": {"INT8"}, "mixed": {"FP16", "INT8"}}[
        asked
    ]
    strange = {"fp32": {"FP16", "BF16", "FP8", "INT8"}, "fp16": {"INT8", "FP8"}}.get(asked, {"FP8"})
    absent = sorted(needed - set(counts))
    extra = sorted(strange & set(counts))
    if absent or extra:
        listed = ", ".join(f"{n} layers with {kind}" for kind, n in counts.items()) or "no layer"
        raise ParityError(
            f"TensorRT did not build what was asked: {asked}.",
            f"It built {listed}; "
            + "; ".join(
                [f"none with {kind}" for kind in absent]
                + [f"{kind} was not asked for" for kind in extra]
            )
            + ".",
            "Nothing was written. Check the file's types with `capsedge inspect`, and report this with "
            "the version of TensorRT.",
        )
