"""What export states about inputs: the tables that their parts index, and that rows are independent."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import Tensor, nn  # noqa: E402

import capsedge  # noqa: E402
from capsedge.errors import UnsupportedModelError, UsageError  # noqa: E402
from capsedge.exporters.export_options import ExportOptions  # noqa: E402
from capsedge.serving.served_models import (  # noqa: E402
    can_batch,
    contradiction,
)


class Columns(nn.Module):
    """A user in the first column and items in the others, weighted."""

    def __init__(self, users: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, 4), nn.Embedding(30, 4)

    def forward(self, ids: Tensor, weights: Tensor) -> Tensor:
        return self.user(ids[:, 0]) + (self.item(ids[:, 1:]) * weights[..., None]).sum(1)


@pytest.mark.thorough
@pytest.mark.parametrize("users", [5, 30])
def test_parts_of_an_input_index_different_tables(tmp_path: Path, users: int) -> None:
    example = torch.ones(2, 4, dtype=torch.int64), torch.rand(2, 3)
    path = tmp_path / "m.onnx"
    report = capsedge.export(Columns(users).eval(), path, example=example)
    told = [note for note in report.notes if "'ids'" in note]
    assert len(told) == (users == 5)
    assert all("tables of 5 to 30 entries" in note for note in told)
    with capsedge.load(path) as session:
        assert [port.entries for port in session.inputs] == [30, None]
        assert can_batch(session)
        for index, place, most in ((-1, 0, 29), (30, 2, 29), (users, 0, users - 1)):
            ids = example[0].clone()
            ids[1, place] = index
            with pytest.raises(UsageError, match=rf"Found: {index}.*expected: 0 to {most}\."):
                session.run({"ids": ids.numpy(), "weights": example[1].numpy()})


class Sensors(nn.Module):
    """A sequence and features, both floats."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.features = nn.Linear(3, 8), nn.Linear(5, 8)

    def forward(self, sequence: Tensor, features: Tensor) -> Tensor:
        return self.steps(sequence).mean(1) + self.features(features)


class Centred(Sensors):
    """Each row less the mean of all."""

    def forward(self, sequence: Tensor, features: Tensor) -> Tensor:
        rows = super().forward(sequence, features)
        return rows - rows.mean(0, keepdim=True)


@pytest.mark.thorough
def test_rows_of_floats_are_stated_to_be_independent_where_they_are(tmp_path: Path) -> None:
    example = {"sequence": torch.rand(2, 4, 3), "features": torch.rand(2, 5)}
    for free in ({}, {"sequence": [1]}):
        path = tmp_path / "m.onnx"
        capsedge.export(Sensors().eval(), path, example=example, free_axes=free)
        with capsedge.load(path) as session:
            assert [port.independent for port in session.inputs] == [True, True]
            assert can_batch(session)
            assert contradiction(session) == ""
    with pytest.raises(UnsupportedModelError, match="depends on the other images of its batch"):
        capsedge.export(Centred().eval(), tmp_path / "n.onnx", example=example)
    assert not (tmp_path / "n.onnx").exists()


@pytest.mark.thorough
def test_a_fixed_batch_states_nothing_of_rows(tmp_path: Path) -> None:
    example = torch.ones(2, 4, dtype=torch.int64), torch.rand(2, 3)
    options = ExportOptions(batch=2)
    capsedge.export(Columns(30).eval(), tmp_path / "m.onnx", options, example=example)
    with capsedge.load(tmp_path / "m.onnx") as session:
        assert not any(port.independent for port in session.inputs)
        assert not can_batch(session)
