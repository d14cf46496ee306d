"""Where the operators of a file belong."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx")

import onnx

from capsedge.runtime.onnx_file.layer_map import locate
from capsedge.runtime.onnx_file.structure import read_structure
from capsedge.runtime.zoo import zoo_model
from capsedge.spec.operators import OPERATORS


def test_a_node_that_leaves_its_iterations_out_has_the_default(tmp_path: Path) -> None:
    model = onnx.load(zoo_model("digits-dynamic"))
    (node,) = [n for n in model.graph.node if n.op_type == "DynamicRouting"]
    (count,) = [a for a in node.attribute if a.name == "iterations"]
    count.i = 2

    def said() -> str:
        onnx.save(model, tmp_path / "m.onnx")
        structure = read_structure(tmp_path / "m.onnx")
        places = zip(structure.graph.nodes, locate(structure, structure.graph), strict=True)
        return next(place.label for each, place in places if each.op == node.op_type)

    assert said().endswith("routing iterations 1..2 (fused)")
    node.attribute.remove(count)
    assert OPERATORS["DynamicRouting"].iterations({}) == 3
    assert said().endswith("routing iterations 1..3 (fused)")
