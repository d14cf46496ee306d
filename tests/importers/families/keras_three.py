"""Files as Keras 3 writes them: weights by number in ``layers/<class>/vars``, with the layer's name."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

Layer = tuple[str, Sequence[NDArray[Any]]]  # name, weights


def write(path: Path, layers: Mapping[str, Layer], named: bool = True, config: Any = None) -> Path:
    """A file ``.weights.h5`` or ``.keras``.

    Args:
        layers: by their places, such as ``sequential/dense_1``.
        named: as Keras 3.6 and later do.
        config: of a ``.keras`` archive.
    """
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for place, (name, weights) in layers.items():
            group = file.create_group(f"layers/{place.replace('/', '/layers/')}/vars")
            for k, value in enumerate(weights):
                group.create_dataset(str(k), data=value.astype(np.float32))
            if named:
                group.attrs["name"] = name
        file.create_dataset("optimizer/vars/0", data=np.int64(3))
    if path.suffix == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("metadata.json", json.dumps({"keras_version": "3.6.0"}))
            archive.writestr("config.json", json.dumps(config or {"class_name": "Functional"}))
            archive.writestr("model.weights.h5", content.getvalue())
    else:
        path.write_bytes(content.getvalue())
    return path
