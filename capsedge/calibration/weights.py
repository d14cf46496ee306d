"""Weights in 8 and 4 bits: symmetric, one scale per output channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

LARGEST = 127  # -128 stays unused: symmetric
LARGEST4 = 7
MULTIPLIERS = LARGEST // LARGEST4  # a 4-bit weight times this still fits 8 bits
SMALLEST_GROUP = 8  # weights that share a multiplier


def quantize(
    weight: NDArray[Any], axes: tuple[int, ...], least: NDArray[Any] | None = None
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Weights as INT8 and their scales, which cover the largest magnitude.

    Args:
        weight: the weight in FP32.
        axes: axes along which values share a scale; the scale keeps them with length 1.
        least: the smallest scales allowed; none by default.

    Returns:
        ``weight`` ~ ``integers * scale``; a channel of zeros has the scale 0.
    """
    w = weight.astype(np.float64)
    scale = (np.abs(w).max(axis=axes, keepdims=True) / LARGEST).astype(np.float32)
    if least is not None:
        scale = np.maximum(scale, least).astype(np.float32)
    return _steps(w, scale).round().clip(-LARGEST, LARGEST).astype(np.int8), scale


def quantize4(
    weight: NDArray[Any], scale: NDArray[np.float32]
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """4-bit weights that give INT8 weights of a given scale: ``four * multiplier``.

    The multiplier is a small integer, shared along the last two axes (the elements of a kernel or of a pose
    matrix), so that a group of small weights keeps small steps although its channel has one scale. The
    multiplier with the least squared error is chosen.

    Returns:
        ``four`` in -7..7, and the multipliers, with length 1 along the shared axes.
    """
    steps = _steps(weight.astype(np.float64), scale)
    axes = tuple(range(steps.ndim - 2, steps.ndim))
    while np.prod([steps.shape[k] for k in axes]) < SMALLEST_GROUP and axes[0] > 1:
        axes = (axes[0] - 1, *axes)
    best = np.ones([1 if k in axes else n for k, n in enumerate(steps.shape)])
    least = np.full(best.shape, np.inf)
    for multiplier in range(1, MULTIPLIERS + 1):
        four = (steps / multiplier).round().clip(-LARGEST4, LARGEST4)
        error = np.square(steps - four * multiplier).sum(axis=axes, keepdims=True)
        best = np.where(error < least, multiplier, best)
        least = np.minimum(error, least)
    four = (steps / best).round().clip(-LARGEST4, LARGEST4)
    return four.astype(np.int8), best.astype(np.int8)


def _steps(w: NDArray[np.float64], scale: NDArray[np.float32]) -> NDArray[np.float64]:
    exact = np.broadcast_to(scale.astype(np.float64), w.shape)
    return np.divide(w, exact, out=np.zeros_like(w), where=exact > 0)


def int4_tensor(name: str, values: NDArray[np.int8]) -> onnx.TensorProto:
    """An INT4 initializer: two values per byte, the first in the low half (onnx.proto, TensorProto)."""
    flat = values.reshape(-1).astype(np.uint8) & 0xF
    if len(flat) % 2:
        flat = np.append(flat, np.uint8(0))
    packed = (flat[0::2] | (flat[1::2] << 4)).astype(np.uint8)
    tensor = TensorProto(name=name, data_type=TensorProto.INT4, dims=values.shape)
    tensor.raw_data = packed.tobytes()
    return tensor
