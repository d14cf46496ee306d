"""EM routing in Python loops over the positions of a map becomes one convolutional operator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

from torch import Tensor

import capsedge
from capsedge.graph.fusion import em, matcher
from capsedge.graph.fusion.emit_em import EMEdit, EMSources
from capsedge.graph.fusion.join_positions import join
from capsedge.graph.fusion.optimize_graph import OptimizedGraph, optimize_model
from capsedge.graph.fusion.values import Values
from capsedge.graph.ir import initializer
from tests.graph.fusion.looped_writings import (
    ElementByElement,
    LoopedLayer,
    Loops,
    Pair,
    RowByRow,
    WeightFirst,
)
from tests.graph.fusion.making import exported
from tests.graph.fusion.test_types import in_half

Routed = tuple[Tensor, Tensor]
SMALL = Loops((2, 2), (1, 2), types_first=False)


@pytest.fixture(scope="module")
def two_positions() -> bytes:
    layer = LoopedLayer(SMALL)
    layer.routing.temperatures = layer.routing.temperatures[1:]
    return bytes(exported(layer, layer.example(), opset=18).SerializeToString())


def optimized(network: LoopedLayer | Pair, exporter: str = "script") -> OptimizedGraph:
    return optimize_model(exported(network, network.example(), exporter, 18).SerializeToString())


def shape_of(improved: OptimizedGraph) -> tuple[int, str, str, str]:
    """The number of operators, and of the first its children, kernel and strides."""
    assert {f.operator for f in improved.fusion.fused} == {"EMRouting"}
    assert not improved.fusion.not_fused
    first = improved.fusion.fused[0].parameters
    return len(improved.fusion.fused), first["children"], first["kernel"], first["strides"]


def count(improved: OptimizedGraph, kind: str) -> int:
    return sum(n.op_type == kind for n in onnx.load_from_string(improved.model).graph.node)


def test_positions_become_one_operator(
    two_positions: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fitted once; nothing is left of the slices and of what puts the results together."""
    fits: list[str] = []
    real = em._fit

    def counted(*arguments: object) -> object:
        fits.append(str(arguments[1]))
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(em, "_fit", counted)
    improved = optimize_model(two_positions)
    assert shape_of(improved) == (1, "2x2x2 of 4", "1x2", "1x1")
    (found,) = improved.fusion.fused
    assert found.notes == ("EMRouting: one operator for 2 parts of the file with equal weights",)
    assert improved.batch == "free"
    assert len(set(fits)) == 1
    assert [count(improved, kind) for kind in ("Slice", "Concat", "Gather")] == [0, 0, 0]


def test_an_operator_that_differs_is_replaced_by_those_of_the_positions(
    two_positions: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(graph: Values, parts: Sequence[EMSources], tag: str) -> EMEdit:
        edit = join(graph, parts, tag)
        for tensor in edit.initializers if len(parts) > 1 else ():
            if tensor.name.endswith("_beta_a"):
                changed = 10 + onnx.numpy_helper.to_array(tensor)
                tensor.CopyFrom(initializer(tensor.name, changed))
        return edit

    monkeypatch.setattr(matcher, "join", wrong)
    improved = optimize_model(two_positions)
    assert shape_of(improved)[0] == 2
    (note,) = improved.fusion.fused[0].notes
    assert "2 operators with equal weights are not one: the whole file would differ" in note
    assert not improved.fusion.fused[1].notes


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("loops", "wanted"),
    [
        (Loops((4, 5), put="cat", types_first=False), (1, "4x5x2 of 4", "3x3", "1x1")),
        (Loops(put="rows", columns_first=False, stride=2), (1, "5x5x2 of 4", "3x3", "2x2")),
        (Loops((4, 5), columns_first=True), (1, "4x5x2 of 4", "3x3", "1x1")),
        (Loops((5, 6), (2, 2), 2, columns_first=True), (1, "5x6x2 of 4", "2x2", "2x2")),
        (Loops((3, 7), (2, 5), put="assign"), (1, "3x7x2 of 4", "2x5", "1x1")),
        (Loops((5, 5), (4, 4), put="assign"), (1, "5x5x2 of 4", "4x4", "1x1")),
        (Loops((5, 5), (2, 2), 3), (1, "5x5x2 of 4", "2x2", "3x3")),
        (Loops((6, 6), (3, 3), 2), (1, "6x6x2 of 4", "3x3", "2x2")),
        (Loops((4, 4), (4, 4)), (1, "4x4x2 of 4", "4x4", "1x1")),
        (Loops((4, 4), without=(2,), put="cat"), (1, "4x4x2 of 4", "3x3", "1x1")),
        (Loops((4, 4), put="apart"), (1, "4x4x2 of 4", "3x3", "1x1")),
        (Loops((4, 4), own_weights=True), (4, "3x3x2 of 4", "3x3", "1x1")),
    ],
    ids=str,
)  # fmt: skip
def test_loops(loops: Loops, wanted: tuple[int, str, str, str]) -> None:
    assert shape_of(optimized(LoopedLayer(loops))) == wanted


@pytest.mark.thorough
@pytest.mark.parametrize("writing", [ElementByElement, WeightFirst, RowByRow])
def test_windows_written_otherwise(writing: type[LoopedLayer]) -> None:
    improved = optimized(writing(Loops((3, 4), (2, 2))))
    assert shape_of(improved) == (1, "3x4x2 of 4", "2x2", "1x1")


@pytest.mark.thorough
def test_two_layers() -> None:
    assert shape_of(optimized(Pair())) == (2, "3x3x2 of 4", "2x2", "1x1")


@pytest.mark.thorough
def test_coordinates_of_the_children_are_those_of_the_map() -> None:
    improved = optimized(LoopedLayer(Loops((4, 4), located=True)))
    assert shape_of(improved)[0] == 1
    assert improved.fusion.fused[0].parameters["coordinates"] == "of the file"


@pytest.mark.thorough
def test_assignments_of_the_newer_exporter() -> None:
    """They select what they assign to; the batch of the zeros is free."""
    improved = optimized(LoopedLayer(Loops((3, 3), (2, 2), put="assign")), "dynamo")
    assert shape_of(improved) == (1, "3x3x2 of 4", "2x2", "1x1")
    assert improved.batch == "free"
    assert not count(improved, "ScatterElements")


@pytest.mark.thorough
def test_half_precision() -> None:
    layer = LoopedLayer(Loops((2, 3), (2, 2)))
    improved = optimize_model(in_half(layer, layer.example()).SerializeToString())
    assert shape_of(improved)[0] == 1
    assert improved.fusion.fused[0].notes


@pytest.mark.thorough
def test_a_part_of_the_map_without_positions_is_cut_off() -> None:
    class Inner(LoopedLayer):
        def __init__(self) -> None:
            super().__init__(Loops((6, 6), (3, 3)))
            self.rows, self.columns = range(1, 3), range(1, 3)

    assert shape_of(optimized(Inner())) == (1, "4x4x2 of 4", "3x3", "1x1")


@pytest.mark.thorough
def test_activations_of_other_places_keep_the_positions_apart() -> None:
    """Every position takes the activations of the first."""

    class Elsewhere(LoopedLayer):
        def routed(self, pose: Tensor, act: Tensor, r: int, c: int, k: int) -> Routed:
            return super().routed(pose, act.roll((r, c), (-2, -1)), r, c, k)

    improved = optimized(Elsewhere(Loops((3, 3), (2, 2))))
    assert shape_of(improved)[0] == 4
    (note,) = improved.fusion.fused[0].notes
    assert "have other activations" in note


@pytest.mark.thorough
def test_an_export_of_loops(tmp_path: Path) -> None:
    layer = LoopedLayer(SMALL)
    report = capsedge.export(layer, tmp_path / "looped.onnx", example=layer.example())
    assert report.operators["capsedge::EMRouting"] == 1
