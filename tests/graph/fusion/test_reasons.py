"""What is said of routing that stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")

from capsedge.graph.fusion import FusedOperator, FusionReport, NotFused, by_reason  # noqa: E402
from capsedge.graph.fusion.optimize_graph import _unrouted  # noqa: E402


def test_places_with_the_same_reason_share_a_line() -> None:
    left = [(f"softmax_{k}", "no votes") for k in range(19)] + [("last", "EM")]
    assert by_reason(left) == [
        ("19 softmaxes, softmax_0, softmax_1, softmax_2, ...", "no votes"),
        ("last", "EM"),
    ]
    assert by_reason([("a", "x"), ("b", "y"), ("c", "x")]) == [
        ("2 softmaxes, a, c", "x"),
        ("b", "y"),
    ]
    assert by_reason([]) == []


def test_there_is_always_a_line_about_routing() -> None:
    """No operator of routing and nothing left: the note says what was looked for."""
    squash, routing = FusedOperator("Squash", "s", {}), FusedOperator("DynamicRouting", "v", {})
    left = NotFused("softmax", "why not")
    assert _unrouted(FusionReport((squash, routing)), []) == []
    assert _unrouted(FusionReport((squash,), (left,)), [left]) == []
    assert "why not" in _unrouted(FusionReport((squash,)), [left])[0]
    assert "1 squashes" not in _unrouted(FusionReport((squash,)), [])[0]
    assert "though there are capsules" in _unrouted(FusionReport((squash, squash)), [])[0]
    assert "no softmax" in _unrouted(FusionReport(), [])[0]


@pytest.mark.thorough
def test_a_single_pass_is_said_to_be_a_mean(tmp_path: Path) -> None:
    """SegCaps routes once in most layers: softmaxes of zeros, which are no routing."""
    torch = pytest.importorskip("torch")
    import capsedge
    from tests.exporters.own_nets import CHILDREN, PARENTS, Own, squash

    class Once(Own):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            c = torch.zeros(x.size(0), CHILDREN, PARENTS, 1).softmax(2)
            return squash((c * self.votes(x)).sum(1))

    example = torch.rand(1, 4)
    report = capsedge.export(Once().eval(), None, example=example)
    assert not report.fusion.not_fused
    assert any("One pass over equal couplings is a mean" in note for note in report.notes)
