"""Weights of every format that are not finite are named before anything is built from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from capsedge.errors import ArtefactError
from capsedge.importers.weights_file import read_weights

Stored = dict[str, NDArray[np.float32]]


def _h5(tensors: Stored, path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, tensor in tensors.items():
            file.create_dataset(f"{name}/kernel", data=tensor)
            file[name].attrs["weight_names"] = [b"kernel"]
        file.attrs["layer_names"] = [name.encode() for name in tensors]


WRITERS: dict[str, Callable[[Stored, Path], object]] = {
    "pt": lambda t, path: torch.save({k: torch.from_numpy(v) for k, v in t.items()}, path),
    "safetensors": save_file,
    "npz": lambda t, path: np.savez(path, **t),
    "h5": _h5,
}


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("ending", WRITERS)
def test_weights_that_are_not_finite_are_named(ending: str, value: float, tmp_path: Path) -> None:
    wrong = np.ones((2, 3), np.float32)
    wrong[1, 2] = value
    path = tmp_path / f"w.{ending}"
    WRITERS[ending]({"first": np.ones(4, np.float32), "second": wrong}, path)
    with pytest.raises(ArtefactError, match="are not finite") as caught:
        read_weights(path)
    (line,) = caught.value.details
    assert line.startswith("second")
    assert line.endswith(f"[2, 3]: 1 of 6, the first is {value:g} at [1, 2]")
