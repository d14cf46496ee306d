"""Keras files as the versions of Keras write them, made with h5py alone."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

LAYERS = {
    "conv1": {
        "kernel": np.arange(36, dtype=np.float32).reshape(3, 3, 1, 4),
        "bias": np.ones(4, np.float32),
    },
    "capsule": {"W": np.arange(24, dtype=np.float32).reshape(2, 3, 4)},
}
CONFIG = {
    "class_name": "Model",
    "config": {
        "layers": [{"class_name": "Lambda", "config": {"name": "scale", "function": ["x"]}}]
    },
}


def keras2(path: Path, whole: bool = True, text: type = bytes, **storing: Any) -> Path:
    """A whole model, or its weights alone; text as byte strings (Keras 1 and 2) or strings (Keras 2.4)."""

    def words(*given: str) -> list[Any]:
        return [w.encode() if text is bytes else w for w in given]

    with h5py.File(path, "w") as file:
        group = file
        file.attrs["keras_version"], file.attrs["backend"] = words("2.2.4", "tensorflow")
        if whole:
            file.attrs["model_config"] = words(json.dumps(CONFIG))[0]
            group = file.create_group("model_weights")
            file.create_dataset("optimizer_weights/Adam/iterations:0", data=np.int64(3))
        group.attrs["layer_names"] = words(*LAYERS, "relu")
        group.create_group("relu").attrs["weight_names"] = np.zeros(0)
        for layer, weights in LAYERS.items():
            inner = group.create_group(layer)
            inner.attrs["weight_names"] = words(*(f"{layer}/{w}:0" for w in weights))
            for name, value in weights.items():
                inner.create_dataset(f"{layer}/{name}:0", data=value, **storing)
    return path


def keras3(path: Path | io.BytesIO, base: str = "layers") -> None:
    """Weights of Keras 3."""
    with h5py.File(path, "w") as file:
        for layer, weights in LAYERS.items():
            for number, value in enumerate(weights.values()):
                file.create_dataset(f"{base}/{layer}/vars/{number}", data=value)
            file[f"{base}/{layer}"].attrs["name"] = layer
        file.create_dataset("optimizer/vars/0", data=np.int64(3))


def archive(
    path: Path, method: int = zipfile.ZIP_STORED, config: Mapping[str, Any] = CONFIG
) -> Path:
    """A ``.keras`` archive."""
    weights = io.BytesIO()
    keras3(weights)
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("metadata.json", json.dumps({"keras_version": "3.3.3"}))
        made.writestr("config.json", json.dumps(config))
        made.writestr("model.weights.h5", weights.getvalue())
    return path
