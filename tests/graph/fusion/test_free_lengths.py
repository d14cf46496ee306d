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
from capsedge.graph.fusion import FusedOperator, FusionReport
from capsedge.graph.fusion.free_axes import (
    FreeLength,
    at_length,
    free_lengths,
    lengths_of,
    named_children,
)
from capsedge.graph.fusion.optimize_graph import optimize_model
from capsedge.graph.merge import FreeAxis, GraphsDiffer, merge, with_names_of
from capsedge.runtime.backends.native_library import find_library
from capsedge.spec.operators import DOMAIN, VERSION
from tests.graph.fusion.histories import AnyLength, TwoHistories, histories

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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "children"),
    [
        ("apart", ["clicked of 6", "owned of 6"]),
        ("joined", ["clicked + owned of 6"]),
        ("pairs", ["clicked x owned of 6"]),
    ],
)
def test_two_lengths_stay_free(how: Any, children: list[str]) -> None:
    """Sizes that follow one of them, their sum or their product are computed from the inputs."""
    module = TwoHistories(how).eval()
    stream = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (histories(3, 9), histories(3, 6)), stream, dynamo=False, opset_version=17,
            input_names=["clicks", "bought"], output_names=["interests"],
            dynamic_axes={"clicks": {0: "N", 1: "clicked"}, "bought": {0: "N", 1: "owned"}},
        )  # fmt: skip
    result = optimize_model(stream.getvalue())
    assert [f.parameters["children"] for f in result.fusion.fused] == children
    assert any(
        note.startswith("the lengths clicked and owned stay free: compared at 1x7, 2x50")
        for note in result.notes
    )
    assert [sizes for sizes, _, _ in result.inputs.values()] == [[0, 50], [0, 50]]
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(find_library()))
    for settings in (options, onnxruntime.SessionOptions()):
        session = onnxruntime.InferenceSession(result.model, settings)
        for clicked, owned in ((1, 1), (1, 64), (7, 5), (50, 20), (20, 50), (120, 3)):
            given = {"clicks": histories(4, clicked), "bought": histories(4, owned)}
            with torch.no_grad():
                wanted = module(**given).numpy()
            (found,) = session.run(None, {name: x.numpy() for name, x in given.items()})
            np.testing.assert_allclose(found, wanted, atol=2e-6, rtol=1e-4)


def summed(names: str, *, joined: bool) -> bytes:
    """The sum of histories that are added or ``joined``; each has a length with a name of its own."""
    info, lengths = helper.make_tensor_value_info, {name.lower(): name for name in names}
    operator = {"op_type": "Concat", "axis": 1} if joined else {"op_type": "Sum"}
    nodes = [helper.make_node(inputs=[*lengths], outputs=["sum"], **operator)]
    nodes += [helper.make_node("ReduceSum", ["sum", "one"], ["y"], keepdims=0)]
    graph = helper.make_graph(
        nodes,
        "g",
        [info(name, TensorProto.FLOAT, ["N", length]) for name, length in lengths.items()],
        [info("y", TensorProto.FLOAT, ["N"])],
        [numpy_helper.from_array(np.array([1]), "one")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    data: bytes = made.SerializeToString()
    return data


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("names", "joined", "told"),
    [
        ("AB", False, "it runs only where A and B are equal: give these axes one name"),
        ("ABCD", True, "4 lengths are free beside the batch: A, B, C, D. Routing is replaced if"),
    ],
)
def test_lengths_that_are_one_or_too_many(names: str, joined: bool, told: str) -> None:
    notes = optimize_model(summed(names, joined=joined)).notes
    (note,) = (n for n in notes if "keeps its free lengths" in n)
    assert told in note


def graph_of_two(first: int | str, second: int | str, name: str = "") -> onnx.ModelProto:
    """``x`` and ``y`` side by side and their products, each as ``[N, …, 1]``."""
    op, info = helper.make_node, helper.make_tensor_value_info
    both, pairs = f"to_{name}sum", f"to_{name}product"
    sums = [] if isinstance(first, str) or isinstance(second, str) else [
        numpy_helper.from_array(np.array([-1, first + second, 1]), both),
        numpy_helper.from_array(np.array([-1, first * second, 1]), pairs),
    ]  # fmt: skip
    graph = helper.make_graph(
        [
            op("Concat", ["x", "y"], ["all"], axis=1),
            op("Reshape", ["all", both], ["sum"]),
            op("Unsqueeze", ["x", "two"], ["columns"]),
            op("Unsqueeze", ["y", "one"], ["rows"]),
            op("Mul", ["columns", "rows"], ["table"]),
            op("Reshape", ["table", pairs], ["product"]),
            op("ReduceSum", ["sum", "one"], ["p"], keepdims=0),
            op("ReduceSum", ["product", "one"], ["q"], keepdims=0),
        ],
        "g",
        [info("x", TensorProto.FLOAT, ["N", first]), info("y", TensorProto.FLOAT, ["N", second])],
        [info("p", TensorProto.FLOAT, ["N", 1]), info("q", TensorProto.FLOAT, ["N", 1])],
        [numpy_helper.from_array(np.array([k]), n) for k, n in ((1, "one"), (2, "two"))] + sums,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_sums_and_products_of_two_lengths() -> None:
    """Even if the names of constants contain the sizes."""
    made = [graph_of_two(a, b, f"{a}_{b}_") for a, b in ((5, 8), (5, 9), (6, 8), (6, 9))]
    first, *others = made
    named = [first, *(with_names_of(first, other, "A or B") for other in others)]
    columns = [merge(*named[k : k + 2], FreeAxis("B", (8, 9), "y", 1)) for k in (0, 2)]
    model = merge(*columns, FreeAxis("A", (5, 6), "x", 1))
    assert [(x.name, x.axes) for x in lengths_of(model)] == [
        ("A", (("x", 1),)), ("B", (("y", 1),))
    ]  # fmt: skip
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for a, b in ((1, 1), (1, 7), (50, 2), (3, 120)):
        given = {"x": np.ones((2, a), np.float32), "y": np.ones((2, b), np.float32)}
        for found, count in zip(session.run(None, given), (a + b, a * b), strict=True):
            np.testing.assert_array_equal(found, np.full((2, 1), count))


def test_rewrites_that_depend_on_sizes_keep_the_length_free() -> None:
    """At 11 items a matrix product would not pay, at 13 it would."""
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMax", ["x", "poses"], ["c"]),
            helper.make_node("Mul", ["c", "x"], ["cx"]),
            helper.make_node("ReduceSum", ["cx", "items"], ["y"], keepdims=0),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "L", 22])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 22])],
        [numpy_helper.from_array(np.array([k]), n) for k, n in ((2, "poses"), (1, "items"))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    result = optimize_model(model.SerializeToString())
    assert any(note.startswith("the length stays free") for note in result.notes), result.notes


def test_graphs_of_two_lengths_that_differ() -> None:
    other = graph_of_two(6, 9)
    other.graph.node[0].attribute[0].i = 0
    with pytest.raises(GraphsDiffer, match=r"Concat  depends on A or B"):
        with_names_of(graph_of_two(5, 8), other, "A or B")


def test_names_and_sizes_of_several_lengths() -> None:
    info = helper.make_tensor_value_info
    shapes = {"a": ["N", "L"], "b": ["N", None], "c": ["N", 4, "L"], "d": ["N", "M"]}
    inputs = [info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    model = helper.make_model(helper.make_graph([], "g", inputs, inputs[:1]))
    assert [(x.name, x.axes) for x in lengths_of(model)] == [
        ("L", (("a", 1), ("c", 2))), ("L2", (("b", 1),)), ("M", (("d", 1),))
    ]  # fmt: skip
    fixed = at_length(model, 5, 6, 7).graph.input
    sizes = [[d.dim_value for d in value.type.tensor_type.shape.dim] for value in fixed]
    assert sizes == [[0, 5], [0, 6], [0, 4, 5], [0, 7]]


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


def test_numbers_of_children_by_name() -> None:
    """Numbers that follow a length in another way have no name, and fixed ones stay."""

    def report(*children: int) -> FusionReport:
        fused = [
            FusedOperator("VoteRouting", "y", {"children": f"{n} of 13"}) for n in (*children, 13)
        ]
        return FusionReport((*fused, FusedOperator("Squash", "x", {})))

    lengths, pairs = [FreeLength("A", ()), FreeLength("B", ())], ((11, 13), (17, 19))
    found = named_children(
        report(11, 17, 28, 187, 9), report(13, 19, 32, 247, 11), lengths, pairs
    ).fused
    assert [f.parameters.get("children") for f in found] == [
        "A of 13", "B of 13", "A + B of 13", "A x B of 13", "a varying number of 13", "13 of 13", None
    ]  # fmt: skip
