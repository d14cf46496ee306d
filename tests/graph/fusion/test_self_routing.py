"""Self-routing is written with fewer products, and computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch

from capsedge.graph.fusion import self_routing
from capsedge.graph.fusion.execution import session_of
from capsedge.graph.fusion.matcher import STANDARD, apply_replacements, find_replacements
from capsedge.graph.fusion.optimize_graph import OptimizedGraph, optimize_model
from capsedge.graph.fusion.standard import NO_FASTER
from tests.graph.fusion.making import exported
from tests.graph.fusion.self_routing_writings import SIDE, SelfRoutedNetwork


def examples(batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, 3, SIDE, SIDE, generator=generator)


def optimized(network: SelfRoutedNetwork) -> OptimizedGraph:
    """The optimized file, compared with the network at two batches."""
    improved = optimize_model(exported(network, examples(3)).SerializeToString())
    session = session_of(onnx.load_from_string(improved.model))
    for batch in (1, 5):
        with torch.no_grad():
            wanted = network(examples(batch)).numpy()
        found = session.run(None, {"x": examples(batch).numpy()})[0]
        np.testing.assert_allclose(found, wanted, atol=2e-5)
    return improved


@pytest.mark.parametrize("biased", [False, True])
def test_the_sums_are_those_of_the_file(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The edit by itself, at a fixed batch: one product for each parent, and for the constant part."""
    monkeypatch.setattr(self_routing, "estimated_gain", lambda *_: 2.0)
    monkeypatch.setattr(self_routing, "_CACHED", 0)
    x = examples(2)
    model = exported(SelfRoutedNetwork(biased=biased), x, opset=18, free=False)
    made, left = find_replacements(model)
    assert not left
    changed, found = apply_replacements(model, made)
    assert [each.operator for each in found] == [STANDARD] * 2
    new, old = (session_of(m).run(None, {"x": x.numpy()})[0] for m in (changed, model))
    np.testing.assert_allclose(new, old, atol=2e-5)
    products = sum(node.op_type == "MatMul" for node in changed.graph.node)
    assert products == 5 + biased


@pytest.mark.thorough
@pytest.mark.parametrize("by_parent", [True, False])
@pytest.mark.parametrize("settings", [{}, {"padding": 0, "stride": 1}, {"biased": True}], ids=str)
def test_it_computes_the_same(
    settings: dict[str, int], by_parent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_routing, "estimated_gain", lambda *_: 2.0)
    monkeypatch.setattr(self_routing, "_CACHED", 0 if by_parent else 1 << 30)
    improved = optimized(SelfRoutedNetwork(**settings))
    windows, classes = improved.fusion.fused
    assert windows.operator == classes.operator == STANDARD
    assert windows.parameters == {"children": "27 of 4", "parents": "3 of 4"}
    assert classes.parameters["parents"] == "5"
    assert windows.notes[0].startswith("self-routing: no operator has it; written with")
    assert improved.batch == "free"
    kinds = [node.op_type for node in onnx.load_from_string(improved.model).graph.node]
    assert ("Split" in kinds) == by_parent
    assert kinds.count("MatMul") == (5 if by_parent else 3) + ("biased" in settings)


@pytest.mark.thorough
def test_what_is_no_faster_is_left_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_routing, "estimated_gain", lambda *_: 1.0)
    improved = optimized(SelfRoutedNetwork())
    assert not improved.fusion.fused
    assert [left.reason for left in improved.fusion.not_fused] == [
        f"self-routing: no operator has it; {NO_FASTER}"
    ] * 2


@pytest.mark.thorough
def test_the_weight_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is it repeated for each position, nor are votes: the largest constant is one matrix a child."""
    monkeypatch.setattr(self_routing, "estimated_gain", lambda *_: 2.0)
    network = SelfRoutedNetwork()
    improved = optimized(network)
    stored = onnx.load_from_string(improved.model).graph.initializer
    floats = [t for t in stored if t.data_type == onnx.TensorProto.FLOAT]
    assert max(np.prod(t.dims) for t in floats) == network.windows.vote.numel()
