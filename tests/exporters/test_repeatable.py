"""A module whose answers are drawn is refused with the line that draws, whatever the batch."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import capsedge
from capsedge.errors import UnsupportedModelError


class Net(nn.Module):
    """One layer; ``drawn`` says what is drawn in forward."""

    def __init__(self, drawn: str) -> None:
        super().__init__()
        self.layer, self.drawn = nn.Linear(8, 4), drawn
        self.drop = self.sparse = nn.Dropout(0.3)
        self.generator = np.random.default_rng(0)
        self.register_buffer("kept", torch.randn(4))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        match self.drawn:
            case "logits":  # as MIND draws them
                return torch.randn(x.size(0), 4).softmax(1) * y
            case "init":
                nn.init.normal_(self.count)
                return y + self.count
            case "forgotten":
                return F.dropout(y, 0.5)
            case "switched on":
                self.drop.train()
                return self.drop(y)
            case "training":
                self.train()
                return self.sparse(y)
            case "gate":
                return y * (torch.rand_like(y) > 0.2)
            case "gumbel":
                return F.gumbel_softmax(y, dim=-1)
            case "numpy":
                return y + float(self.generator.random())
            case "python":
                return y * random.random()
            case "seeded":
                torch.manual_seed(0)
                return y + torch.randn(4)
            case "generator":
                return y + torch.randn(4, generator=torch.Generator().manual_seed(3))
            case "state":
                self.count.add_(1)
                return y + self.count
        torch.randn(3)  # unused
        return self.drop(F.dropout(y, 0.5, training=self.training)) + self.kept


# Of each, words of the line and of the way out.
DRAWING = {
    "logits": ("torch.randn(x.size(0), 4)", "register_buffer"),
    "init": ("nn.init.normal_", "register_buffer"),
    "forgotten": ("F.dropout(y, 0.5)", "training=self.training"),
    "switched on": ("self.drop(y)", "training=self.training"),
    "training": ("self.sparse(y)", "unless forward calls .train()"),
    "gate": ("rand_like", "register_buffer"),
    "gumbel": ("gumbel_softmax", "if self.training"),
    "numpy": ("default_rng", "register_buffer"),
    "python": ("np.random", "register_buffer"),  # the first line of the class that may draw
    "seeded": ("torch.randn(4)", "register_buffer"),
    "generator": ("torch.randn(4, generator", "register_buffer"),
    "state": ("the buffer 'count'", "if self.training"),
}


def test_what_is_drawn_is_refused_with_its_line(tmp_path: Path) -> None:
    wrong = []
    for drawn, words in DRAWING.items():
        for batch in (None, 1, 3):
            path = tmp_path / "net.onnx"
            try:
                capsedge.export(
                    Net(drawn),
                    path,
                    example=torch.zeros(2, 8),
                    batch=batch,
                )
            except UnsupportedModelError as error:
                said = str(error)
                wrong += [(drawn, batch, said) for w in words if w not in said]
            else:
                wrong.append((drawn, batch, "exported"))
            assert not path.exists()
    assert wrong == []


@pytest.mark.thorough
def test_what_is_drawn_once_or_in_training_alone_is_exported(tmp_path: Path) -> None:
    report = capsedge.export(Net(""), tmp_path / "net.onnx", example=torch.zeros(2, 8))
    assert report.passed
    assert not {"Dropout", "RandomNormal"} & set(report.operators)


@pytest.mark.thorough
def test_verify_and_the_callers_generator(tmp_path: Path) -> None:
    """Verify refuses it as well; the caller's own random numbers are what they were."""
    path = tmp_path / "net.onnx"
    capsedge.export(Net(""), path, example=torch.zeros(2, 8))
    drawing = Net("gate")
    torch.manual_seed(5)
    wanted = torch.randn(2)
    torch.manual_seed(5)
    with pytest.raises(UnsupportedModelError, match="draws random numbers"):
        capsedge.verify(drawing, path)
    assert torch.equal(torch.randn(2), wanted)
