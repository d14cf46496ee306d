"""Export of networks over histories: inputs by name, one dict, a length that stays free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import capsedge
from capsedge.errors import ShapeError, UnsupportedModelError, UsageError
from capsedge.exporters.parity import length_cases
from capsedge.exporters.user_inputs import of_module
from tests.graph.fusion.histories import AnyLength, histories


class OneDict(nn.Module):
    """The network's ``forward`` takes a dict, as in torch-rechub."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.users = AnyLength(each=True), nn.Embedding(5, 6)

    def forward(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        found = self.network(x["hist"])
        return {"interests": found + self.users(x["user"]).reshape(-1, 1, found.shape[-1])}


@pytest.mark.thorough
def test_one_file_for_every_length(tmp_path: Path) -> None:
    module = OneDict().eval()
    example = {"hist": histories(4, 9), "user": torch.arange(4)}
    path = tmp_path / "m.onnx"
    report = capsedge.export(module, path, example=example, free_axes={"hist": [1]})
    assert report.inputs == {"hist": ["N", "L"], "user": ["N"]}
    (fused,) = report.fusion.fused
    assert fused.operator == "DynamicRouting"
    lengths = {case.case.partition(",")[0] for case in report.parity}
    assert {"uniform of length 1", "normal of length 18"} <= lengths
    with capsedge.load(path) as session:
        for length in (1, 7, 50, 120):
            given = {"hist": histories(3, length), "user": torch.tensor([4, 0, 2])}
            with torch.no_grad():
                wanted = module(given)["interests"].numpy()
            found = session.run(given)["interests"]
            np.testing.assert_allclose(found, wanted, atol=2e-6, rtol=1e-4)
    certificate = capsedge.verify(module, path)  # draws ids within the tables
    assert certificate.passed
    assert certificate.samples["images"] == 64


class Bought(nn.Module):
    """A history of clicks, and one of purchases with their weights; of at most twelve purchases."""

    def __init__(self) -> None:
        super().__init__()
        self.clicks, self.bought = AnyLength(each=True), AnyLength(each=False)
        self.places = nn.Embedding(12, 1)

    def forward(self, clicks: Tensor, bought: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        place = self.places(torch.arange(bought.shape[1]))[:, 0]
        return self.clicks(clicks), self.bought(bought) + (weights * place).sum(1)[:, None, None]


@pytest.mark.thorough
def test_one_file_for_histories_of_two_lengths(tmp_path: Path) -> None:
    """Inputs whose examples have the same size share a length; each length has its own maximum."""

    def given(batch: int, clicked: int, owned: int) -> dict[str, Tensor]:
        weights = torch.linspace(0, 1, batch * owned).reshape(batch, owned)
        return {
            "clicks": histories(batch, clicked), "bought": histories(batch, owned), "weights": weights
        }  # fmt: skip

    module, path = Bought().eval(), tmp_path / "m.onnx"
    axes = {"clicks": [1], "bought": [1], "weights": [1]}
    report = capsedge.export(module, path, example=given(4, 9, 6), free_axes=axes)
    assert report.inputs == {"clicks": ["N", "L"], "bought": ["N", "L2"], "weights": ["N", "L2"]}
    assert [f.parameters["children"] for f in report.fusion.fused] == ["L of 6", "L2 of 6"]
    lengths = {case.case.partition(",")[0] for case in report.parity}
    assert {"uniform of length 1x2", "normal of length 18x1"} <= lengths
    with capsedge.load(path) as session:
        for clicked, owned in ((1, 12), (7, 1), (50, 3), (120, 12)):
            inputs = given(3, clicked, owned)
            with torch.no_grad():
                wanted = module(**inputs)
            for found, right in zip(session.run(inputs).values(), wanted, strict=True):
                np.testing.assert_allclose(found, right.numpy(), atol=2e-6, rtol=1e-4)
        with pytest.raises(ShapeError, match="'bought' is too long for the network"):
            session.run(given(3, 7, 13))
        with pytest.raises(ShapeError, match="'bought' and 'weights' do not fit together"):
            session.run(given(3, 7, 5) | {"weights": torch.rand(3, 4)})
    assert capsedge.verify(module, path).passed


@pytest.mark.thorough
def test_weights_for_each_position_fix_the_length(tmp_path: Path) -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.place = nn.Embedding(40, 6), nn.Parameter(torch.randn(1, 9, 6))

        def forward(self, hist: Tensor) -> Tensor:
            return (self.items(hist) * self.place).sum(1)

    example = {"hist": histories(4, 9)}
    with pytest.raises(
        UnsupportedModelError, match=r"The length of hist \(9 in the example\) cannot be free"
    ):
        capsedge.export(Positions(), tmp_path / "m.onnx", example=example, free_axes={"hist": [1]})


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.layer(x)[0]
        return states


class Largest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.topk(3, dim=1).values


class LastRows(nn.Module):
    """The last rows of a table, of which all are a case of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 3, 20))

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(2, keepdim=True) * self.table[:, :, -x.shape[1] :].transpose(1, 2)


class Weighted(nn.Module):
    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        return (x * weights[..., None]).sum(1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("length", "told"),
    [
        (5, r"also that of weights \[5\], where it is not free.*\n.*let that axis of weights"),
        (1, r"a size of 1.*\n.*a longer example"),
    ],
)
def test_lengths_of_an_example_that_are_not_free(tmp_path: Path, length: int, told: str) -> None:
    example = {"x": torch.rand(2, length, 4), "weights": torch.rand(2, length)}
    axes = {"x": [1]} if length > 1 else {"x": [1], "weights": [1]}
    with pytest.raises(UnsupportedModelError, match=told):
        capsedge.export(Weighted().eval(), tmp_path / "m.onnx", example=example, free_axes=axes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "told"),
    [
        (Recurrent(), r"A recurrent layer \(GRU\) is unrolled"),
        (Largest(), "takes no length below 3"),
        (LastRows(), r"treats the length 20 differently.*\n.*torch.arange"),
    ],
)
def test_why_a_length_cannot_be_free(tmp_path: Path, module: nn.Module, told: str) -> None:
    example = {"x": torch.rand(2, 5, 4)}
    with pytest.raises(UnsupportedModelError, match=told):
        capsedge.export(module.eval(), tmp_path / "m.onnx", example=example, free_axes={"x": [1]})


class Placed(nn.Module):
    """Items beside a vector for each position up to 20, in two ways, and without an upper end."""

    def __init__(self, places: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items, self.places = nn.Embedding(40, 6), places
        self.cut, self.looked_up = nn.Parameter(torch.randn(1, 20, 6)), nn.Embedding(20, 6)

    def forward(self, hist: Tensor) -> Tensor:
        x = self.items(hist)
        if self.places == "cut":
            x = x * self.cut[:, : hist.shape[1]]
        if self.places == "looked up":
            x = x * self.looked_up(torch.arange(hist.shape[1]))
        return x.sum(1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("places", "size", "most"),
    [
        ("cut", 6, 20),
        ("cut", 2, 20),
        ("looked up", 6, 20),
        ("looked up", 2, 20),
        ("looked up", 20, 20),
        ("none", 6, 0),
    ],
)
def test_the_file_states_the_longest_length(
    tmp_path: Path, places: str, size: int, most: int
) -> None:
    """Found by trying lengths up to eight times the example's and those above tables, or by torch."""
    module, path = Placed(places).eval(), tmp_path / "m.onnx"
    report = capsedge.export(
        module, path, example={"hist": histories(4, size)}, free_axes={"hist": [1]}
    )
    assert any(case.case.startswith("uniform of length 1,") for case in report.parity)
    with capsedge.load(path) as session:
        (port,) = session.inputs
        assert port.shape == ("N", "L")
        assert port.longest == ((0, most) if most else ())
        longest = histories(3, most or 200)
        with torch.no_grad():
            wanted = module(longest).numpy()
        np.testing.assert_allclose(session.run(longest)["output"], wanted, atol=1e-6, rtol=1e-4)
        if most:
            with pytest.raises(ShapeError, match="'hist' is too long for the network"):
                session.run(histories(3, most + 1))
    assert capsedge.verify(module, path).passed


class Three(nn.Module):
    def forward(self, a: Tensor, b: Tensor | None = None, c: Tensor | None = None) -> Tensor:
        return a if c is None else a + 2 * c


def test_inputs_by_name() -> None:
    example = {"a": torch.rand(3, 4), "c": torch.rand(3, 4)}
    subject = of_module(Three(), example, None)
    assert subject.inputs == ("a", "c")
    (found,) = subject.module(*subject.example)
    assert torch.equal(found, subject.example[0] + 2 * subject.example[1])


class Echo(nn.Module):
    """Keys of inputs and outputs are the same, and nested keys may be, too."""

    def forward(self, x: dict[str, Tensor]) -> dict[str, Any]:
        return {"user": x["user"] * 2, "a": {"b": x["item"]}, "a_b": x["item"] + 1}


def test_outputs_have_names_of_their_own() -> None:
    example = {"user": torch.rand(2, 3), "item": torch.rand(2, 4)}
    subject = of_module(Echo(), example, None)
    assert subject.outputs == ("user_output", "a_b", "a_b_output")
    with pytest.raises(UsageError, match="The output name 'item' is already taken"):
        of_module(Echo(), example, None, ("p", "item", "q"))


@pytest.mark.parametrize(
    ("example", "axes", "told"),
    [
        ({"a": torch.rand(2, 4), "z": torch.rand(2, 4)}, {}, "forward has no parameter z"),
        ({"a": torch.rand(2, 4)}, {"hist": [1]}, "free_axes names the input 'hist'"),
        ({"a": torch.rand(2, 4)}, {"a": [0]}, "The input 'a' has no axis 0 that could be free"),
        ({"a": torch.rand(2, 4)}, {"a": [2]}, "The input 'a' has no axis 2 that could be free"),
    ],
)
def test_names_and_axes_that_are_not_there(
    example: dict[str, Tensor], axes: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        of_module(Three(), example, None, (), axes)


def test_examples_of_other_lengths_go_on_from_the_begin() -> None:
    example = [torch.arange(3).repeat(2, 1), torch.rand(2, 4)]
    cases = dict(length_cases(example, [(1,), ()], (2,)))
    assert [list(cases[f"uniform of length {n}, batch 2"][0][0]) for n in (1, 2, 6)] == [
        [0], [0, 1], [0, 1, 2, 0, 1, 2]
    ]  # fmt: skip
    assert cases["normal of length 7, batch 2"][1].shape == (2, 4)
    cut = dict(length_cases(example, [(1,), ()], (2,), [(0, 5), ()]))
    assert {name.partition(",")[0] for name in cut if name.startswith("normal")} == {
        f"normal of length {n}" for n in (1, 2, 5)
    }


def test_examples_of_two_lengths_differ_from_each_other() -> None:
    example = [torch.zeros(2, 3), torch.zeros(2, 8), torch.zeros(2, 4, 3)]
    cases = dict(length_cases(example, [(1,), (1,), (2,)], (2,), [(0, 0), (0, 6), (0, 0, 0)]))
    assert {
        name: [list(x.shape) for x in tensors]
        for name, tensors in cases.items()
        if "uniform" in name
    } == {
        "uniform of length 1x2, batch 2": [[2, 1], [2, 2], [2, 4, 1]],
        "uniform of length 2x6, batch 2": [[2, 2], [2, 6], [2, 4, 2]],
        "uniform of length 7x6, batch 2": [[2, 7], [2, 6], [2, 4, 7]],
        "uniform of length 6x1, batch 2": [[2, 6], [2, 1], [2, 4, 6]],
    }
