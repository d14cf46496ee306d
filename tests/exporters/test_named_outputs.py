"""What a module returns becomes outputs by name, in whatever it is wrapped."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'capsedge[export]'")

import torch

from capsedge.errors import UnsupportedModelError
from capsedge.exporters.flat_module import named_outputs


@dataclass
class Result:
    score: Any
    poses: Any = None


A, B = torch.zeros(2), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (Result(A, B), ["score", "poses"]),
        (Result(A), ["score"]),
        ({"out": Result(A, [A, B])}, ["out_score", "out_poses_0", "out_poses_1"]),
        ((Result(A), B), ["output_0_score", "output_1"]),
    ],
)
def test_a_dataclass_is_like_a_dict(result: object, names: list[str]) -> None:
    assert list(named_outputs(result)) == names


@pytest.mark.parametrize("result", [Result, Result(3.0), SimpleNamespace(score=A)])
def test_other_objects_are_refused(result: object) -> None:
    with pytest.raises(UnsupportedModelError, match="Not a tensor of real numbers") as caught:
        named_outputs(result)
    assert "a dataclass" in caught.value.fix
