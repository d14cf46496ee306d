"""Files that are odd or hostile end in a clear error, or in a file that computes the same; never in harm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import capsedge
from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.edit import in_topological_order
from capsedge.graph.fusion.execution import session_of
from capsedge.graph.fusion.optimize_graph import optimize_model

PLAIN = """<ir_version: 8, opset_import: ["": 17]> net (float[N,12,4] x) => (float[N,5,6] v)
{
    u = Einsum<equation = "ijop,bip->bijo">(W, x)  size = Shape<start = 0, end = 3>(u)
    b0 = ConstantOfShape(size)  c = Softmax<axis = 2>(b0)  c3 = Unsqueeze(c, ax3)  cu = Mul(c3, u)
    s = ReduceSum<keepdims = 0>(cu, ax1)  q0 = Mul(s, s)  q = ReduceSum(q0, axm)  q1 = Add(q, one)
    f = Div(q, q1)  n = Sqrt(q)  fs = Mul(f, s)  v = Div(fs, n)
}"""


def plain() -> onnx.ModelProto:
    model = parser.parse_model(PLAIN)
    stored = {
        "W": np.random.default_rng(0).standard_normal((12, 5, 6, 4)).astype("f4"),
        "ax1": np.array([1]), "ax3": np.array([3]), "axm": np.array([-1]), "one": np.float32(1),
    }  # fmt: skip
    for name, value in stored.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    for k, node in enumerate(model.graph.node):
        node.name = f"n{k}"
    return model


def node(model: onnx.ModelProto, output: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if output in n.output)


def stored(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(t for t in model.graph.initializer if t.name == name)


def cycle(model: onnx.ModelProto) -> None:
    node(model, "u").input[1] = "v"


def two_nodes_of_a_name(model: onnx.ModelProto) -> None:
    node(model, "q").name = node(model, "q1").name


def two_makers(model: onnx.ModelProto) -> None:
    node(model, "q0").output[0] = "s"


def weight_that_is_an_output(model: onnx.ModelProto) -> None:
    node(model, "q0").output[0] = "W"


def negative_size(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -12


def huge_size(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2**62


def weight_of_other_size(model: onnx.ModelProto) -> None:
    stored(model, "W").dims[0] = 2**40


def weight_of_overflowing_size(model: onnx.ModelProto) -> None:
    stored(model, "W").dims[:] = [2**32, 2**32]


def axis_far_out(model: onnx.ModelProto) -> None:
    stored(model, "ax3").CopyFrom(numpy_helper.from_array(np.array([2**62]), "ax3"))


def loop_without_body(model: onnx.ModelProto) -> None:
    node(model, "f").op_type = "Loop"


def unknown_operator(model: onnx.ModelProto) -> None:
    node(model, "f").op_type = "Frobnicate"


def unknown_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 2**40


def other_type(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING


def giant_fill(model: onnx.ModelProto) -> None:
    """A constant of 4 TB, of a few bytes of the file."""
    model.graph.initializer.append(numpy_helper.from_array(np.array([2**20, 2**20]), "giant"))
    fill = helper.make_node("ConstantOfShape", ["giant"], ["filled"], "fill")
    total = helper.make_node("ReduceSum", ["filled"], ["total"], "total", keepdims=0)
    node(model, "q1").input[1] = "total"
    model.graph.node.insert(0, total)
    model.graph.node.insert(0, fill)


@pytest.mark.parametrize(
    "change",
    [
        cycle, two_nodes_of_a_name, two_makers, weight_that_is_an_output, negative_size, huge_size,
        weight_of_other_size, weight_of_overflowing_size, axis_far_out, loop_without_body, unknown_operator,
        unknown_opset, other_type, giant_fill,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_what_cannot_run_is_an_error(change: Callable[[onnx.ModelProto], None]) -> None:
    model = plain()
    change(model)
    with pytest.raises(capsedge.UnsupportedModelError):
        optimize_model(model.SerializeToString())


def same(model: onnx.ModelProto) -> None:
    improved = optimize_model(model.SerializeToString())
    x = np.random.default_rng(2).standard_normal((3, 12, 4)).astype("f4")
    new = onnx.load_from_string(improved.model)
    assert [v.name for v in new.graph.input] == [v.name for v in model.graph.input]
    assert [v.name for v in new.graph.output] == [v.name for v in model.graph.output]
    found, wanted = (session_of(m).run(None, {"x": x}) for m in (new, model))
    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f, w, atol=1e-5)


def input_among_the_outputs(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("x", 1, ["N", 12, 4]))


def weight_among_the_outputs(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("one", 1, []))


def not_a_number_in_a_weight(model: onnx.ModelProto) -> None:
    value = numpy_helper.to_array(stored(model, "W")).copy()
    value[0, 0, 0, 0] = np.nan
    stored(model, "W").CopyFrom(numpy_helper.from_array(value, "W"))


def names_inside_a_branch(model: onnx.ModelProto) -> None:
    """An If whose branches read from outside and have names of their own that resemble others."""
    then = parser.parse_graph("then () => (float[N,5,6] r) { f_ = Identity(fs) r = Identity(f_) }")
    other = parser.parse_graph("other () => (float[N,5,6] r) { c_ = Neg(fs) r = Identity(c_) }")
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    branch = helper.make_node("If", ["yes"], ["chosen"], "if", then_branch=then, else_branch=other)
    last = node(model, "v")
    last.input[0] = "chosen"
    model.graph.node.insert(len(model.graph.node) - 1, branch)


def names_with_odd_characters(model: onnx.ModelProto) -> None:
    node(model, "q1").name = "\x1b[31m/../../é\n"


@pytest.mark.parametrize(
    "change",
    [
        input_among_the_outputs, weight_among_the_outputs, not_a_number_in_a_weight, names_inside_a_branch,
        names_with_odd_characters,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_what_is_odd_computes_the_same(change: Callable[[onnx.ModelProto], None]) -> None:
    model = plain()
    change(model)
    same(model)


def test_nodes_in_a_cycle_have_no_order() -> None:
    a, b = helper.make_node("Neg", ["y"], ["x"]), helper.make_node("Neg", ["x"], ["y"])
    with pytest.raises(NoMatch, match="cycle"):
        in_topological_order([a, b])
    again = [helper.make_node("Add", ["p", "p"], ["q"]), helper.make_node("Neg", ["z"], ["p"])]
    assert [n.op_type for n in in_topological_order(again)] == ["Neg", "Add"]
