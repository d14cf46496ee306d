"""Weights in 8 and 4 bits: symmetric, one scale an output channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

LARGEST = {"int8": 127, "int4": 7}  # -128 and -8 stay unused: symmetric


def quantize(
    weight: NDArray[Any], axes: tuple[int, ...], level: str
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Weights as integers and their scales.

    INT8 covers the largest magnitude; of 4 bits' few steps the range with the least squared error is
    taken, channel by channel.

    Args:
        weight: the weight in FP32.
        axes: what shares a scale; the scale keeps them with length 1.
        level: ``int8`` or ``int4``.

    Returns:
        ``weight`` ~ ``integers * scale``; a channel of zeros has the scale 0.
    """
    w = weight.astype(np.float64)
    largest = LARGEST[level]
    top = np.abs(w).max(axis=axes, keepdims=True)
    best = top / largest
    if level == "int4":
        least = np.full(top.shape, np.inf)
        for share in np.linspace(1.0, 0.4, 25):
            scale = share * top / largest
            error = np.square(w - _round(w, scale, largest) * scale).sum(axis=axes, keepdims=True)
            best = np.where(error < least, scale, best)
            least = np.minimum(error, least)
    scale32 = best.astype(np.float32)
    return _round(w, scale32.astype(np.float64), largest).astype(np.int8), scale32


def _round(w: NDArray[np.float64], scale: NDArray[np.float64], largest: int) -> NDArray[np.float64]:
    ratio = np.divide(w, scale, out=np.zeros_like(w), where=scale > 0)
    return np.asarray(np.clip(np.rint(ratio), -largest, largest), np.float64)


def int4_tensor(name: str, values: NDArray[np.int8]) -> onnx.TensorProto:
    """An INT4 initializer: two values a byte, the first in the low half (onnx.proto, TensorProto)."""
    flat = values.reshape(-1).astype(np.uint8) & 0xF
    if len(flat) % 2:
        flat = np.append(flat, np.uint8(0))
    packed = (flat[0::2] | (flat[1::2] << 4)).astype(np.uint8)
    tensor = TensorProto(name=name, data_type=TensorProto.INT4, dims=values.shape)
    tensor.raw_data = packed.tobytes()
    return tensor
