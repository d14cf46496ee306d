"""Routing that no operator has: standard operators in another form where they are faster, else as it was."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch

from capsedge.graph.fusion import standard
from capsedge.graph.fusion.execution import session_of
from capsedge.graph.fusion.matcher import STANDARD
from capsedge.graph.fusion.optimize_graph import optimize_model
from tests.graph.fusion import dynamic_writings as D  # noqa: N812
from tests.graph.fusion import grouped_writings as G  # noqa: N812
from tests.graph.fusion.making import exported

BOTH = ("script", pytest.param("dynamo", marks=pytest.mark.slow))
FEATURES = torch.randn(3, D.CHILDREN, D.SIZE_IN, generator=torch.Generator().manual_seed(0))


FORMS = (
    *(G.Elements, G.ElementsOverParents, G.Joint, G.SquashedTogether),
    *(D.OverParents, D.PerElement, D.OneMoreThanLength),
)


REASONS = {
    G.Elements: "one logit for each element",
    G.ElementsOverParents: "one logit for each element",
    G.Joint: "children and parents together",
    G.SquashedTogether: "poses of all positions together",
    D.OverParents: "squash over the parents",
    D.OneMoreThanLength: "the squash s/(1 + n)",
    D.PerElement: "one logit for each element",
}


def examples(writing: type, batch: int) -> torch.Tensor:
    if issubclass(writing, G.Map):
        return writing.example(batch)
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, D.CHILDREN, D.SIZE_IN, generator=generator)


def check_equal(data: bytes, original: onnx.ModelProto, writing: type) -> None:
    x = 3 * examples(writing, 5).numpy()
    new, old = (
        session_of(m).run(None, {"x": x})[0] for m in (onnx.load_from_string(data), original)
    )
    np.testing.assert_allclose(new, old, atol=2e-6)


@pytest.mark.sample(3)
@pytest.mark.parametrize("exporter", BOTH)
@pytest.mark.parametrize("writing", FORMS)
def test_it_computes_the_same(
    writing: type, exporter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standard, "estimated_gain", lambda *_: 2.0)
    original = exported(writing(), examples(writing, 3), exporter)
    improved = optimize_model(original.SerializeToString())
    (found,) = improved.fusion.fused
    assert found.operator == STANDARD
    assert "2.0 times faster by estimate" in found.notes[0]
    assert REASONS[writing] in found.notes[0]
    assert not improved.fusion.not_fused
    assert improved.batch == "free"
    check_equal(improved.model, original, writing)


@pytest.mark.sample(3)
@pytest.mark.parametrize("writing", FORMS)
def test_what_is_no_faster_is_left(writing: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard, "estimated_gain", lambda *_: 1.0)
    improved = optimize_model(exported(writing(), examples(writing, 3)).SerializeToString())
    assert STANDARD not in {f.operator for f in improved.fusion.fused}
    assert improved.fusion.not_fused
    for left in improved.fusion.not_fused:
        assert REASONS[writing] in left.reason
        assert left.reason.endswith("would not be clearly faster")


@pytest.mark.thorough
@pytest.mark.parametrize("exporter", BOTH)
def test_a_softmax_over_parents_and_positions_becomes_an_operator(exporter: str) -> None:
    original = exported(G.OverPositions(), G.Map.example(3), exporter)
    improved = optimize_model(original.SerializeToString())
    (found,) = improved.fusion.fused
    assert found.operator == "VoteRouting"
    assert found.parameters["parents"] == f"{D.PARENTS * G.SIDE**2} of {D.SIZE_OUT}"
    assert found.parameters["bias"] == "of the file"
    assert not improved.fusion.not_fused
    check_equal(improved.model, original, G.OverPositions)


@pytest.mark.parametrize(
    ("writing", "children", "parents", "size", "faster"),
    [
        pytest.param(G.ElementsOverParents, 10, 2, 4, False, id="small"),
        pytest.param(G.Elements, 10, 2, 4, True, id="forensics"),
        pytest.param(G.Elements, 300, 10, 16, True, id="large", marks=pytest.mark.slow),
    ],
)
def test_the_estimate_tells_what_is_worth_it(
    writing: type,
    children: int,
    parents: int,
    size: int,
    faster: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few elements cost nodes, many cost memory: what saves neither is left."""
    for name, value in {"CHILDREN": children, "PARENTS": parents, "SIZE_OUT": size}.items():
        monkeypatch.setattr(G, name, value)
        monkeypatch.setattr(D, name, value)
    improved = optimize_model(exported(writing(), examples(writing, 3)).SerializeToString())
    assert (STANDARD in {f.operator for f in improved.fusion.fused}) == faster


@pytest.mark.thorough
def test_votes_of_elements_are_one_product_for_each_child() -> None:
    """Not one for each image, parent and child, as Capsule-Forensics has them; its squash has an operator."""
    original = exported(G.Elements(), examples(G.Elements, 3))
    improved = optimize_model(original.SerializeToString())
    graph = onnx.load_from_string(improved.model).graph
    shapes = {t.name: list(t.dims) for t in graph.initializer}
    weights = [shapes.get(n.input[1], []) for n in graph.node if n.op_type == "MatMul"]
    assert [D.CHILDREN, D.SIZE_IN, D.PARENTS * D.SIZE_OUT] in weights
    assert sum(n.op_type.startswith("Squash") for n in graph.node) == G.Elements.passes
    check_equal(improved.model, original, G.Elements)
