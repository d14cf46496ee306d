"""Examples of inputs: names, types, free axes, and whole numbers within the tables that they look up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from capsedge.errors import UsageError
from capsedge.models.user.example_inputs import in_order_of, read_example, takes_dict


class Histories(nn.Module):
    """Looks up items and users, as recommenders do; the other inputs index nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.user = nn.Embedding(30, 4), nn.Embedding(5, 4)
        self.age = nn.Parameter(torch.zeros(9, 4))

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        rows = self.item(x["hist"].long()).sum(1) + self.user(x["user"].long())
        return rows + self.age[x["age"].long()] + x["mask"].sum(1, keepdim=True)


class Ordered(nn.Module):
    def forward(self, a: Tensor, b: Tensor | None = None, c: Tensor | None = None) -> Tensor:
        return a if c is None else a + 2 * c


TEXT = "hist:*6:int64,user:int64,age:int32,mask:6:float32"


def test_names_types_and_free_axes() -> None:
    found = read_example(TEXT, Histories())
    assert isinstance(found.tensors, dict)
    shapes = {name: (list(t.shape), t.dtype) for name, t in found.tensors.items()}
    assert shapes == {
        "hist": ([8, 6], torch.int64),
        "user": ([8], torch.int64),
        "age": ([8], torch.int32),
        "mask": ([8, 6], torch.float32),
    }
    assert found.free_axes == {"hist": (1,)}


def test_whole_numbers_cover_their_table_and_no_more() -> None:
    found = read_example(TEXT, Histories()).tensors
    assert isinstance(found, dict)
    for name, entries in {"hist": 30, "user": 5, "age": 9}.items():
        assert (int(found[name].min()), int(found[name].max())) == (0, entries - 1)
    lengths = (found["hist"] > 0).sum(1)
    assert lengths[-2] == 0  # an empty history
    assert len(set(lengths.tolist())) > 3
    with torch.no_grad():
        assert Histories()(found).shape == (8, 4)


def test_plain_shapes_are_as_ever() -> None:
    found = read_example("1x4x4,10", Ordered())
    assert isinstance(found.tensors, tuple)
    assert [list(t.shape) for t in found.tensors] == [[2, 1, 4, 4], [2, 10]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hist",
        "hist:user:3",
        "*50",
        "hist:0:int64",
        "a:3,",
        "a:3:int65",
        "2a:3",
        "a:3:float16",
        f"hist:{'9' * 5000}:int64",
        "hist:٣:int64",
        "3x" * 30 + "3",
        "9999999999x9999999999",
        "²",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not the shape of an input"):
        read_example(text, Ordered())


@pytest.mark.parametrize("text", ["a:3,4", "a:3,a:4"])
def test_every_input_has_a_name_or_none(text: str) -> None:
    with pytest.raises(UsageError, match="not all named"):
        read_example(text, Ordered())


def test_arrays_of_a_file_are_the_keys_of_a_dict(tmp_path: Path) -> None:
    arrays = {"hist": np.zeros((3, 6), np.int64), "user": np.zeros(3, np.int64)}
    np.savez(tmp_path / "x.npz", **arrays)
    found = read_example(str(tmp_path / "x.npz"), Histories()).tensors
    assert isinstance(found, dict)
    assert list(found) == ["hist", "user"]
    np.savez(tmp_path / "y.npz", a=np.ones((2, 3), np.float32), other=np.ones(2))
    assert isinstance(read_example(str(tmp_path / "y.npz"), Ordered()).tensors, tuple)


def test_a_reference_takes_the_inputs_of_the_file() -> None:
    given = {
        "hist": torch.ones(2, 6, dtype=torch.int64), "user": torch.zeros(2, dtype=torch.int64),
        "age": torch.zeros(2, dtype=torch.int64), "mask": torch.ones(2, 6),
    }  # fmt: skip
    module = Histories()
    with torch.no_grad():
        wanted = module(given)
        found = in_order_of(module, list(given))(*given.values())
    assert torch.equal(found, wanted)
    assert in_order_of(Ordered(), ["other"]) is not None
    # One input of another name, as other tools name them, is no dict.
    plain: Any = nn.Linear(3, 3)
    assert takes_dict(plain, ["onnx_input"])
    assert in_order_of(plain, ["onnx_input"]) is plain
