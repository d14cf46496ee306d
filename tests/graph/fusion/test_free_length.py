"""Files with a free axis beside the batch: one file for histories of every length."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.functions import attach_functions
from capsedge.graph.fusion.free_length import at_length, free_lengths
from capsedge.graph.fusion.optimize_graph import optimize_model
from capsedge.graph.merge import FreeAxis, GraphsDiffer, merge
from capsedge.runtime.backends.native_library import find_library
from capsedge.spec.operators import DOMAIN, VERSION
from tests.graph.fusion.histories import AnyLength, histories

LENGTHS = (1, 7, 50, 120)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "operator"),
    [
        ({"each": True}, "DynamicRouting"),
        # One product for all children is faster than their kernel.
        ({"each": True, "size": 32}, "VoteRouting"),
        ({"each": False}, "VoteRouting"),
        ({"each": True, "placed": True}, "DynamicRouting"),
    ],
)
def test_a_free_length_stays_free(settings: dict[str, Any], operator: str) -> None:
    module = AnyLength(**settings).eval()
    stream = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (histories(3, 9),), stream, dynamo=False, opset_version=17,
            input_names=["history"], output_names=["interests"],
            dynamic_axes={"history": {0: "N", 1: "length"}},
        )  # fmt: skip
    result = optimize_model(stream.getvalue())
    (fused,) = result.fusion.fused
    assert fused.operator == operator
    assert fused.parameters["children"].startswith("length")
    assert "the length stays free: compared at 1, 2, 7, 50, 120" in result.notes
    model = onnx.load_from_string(result.model)
    # Nothing that is there once for each item or interest.
    most = max(parameter.numel() for parameter in module.parameters())
    assert max(np.prod(t.dims) for t in model.graph.initializer) <= most
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(find_library()))
    for settings in (options, onnxruntime.SessionOptions()):
        session = onnxruntime.InferenceSession(result.model, settings)
        for length in LENGTHS:
            given = histories(4, length)
            with torch.no_grad():
                wanted = module(given).numpy()
            (found,) = session.run(None, {"history": given.numpy()})
            np.testing.assert_allclose(found, wanted, atol=2e-6, rtol=1e-4)


def graph_at(length: int, *, table: int = 0) -> onnx.ModelProto:
    """``x [N, length]`` viewed as ``[N·length]``; with ``table``, a sum with a row of so many numbers."""
    shape = numpy_helper.from_array(np.array([-1, length, 1]), f"to_{length}")
    nodes = [helper.make_node("Reshape", ["x", shape.name], ["y"])]
    stored = [shape]
    if table:
        stored.append(numpy_helper.from_array(np.ones((table, 1), np.float32), "rows"))
        nodes = [
            helper.make_node("Reshape", ["x", shape.name], ["z"]),
            helper.make_node("Add", ["z", "rows"], ["y"]),
        ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", length])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", length, 1])],
        stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_numbers_that_follow_the_length_are_computed() -> None:
    free = FreeAxis("L", (5, 6), "x", 1)
    model = merge(graph_at(5), graph_at(6), free)
    onnx.checker.check_model(model)
    assert free_lengths(model) == [("x", 1)]
    assert [d.dim_param for d in model.graph.output[0].type.tensor_type.shape.dim] == ["N", "L", ""]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for length in LENGTHS:
        (found,) = session.run(None, {"x": np.ones((2, length), np.float32)})
        assert found.shape == (2, length, 1)


def test_a_size_that_is_a_multiple_of_the_length() -> None:
    """Primary capsules of several convolutions side by side: their number has no name in the file."""

    def at(length: int) -> onnx.ModelProto:
        op, info = helper.make_node, helper.make_tensor_value_info
        graph = helper.make_graph(
            [
                op("Concat", ["x", "x"], ["both"], axis=1),
                op("Squash", ["both"], ["squashed"], domain=DOMAIN, axis=2, epsilon=1e-9),
                op("ReduceSum", ["squashed", "one"], ["y"], keepdims=0),
            ],
            "g",
            [info("x", TensorProto.FLOAT, ["N", length, 3])],
            [info("y", TensorProto.FLOAT, ["N", 3])],
            [numpy_helper.from_array(np.array([1]), "one")],
            value_info=[info("both", TensorProto.FLOAT, ["N", 2 * length, 3])],
        )
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, VERSION)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    model = merge(at(5), at(6), FreeAxis("L", (5, 6), "x", 1))
    attach_functions(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for length in LENGTHS:
        (found,) = session.run(None, {"x": np.full((2, length, 3), 3**-0.5, np.float32)})
        np.testing.assert_allclose(found, 2 * length * 0.5 * 3**-0.5, rtol=1e-5)


def test_arrays_of_sizes_and_constants_are_computed() -> None:
    """Positions, and the rows of a table up to the length: constants at a fixed length."""
    op, info = helper.make_node, helper.make_tensor_value_info
    table = np.arange(400, dtype=np.float32)[::-1].copy()
    stored = [
        numpy_helper.from_array(value, name)
        for name, value in (
            ("zero", np.array(0)), ("one", np.array(1)), ("first", np.array([0])), ("table", table),
        )
    ]  # fmt: skip
    computed = [
        op("Shape", ["x"], ["length"], start=1, end=2),
        op("Slice", ["table", "first", "length"], ["rows"]),
        op("Squeeze", ["length"], ["count"]),
        op("Range", ["zero", "count", "one"], ["positions"]),
        op("Cast", ["positions"], ["places"], to=TensorProto.FLOAT),
    ]
    sums = [op("Add", ["x", "rows"], ["a"]), op("Mul", ["a", "places"], ["y"])]

    def at(length: int | str, nodes: list[onnx.NodeProto], values: list[Any]) -> onnx.ModelProto:
        x, y = (info(name, TensorProto.FLOAT, ["N", length]) for name in "xy")
        graph = helper.make_graph(nodes, "g", [x], [y], values)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    def fixed(length: int) -> onnx.ModelProto:
        arrays = {"rows": table[:length], "places": np.arange(length, dtype=np.float32)}
        return at(length, sums, [numpy_helper.from_array(v, n) for n, v in arrays.items()])

    free = FreeAxis("L", (5, 6), "x", 1)
    model = merge(fixed(5), fixed(6), free, at("L", [*computed, *sums], stored))
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for length in LENGTHS:
        (found,) = session.run(None, {"x": np.ones((2, length), np.float32)})
        np.testing.assert_array_equal(found[1], (1 + table[:length]) * np.arange(length))
    of_values = [op("Mul", ["x", "x"], ["rows"]), op("Identity", ["x"], ["places"]), *sums]
    with pytest.raises(GraphsDiffer, match="the constant rows depends on L"):
        merge(fixed(5), fixed(6), free, at("L", of_values, []))


def test_weights_for_each_position_have_no_free_length() -> None:
    free = FreeAxis("L", (5, 6), "x", 1)
    with pytest.raises(GraphsDiffer, match="the constant rows depends on L"):
        merge(graph_at(5, table=5), graph_at(6, table=6), free)


def test_every_free_axis_gets_the_length() -> None:
    model = merge(graph_at(5), graph_at(6), FreeAxis("L", (5, 6), "x", 1))
    fixed = at_length(model, 9)
    assert not free_lengths(fixed)
    assert fixed.graph.input[0].type.tensor_type.shape.dim[1].dim_value == 9
