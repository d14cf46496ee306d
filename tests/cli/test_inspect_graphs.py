"""`inspect` says of a file that branches that it cannot run as a CUDA graph."""

from __future__ import annotations

from pathlib import Path

from onnx import TensorProto, helper

from capsedge.runtime.inspection import inspect
from tests.runtime.models import capsule_model, save


def test_control_flow_cannot_be_captured(tmp_path: Path) -> None:
    def branch(name: str) -> object:
        made = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node("Identity", ["x"], [name])], name, [], [made])

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    graph = helper.make_graph([node], "branching", [x, c], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    facts = dict(inspect(save(model, tmp_path / "if.onnx")).rows())
    assert facts["CUDA graphs"] == "none: If cannot be captured"
    plain = dict(inspect(save(capsule_model(), tmp_path / "plain.onnx")).rows())
    assert "CUDA graphs" not in plain
