"""The precision that was asked for, and the one that TensorRT built: read back, never assumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import onnx

from capsedge.errors import ParityError, UsageError
from capsedge.runtime.backends.engine_layers import Layer, computing
from capsedge.runtime.passport import PRECISIONS

# What a file of each precision must and may compute in; FP32 is everywhere for what has to stay in it.
_NEEDED = {"fp32": {"FP32"}, "fp16": {"FP16"}, "int8": {"INT8"}, "mixed": {"FP16", "INT8"}}
_STRANGE = {"fp32": {"FP16", "BF16", "FP8", "INT8"}, "fp16": {"INT8", "FP8"}}
_COUNTED = {"FP32", "FP16", "BF16", "FP8", "INT8"}


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


def count(layers: Iterable[Layer]) -> dict[str, int]:
    """How many computing layers have data of each floating-point or INT8 type."""
    counts: Counter[str] = Counter()
    for layer in computing(layers):
        counts.update(layer.types & _COUNTED)
    return dict(sorted(counts.items()))


def count_products(layers: Iterable[Layer]) -> dict[str, int]:
    """How many convolutions and matrix products compute with inputs of each type."""
    counts: Counter[str] = Counter()
    for layer in layers:
        if layer.is_product:
            counts.update(layer.input_types & _COUNTED)
    return dict(sorted(counts.items()))


def compare(asked: str, layers: Sequence[Layer]) -> None:
    """Check that the engine has the requested precision.

    INT8 means a convolution or a matrix product with INT8 inputs: a quantizer alone has INT8 data too, and
    computes nothing.

    Raises:
        ParityError: a type that was asked for is not in the engine, or one that was not is.
    """
    counts, products = count(layers), count_products(layers)
    found = {kind for kind in counts if kind != "INT8"} | ({"INT8"} & set(products))
    absent = sorted(_NEEDED[asked] - found)
    extra = sorted(_STRANGE.get(asked, {"FP8"}) & set(counts))
    if not absent and not extra:
        return
    words = [
        "none with INT8 inputs among the convolutions and matrix products"
        if kind == "INT8"
        else f"none with {kind}"
        for kind in absent
    ] + [f"{kind} was not requested" for kind in extra]
    unknown = sum(not layer.types for layer in computing(layers))
    if unknown:
        words.append(f"TensorRT does not report the types of {unknown} layers")
    listed = ", ".join(f"{n} layers with {kind}" for kind, n in counts.items()) or "no layer"
    raise ParityError(
        f"TensorRT did not build the requested precision: {asked}.",
        f"It built {listed}; {'; '.join(words)}.",
        "Nothing was written. Check the file's types with `capsedge inspect`, and report this with "
        "the version of TensorRT.",
    )
