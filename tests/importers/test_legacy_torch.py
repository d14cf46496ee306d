"""Files of ``torch.save`` in the layout before PyTorch 1.6."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from capsedge.errors import ArtefactError
from capsedge.importers.weights_file import read_weights


def saved(value: Any, path: Path) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=False)
    return path


def test_weights_of_every_type(tmp_path: Path) -> None:
    whole = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    state = {
        "a": whole, "b": whole[1:, 1:], "half": torch.ones(2).half(), "double": torch.ones(3).double(),
        "whole": torch.tensor([3]), "none": torch.zeros(0), "transposed": whole.t(),
    }  # fmt: skip
    found = read_weights(saved({"epoch": 3, "model": state}, tmp_path / "m.pt")).tensors
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert np.array_equal(found[name], tensor.float().numpy()), name


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_code_is_refused_and_not_run(tmp_path: Path) -> None:
    file = saved({"model": {"a": torch.ones(2)}, "x": Evil(tmp_path / "made")}, tmp_path / "m.pt")
    with pytest.raises(ArtefactError):
        read_weights(file)
    assert not (tmp_path / "made").exists()


@pytest.mark.thorough
def test_damage_is_refused(tmp_path: Path) -> None:
    data = saved({"a": torch.ones(64), "b": torch.zeros(8)}, tmp_path / "m.pt").read_bytes()
    for length in (15, 40, 120, len(data) - 200, len(data) - 1):
        (tmp_path / "short.pt").write_bytes(data[:length])
        with pytest.raises(ArtefactError):
            read_weights(tmp_path / "short.pt")
    claimed = data.replace((64).to_bytes(8, "little"), (65).to_bytes(8, "little"))
    (tmp_path / "claimed.pt").write_bytes(claimed)
    with pytest.raises(ArtefactError, match="wrong byte size"):
        read_weights(tmp_path / "claimed.pt")


@pytest.mark.thorough
def test_noise_is_refused_or_read(tmp_path: Path) -> None:
    """Never another error."""
    data = saved({"a": torch.ones(4), "b": torch.zeros(3, 2)}, tmp_path / "m.pt").read_bytes()
    draw = random.Random(1)
    for _ in range(6):
        changed = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(15, len(data))] = draw.randrange(256)
        (tmp_path / "noise.pt").write_bytes(changed)
        try:
            read_weights(tmp_path / "noise.pt")
        except ArtefactError:
            continue


class BeforePyTorch04:
    """A tensor as PyTorch 0.3 saved it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        t = self.tensor
        return torch._utils._rebuild_tensor, (
            t._typed_storage(), t.storage_offset(), tuple(t.shape), t.stride(),
        )  # fmt: skip


def test_tensors_of_pytorch_before_0_4(tmp_path: Path) -> None:
    whole = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    state = {"a": BeforePyTorch04(whole[1:, 1:]), "b": BeforePyTorch04(whole.t())}
    found = read_weights(saved(state, tmp_path / "m.pt")).tensors
    assert np.array_equal(found["a"], whole[1:, 1:].numpy())
    assert np.array_equal(found["b"], whole.t().numpy())
