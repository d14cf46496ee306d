"""Routing that no operator has: standard operators in another form where they are faster, else as it was."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch
from torch import Tensor

from capsedge.graph.recognize import write_standard
from capsedge.graph.recognize.improving import improve
from capsedge.graph.recognize.recognition import STANDARD
from capsedge.graph.recognize.values import session_of
from tests.graph.recognize import dynamic_writings as D  # noqa: N812
from tests.graph.recognize.making import exported

FEATURES = torch.randn(3, D.CHILDREN, D.SIZE_IN, generator=torch.Generator().manual_seed(0))


class Joint(D.Writing):
    """A softmax over children and parents together, a bias, another squash."""

    def make(self) -> None:
        self.w = self.weight(D.PARENTS, D.CHILDREN, D.SIZE_OUT, D.SIZE_IN)
        self.bias = self.weight(D.PARENTS, D.SIZE_OUT)

    def route(self, u: Tensor) -> Tensor:
        votes = torch.einsum("jiop,bip->bjio", self.w, u)
        b = torch.zeros(u.shape[0], D.PARENTS, D.CHILDREN)
        for t in range(3):
            c = b.flatten(1).softmax(1).reshape(b.shape)
            s = (c[..., None] * votes).sum(2) + self.bias
            n = s.norm(dim=-1, keepdim=True)
            v = (1 - torch.exp(-n)) * s / (n + 1e-7)
            if t < 2:
                b = b + (votes * v[:, :, None]).sum(-1)
        return v


FORMS = (Joint, D.OverParents)


@pytest.mark.parametrize("writing", FORMS)
def test_it_computes_the_same(writing: type[D.Writing], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_standard, "_gain", lambda *_: 2.0)
    original = exported(writing(), FEATURES)
    improved = improve(original.SerializeToString())
    (found,) = improved.recognition.found
    assert found.operator == STANDARD
    assert "2.0 times less" in found.notes[0]
    assert not improved.recognition.left
    x = 3 * torch.randn(5, D.CHILDREN, D.SIZE_IN).numpy()
    models = (onnx.load_from_string(improved.model), original)
    new, old = (session_of(m).run(None, {"x": x})[0] for m in models)
    np.testing.assert_allclose(new, old, atol=2e-6)


def test_what_is_no_faster_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_standard, "_gain", lambda *_: 1.0)
    improved = improve(exported(Joint(), FEATURES).SerializeToString())
    assert STANDARD not in {f.operator for f in improved.recognition.found}
    assert all("children and parents together" in e.reason for e in improved.recognition.left)
