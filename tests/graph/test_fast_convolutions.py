"""Convolutions of large windows as FastConv: which ones, and what becomes of them in each use of a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import capsedge
from capsedge.graph.functions import attach_functions, inline_functions
from capsedge.graph.ir import copy_of, operator_counts
from capsedge.graph.rewrites import write_fast_convolutions, write_standard_convolutions
from capsedge.runtime.onnx_file.costs import Cost, NumericShapes, cost
from capsedge.runtime.onnx_file.structure import structure_of
from tests.conformance import oracle

WIDTH = 128


def model(
    weight: tuple[int, ...] = (WIDTH, WIDTH, 5, 5),
    size: int | None = 9,
    then: str = "Relu",
    **attributes: Any,
) -> onnx.ModelProto:
    """A convolution and what follows it, shapes inferred."""
    rng = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array((0.02 * rng.standard_normal(weight)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal(weight[0]).astype(np.float32), "b"),
    ]
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", **attributes)]
    more = ["b", "b", "b", "b"] if then == "BatchNormalization" else []
    nodes.append(helper.make_node(then, ["c", *more], ["y"]))
    group = attributes.get("group", 1)
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(
                "x", TensorProto.FLOAT, ["N", weight[1] * group, size, size]
            )
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        stored,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({}, 1),
        ({"strides": [2, 2], "pads": [2, 1, 2, 1]}, 1),
        ({"auto_pad": "VALID", "kernel_shape": [5, 5], "dilations": [1, 1], "group": 1}, 1),
        ({"weight": (WIDTH, WIDTH, 9, 7), "size": 12}, 1),
        ({"weight": (WIDTH, WIDTH, 5, 4)}, 0),  # ONNX Runtime's own is as fast
        ({"weight": (WIDTH, 3, 9, 9), "size": 32}, 0),
        ({"weight": (32, WIDTH, 9, 9), "size": 32}, 0),
        ({"size": 6}, 0),
        ({"size": None}, 0),
        ({"strides": [3, 1]}, 0),  # what the operator lacks
        ({"dilations": [1, 2]}, 0),
        ({"group": 2}, 0),
        ({"auto_pad": "SAME_UPPER"}, 0),
        ({"pads": [5, 0, 0, 0]}, 0),
        ({"then": "BatchNormalization"}, 0),  # ONNX Runtime makes them one convolution
    ],
)
def test_which_convolutions_are_written(given: dict[str, Any], written: int) -> None:
    changed = model(**given)
    assert write_fast_convolutions(changed) == written
    kind = changed.graph.node[0]
    assert (kind.domain, kind.op_type) == (("capsedge", "FastConv") if written else ("", "Conv"))


def test_a_weight_that_is_computed_stays() -> None:
    changed = model()
    changed.graph.node.insert(0, helper.make_node("Identity", ["w"], ["w2"]))
    changed.graph.node[1].input[1] = "w2"
    assert write_fast_convolutions(changed) == 0


def test_both_ways() -> None:
    plain = model(strides=[2, 1], pads=[1, 0, 2, 0])
    fast = copy_of(plain)
    write_fast_convolutions(fast)
    attach_functions(fast)
    assert operator_counts(inline_functions(fast)) == {"Conv": 1, "Relu": 1}
    write_standard_convolutions(fast)
    assert not fast.functions
    onnx.checker.check_model(fast, full_check=True)
    assert operator_counts(fast) == operator_counts(plain)
    given = {a.name: helper.get_attribute_value(a) for a in fast.graph.node[0].attribute}
    assert given == {"strides": [2, 1], "pads": [1, 0, 2, 0]}


def test_it_costs_what_the_convolution_costs() -> None:
    def found(model: onnx.ModelProto) -> Cost:
        graph = structure_of(model.SerializeToString(), "file").graph
        return cost(graph.nodes[0], NumericShapes(graph, 2).tensors())

    plain = model()
    fast = copy_of(plain)
    write_fast_convolutions(fast)
    assert found(fast) == found(plain)
    assert found(fast).operations == 2.0 * 2 * 25 * WIDTH * WIDTH * 25


@pytest.mark.parametrize("ops", ["auto", "portable"])
def test_it_runs(ops: str, tmp_path: Path) -> None:
    fast = model(pads=[2, 2, 2, 2])
    w, b = (numpy_helper.to_array(t) for t in fast.graph.initializer)
    write_fast_convolutions(fast)
    attach_functions(fast)
    onnx.save(fast, tmp_path / "fast.onnx")
    x = np.random.default_rng(1).standard_normal((3, WIDTH, 9, 9)).astype(np.float32)
    with capsedge.load(tmp_path / "fast.onnx", ops=ops) as session:
        (found,) = session.run({"x": x}).values()
    wanted = oracle.fast_conv(x, w, b, strides=(1, 1), pads=(2, 2, 2, 2))
    np.testing.assert_allclose(found, np.maximum(wanted, 0), atol=5e-5)


@pytest.mark.thorough
def test_a_file_of_another_tool_gets_it_with_its_routing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from capsedge.models import build, get_config
    from capsedge.models.configs import Conv
    from tests.graph.fusion.making import exported
    from tests.graph.fusion.plain import Scores, plain_operators

    torch.manual_seed(0)
    config = replace(
        get_config("capsnet-mnist"), stem=(Conv(WIDTH, 9),), primary_types=16, decoder=()
    )
    with plain_operators():
        plain = exported(Scores(build(config)), torch.rand(3, 1, 28, 28))
    onnx.save(plain, tmp_path / "plain.onnx")
    report = capsedge.optimize(tmp_path / "plain.onnx", tmp_path / "better.onnx", measure=0)
    assert "FastConv computes 1 large convolution on CPUs" in report.notes
    better = onnx.load(tmp_path / "better.onnx")
    assert operator_counts(better)["capsedge::FastConv"] == 1
    onnx.checker.check_model(better, full_check=True)
    x = np.random.default_rng(1).random((2, 1, 28, 28), dtype=np.float32)
    with (
        capsedge.load(tmp_path / "plain.onnx") as before,
        capsedge.load(tmp_path / "better.onnx") as after,
    ):
        for wanted, found in zip(
            before.run({before.inputs[0].name: x}).values(),
            after.run({after.inputs[0].name: x}).values(),
            strict=True,
        ):
            np.testing.assert_allclose(found, wanted, atol=1e-5)
