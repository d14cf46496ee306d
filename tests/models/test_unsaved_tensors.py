"""Values that a module computes with and that its weights file does not hold."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from capsedge.errors import UnsupportedModelError
from capsedge.models.user.example_inputs import TakesNames
from capsedge.models.user.module import UserModuleSpec, load_user_module

CODE = """
import random
from dataclasses import replace
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.set_up()
    def forward(self, x):
        return self.after(self.layer(x))

class Listed(Base):
    def set_up(self):
        self.branches = [nn.Linear(4, 2), nn.Linear(4, 2)]
    def after(self, x):
        return self.branches[0](x) + self.branches[1](x)

class Plain(Base):
    def set_up(self):
        self.W = torch.randn(4, 2)
    def after(self, x):
        return x @ self.W

class NotPersistent(Base):
    def set_up(self):
        self.register_buffer("start", torch.randn(4), persistent=False)
    def after(self, x):
        return x + self.start

class FromNumpy(Base):
    def set_up(self):
        self.table = {"keys": (np.random.rand(4).astype("f4"),)}
    def after(self, x):
        return x * torch.from_numpy(self.table["keys"][0])

class Copied(FromNumpy):
    def after(self, x):
        return x * torch.tensor(self.table["keys"][0])

class Holder:
    def __init__(self):
        self.mask = torch.tensor([random.random() for _ in range(4)])

class Nested(Base):
    def set_up(self):
        self.holder = Holder()
    def after(self, x):
        return x * self.holder.mask

class Lazy(Base):
    def set_up(self):
        self.late = None
    def after(self, x):
        if self.late is None:
            self.late = torch.randn(4)
        return x * self.late

OUTSIDE = torch.randn(4)

class Global(Base):
    def set_up(self):
        pass
    def after(self, x):
        return x * OUTSIDE

class FixedBatch(Plain):
    def set_up(self):
        super().set_up()
        self.batch_size = 7
    def after(self, x):
        return x.view(7, 4) @ self.W

class Constant(Base):
    def set_up(self):
        self.places = torch.linspace(0, 1, 4)
        self.seeded = torch.from_numpy(np.random.RandomState(0).rand(4).astype("f4"))
        self.unused = torch.randn(4)
        self.tied = self.layer.weight
        self.drop = nn.Dropout(0.5)
    def after(self, x):
        y = self.drop(x) + self.places * self.seeded + torch.zeros(4) + torch.tensor(2.0)
        return y + self.tied.sum()

class Cached(Base):
    def set_up(self):
        self.cache = {}
    def after(self, x):
        if len(x) not in self.cache:
            self.cache[len(x)] = torch.arange(len(x)).float()[:, None]
        return x + self.cache[len(x)]

class Normed(Base):
    def set_up(self):
        self.layer = nn.utils.weight_norm(self.layer)
    def after(self, x):
        return x
"""
NAMED = {
    "Listed": "branches[0].weight [2, 4]",
    "Plain": "W [4, 2]",
    "NotPersistent": "start [4]",
    "FromNumpy": "table['keys'][0] [4]",
    "Copied": "table['keys'][0] [4]",
    "Nested": "holder.mask [4]",
    "Lazy": "late [4]",
    "Global": "a tensor without a name [4]",
    "FixedBatch": "W [4, 2]",
}


def loaded(name: str, tmp_path: Path):  # type: ignore[no-untyped-def]
    code = tmp_path / "net_of_test.py"
    code.write_text(CODE)
    made = load_user_module(UserModuleSpec(f"{code}:{name}"))
    torch.save(made.module.state_dict(), tmp_path / "w.pt")
    return load_user_module(UserModuleSpec(f"{code}:{name}", str(tmp_path / "w.pt")))


@pytest.mark.parametrize("name", NAMED)
def test_what_the_file_does_not_hold_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"that w\.pt does not hold") as caught:
        loaded(name, tmp_path).check_saved([torch.rand(2, 3)])
    assert caught.value.details[0].startswith(f"{NAMED[name]} (net_of_test.py:"), caught.value
    assert "register_buffer" in caught.value.fix


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Constant", "Cached", "Normed"])
def test_what_is_equal_each_time_is_silent(name: str, tmp_path: Path) -> None:
    loaded(name, tmp_path).check_saved([torch.rand(2, 3)])


def test_random_numbers_go_on_as_if_no_module_had_been_built(tmp_path: Path) -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seed() -> None:
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)

    seed()
    expected = drawn()
    seed()
    loaded("Constant", tmp_path).check_saved([torch.rand(2, 3, generator=torch.Generator())])
    assert drawn() == expected


ONCE = """
class Once(Plain):
    def __init__(self):
        if hasattr(torch, "_made_by_test"):
            raise RuntimeError("there is one already")
        torch._made_by_test = True
        super().__init__()
"""
GROWING = """
import itertools
COUNT = itertools.count()
class Growing(Plain):
    def set_up(self):
        super().set_up()
        torch._made_by_test = size = getattr(torch, "_made_by_test", 0) + 1
        self.extra = nn.Linear(size, 1)
"""
IMPORTED_ONCE = """
if hasattr(torch, "_made_by_test"):
    raise ImportError("imported already")
torch._made_by_test = True
instance = Global()
"""
UNCHECKED = {
    "Once": (
        ONCE,
        "it cannot be created twice (RuntimeError: there is one already; net_of_test.py:",
    ),
    "Growing": (GROWING, "it has other tensors when it is created a second time ("),
    "Global": (IMPORTED_ONCE, "its code cannot be imported twice (ImportError: imported already; "),
    "instance": (
        IMPORTED_ONCE,
        "its code cannot be imported twice (ImportError: imported already; ",
    ),
}


@pytest.mark.parametrize("name", UNCHECKED)
def test_what_cannot_be_built_twice_is_noted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, why = UNCHECKED[name]
    code = tmp_path / "net_of_test.py"
    code.write_text(CODE + more)
    monkeypatch.setattr(torch, "_made_by_test", True, raising=False)  # so that it is removed
    monkeypatch.delattr(torch, "_made_by_test")
    made = load_user_module(UserModuleSpec(f"{code}:{name}"))
    torch.save(made.module.state_dict(), tmp_path / "w.pt")
    del torch._made_by_test  # type: ignore[attr-defined]
    own = load_user_module(UserModuleSpec(f"{code}:{name}", str(tmp_path / "w.pt")))
    (note,) = own.check_saved([torch.rand(2, 3)])
    assert note.startswith(f"not checked whether w.pt holds all tensors: {why}"), note


def test_a_module_that_takes_no_batch_is_noted(tmp_path: Path) -> None:
    (note,) = loaded("Plain", tmp_path).check_saved([torch.rand(2, 5)])
    assert "it takes none of the batches that were tried (RuntimeError: mat1 and mat2" in note


def test_inputs_by_name_keep_the_names_of_attributes(tmp_path: Path) -> None:
    own = loaded("Plain", tmp_path)
    with pytest.raises(UnsupportedModelError) as caught:
        replace(own, module=TakesNames(own.module, ["x"], keywords=True)).check_saved(
            [torch.rand(2, 3)]
        )
    assert caught.value.details[0].startswith("W [4, 2]")
