"""Modules with traps: a free batch where there is one, an answer about the module elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import capsedge
from capsedge.errors import UnsupportedModelError
from tests.exporters.own_nets import CHILDREN, PARENTS, Own, squash


class _Routed(Own):
    def routes(self, x: Tensor) -> Tensor:
        return self.routed(self.votes(x), torch.zeros(x.size(0), CHILDREN, PARENTS))


class SqueezedByRank(_Routed):
    def forward(self, x: Tensor) -> Tensor:
        v = self.routes(x).unsqueeze(1).squeeze()
        return v.unsqueeze(0) if v.dim() == 2 else v


class SqueezedBySize(_Routed):
    def forward(self, x: Tensor) -> Tensor:
        v = torch.squeeze(self.routes(x)[..., None])
        if x.size(0) == 1:
            v = v[None]
        return v.norm(dim=-1)


class _Squash(nn.Module):
    def forward(self, s: Tensor) -> Tensor:
        s = s.squeeze()
        return squash(s[None] if len(s.shape) < 3 else s)


class SqueezedInside(_Routed):
    def __init__(self) -> None:
        super().__init__()
        self.inner = _Squash()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.routes(x)[:, None]).norm(dim=-1)


class WritesIntoItsInput(_Routed):
    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5).div_(0.5)
        return self.routes(x).norm(dim=-1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind", [SqueezedByRank, SqueezedBySize, SqueezedInside, WritesIntoItsInput]
)
def test_the_batch_stays_and_the_routing_is_found(kind: type[nn.Module], tmp_path: Path) -> None:
    example = torch.rand(2, 4)
    before = example.clone()
    report = capsedge.export(kind(), tmp_path / "x.onnx", example=example)
    assert report.inputs["x"][0] == "N"
    assert [f.operator for f in report.fusion.fused][:1] == ["DynamicRouting"]
    assert max(p.reference_error for p in report.parity) == 0  # no allowance was needed
    assert torch.equal(example, before)


class Codes(nn.Module):
    """Indices as floats."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.long()).mean(1)


@pytest.mark.thorough
def test_hard_inputs_stay_within_the_table(tmp_path: Path) -> None:
    rows = torch.from_numpy(np.random.default_rng(0).integers(0, 30, (4, 7)))
    whole = capsedge.export(Codes(), tmp_path / "x.onnx", example=rows)
    assert len(whole.parity) == 24
    floats = capsedge.export(Codes(), tmp_path / "x.onnx", example=rows.float())
    assert any(p.case.startswith("within your example") for p in floats.parity)
    (note,) = [n for n in floats.notes if "does not take" in n]
    assert "huge" in note
    assert "return self.table(x.long()).mean(1)" in note


class NotANumberAtZero(_Routed):
    def forward(self, x: Tensor) -> Tensor:
        return self.routes(x).norm(dim=-1) / x.sum(1, keepdim=True)


@pytest.mark.thorough
def test_what_the_module_itself_cannot_tell_is_left_out(tmp_path: Path) -> None:
    report = capsedge.export(NotANumberAtZero(), tmp_path / "x.onnx", example=torch.rand(2, 4))
    assert any("zero (it gives values that are NaN or infinite)" in n for n in report.notes)
    assert not any(p.case.startswith("zero") for p in report.parity)


class ComplexOut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(x)


class ThroughNumpy(_Routed):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(np.clip(self.routes(x).numpy(), 0, 1))


class States(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(2, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states = self.layer(x.view(-1, 2, 2))[0]
        return states.reshape(len(states), -1)


class Packed(States):
    def forward(self, x: Tensor) -> Tensor:
        lengths = (x[:, 0] > 0.5).long() + 1
        packed = pack_padded_sequence(x.view(-1, 2, 2), lengths, True, enforce_sorted=False)
        return self.layer(packed)[1][0]


class NoSuchOperator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.svd(x.reshape(-1, 2, 2))[1]


class Training(_Routed):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)

    def forward(self, x: Tensor) -> Tensor:
        self.norm.train()
        return self.routes(self.norm(x.view(-1, 1, 2, 2)).view(-1, 4))


class Ends(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise SystemExit(3)


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> None:
        x.sum()


_REFUSED = {
    ComplexOut: ("complex numbers", "torch.view_as_real"),
    ThroughNumpy: ("np.clip(self.routes(x).numpy(), 0, 1)", "torch's functions"),
    Packed: ("its code packs sequences", "the padded input"),
    NoSuchOperator: ("aten._linalg_svd", "torch.linalg.svd(x.reshape(-1, 2, 2))"),
    Training: ("BatchNorm in training", "self.norm(x.view(-1, 1, 2, 2))"),
    Ends: ("SystemExit: 3", "raise SystemExit(3)"),
    Nothing: ("forward returns nothing", "Return a tensor"),
}


@pytest.mark.thorough
def test_each_refusal_says_why_and_where(tmp_path: Path) -> None:
    wrong = []
    for kind, words in _REFUSED.items():
        try:
            capsedge.export(kind(), tmp_path / "x.onnx", example=torch.rand(2, 4))
            wrong.append(f"{kind.__name__} is exported")
        except UnsupportedModelError as error:
            wrong += [f"{kind.__name__}: no '{w}' in {error}" for w in words if w not in str(error)]
    assert not wrong
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.thorough
def test_len_of_what_a_layer_returns_is_a_plain_number(tmp_path: Path) -> None:
    report = capsedge.export(States().eval(), tmp_path / "x.onnx", example=torch.rand(2, 4))
    assert report.inputs["x"][0] == 1
    assert any("x.shape[0] in place of len(x)" in note for note in report.notes)


class FallsBack(_Routed):
    """Catches whatever the conversion of the batch raises, and takes another path."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            count = len(x)
        except Exception:
            return self.routes(x).norm(dim=-1) * 2
        return self.routes(x).norm(dim=-1).reshape(count, -1)


@pytest.mark.thorough
def test_a_module_that_catches_the_end_of_its_capture_takes_no_other_path(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, path, example = FallsBack().eval(), tmp_path / "x.onnx", torch.rand(2, 4)
    report = capsedge.export(module, path, example=example)
    batch = report.inputs["x"][0]
    given = example if batch == "N" else example[:1]
    (found,) = capsedge.load(path).run(given.numpy()).values()
    np.testing.assert_allclose(found, module(given).detach().numpy(), atol=1e-5)


@pytest.mark.thorough
def test_stages_are_told(tmp_path: Path) -> None:
    said: list[str] = []
    capsedge.export(
        SqueezedByRank(), tmp_path / "x.onnx", example=torch.rand(2, 4), progress=said.append
    )
    assert said == [
        "step 1 of 5: running the module on the example",
        "step 2 of 5: capturing it as a graph",
        "step 3 of 5: looking for routing",
        "step 4 of 5: proving what replaces it",
        "step 5 of 5: comparing with PyTorch on 24 inputs",
    ]
