"""What export states about inputs: the tables that their parts index, and that rows are independent."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import Tensor, nn  # noqa: E402

import capsedge  # noqa: E402
from capsedge.errors import UsageError  # noqa: E402
from capsedge.exporters.export_options import ExportOptions  # noqa: E402
from capsedge.serving.served_models import can_batch  # noqa: E402


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


@pytest.mark.thorough
def test_a_fixed_batch_states_nothing_of_rows(tmp_path: Path) -> None:
    example = torch.ones(2, 4, dtype=torch.int64), torch.rand(2, 3)
    options = ExportOptions(batch=2)
    capsedge.export(Columns(30).eval(), tmp_path / "m.onnx", options, example=example)
    with capsedge.load(tmp_path / "m.onnx") as session:
        assert not any(port.independent for port in session.inputs)
        assert not can_batch(session)
