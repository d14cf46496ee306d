"""Two small networks that disagree on images whose halves are alike, and images for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.runtime.models import SIDE, capsule_model


def noisy(model: onnx.ModelProto, noise: float = 0.02, seed: int = 0) -> onnx.ModelProto:
    """The model with noise on its weights."""
    weight = next(t for t in model.graph.initializer if t.name == "weight")
    values = numpy_helper.to_array(weight)
    random = np.random.default_rng(seed).normal(size=values.shape)
    weight.CopyFrom(numpy_helper.from_array((values + noise * random).astype(np.float32), "weight"))
    return model


def written(folder: Path, name: str, model: onnx.ModelProto) -> Path:
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def pixels(count: int, seed: int = 1) -> NDArray[np.uint8]:
    """Images ``[N, H, W]`` whose halves are of random brightness."""
    rng = np.random.default_rng(seed)
    halves = rng.integers(0, 200, (count, 1, 2)).repeat(SIDE // 2, axis=2)
    return (halves + rng.integers(0, 56, (count, SIDE, SIDE))).astype(np.uint8)


def pair(folder: Path, noise: float = 0.02, **options: Any) -> tuple[Path, Path]:
    """A small and a large network, as files."""
    return (
        written(folder, "small.onnx", noisy(capsule_model(**options), noise)),
        written(folder, "large.onnx", capsule_model(**options)),
    )
