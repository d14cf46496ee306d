"""What is made from a file is made only after it was checked; each refusal names the node and the reason."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import capsedge
from capsedge.errors import ArtefactError, EnvironmentProblem, UnsupportedModelError
from capsedge.exporters.c.write_c import write_c
from capsedge.graph import check, ir
from capsedge.graph.check import checked
from capsedge.graph.check_steps import Bounds
from capsedge.graph.check_steps import run_check_steps as check_here
from capsedge.graph.write_shapes import with_shapes
from capsedge.runtime.onnx_file.stored_values import refuse_not_finite
from capsedge.spec import limits
from tests.runtime.models import capsule_model
from tests.tables import table

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
Node = onnx.NodeProto
C_BOUNDS = Bounds(1, limits.C_VALUES, limits.C_SUM, bodies=False)
n = helper.make_node


def file(
    *nodes: Node,
    x: tuple[Any, ...] | None = (1, 4),
    y: tuple[Any, ...] | None = (1, 4),
    functions: tuple[onnx.FunctionProto, ...] = (),
    **stored: Any,
) -> onnx.ModelProto:
    """From x to y, with these weights."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", FLOAT, x)],
        [helper.make_tensor_value_info("y", FLOAT, y)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()],
    )
    opsets = [helper.make_opsetid(*each) for each in (("", 18), ("own", 1), ("capsedge", 1))]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)


def said(model: onnx.ModelProto, bounds: Bounds = C_BOUNDS) -> str:
    """The error of a file, by its class; empty if there is none."""
    try:
        check_here(model.SerializeToString(), "file.onnx", bounds)
    except (ArtefactError, UnsupportedModelError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def conv(x: tuple[int, ...] = (1, 3, 8, 8), w: tuple[int, ...] = (2, 3, 3, 3), **attributes: Any):  # type: ignore[no-untyped-def]
    return file(n("Conv", ["x", "w"], ["y"], **attributes), x=x, y=("a", "b", "c", "d"),
                w=np.ones(w, "f4"))  # fmt: skip


ONE = np.ones((1, 4), "f4")
SIZES = np.int64


@table(
    "model, reason",
    [
        (file(n("Add", ["x", "nope"], ["y"])), "The node 'y' (Add) reads 'nope'"),
        (file(n("Relu", ["x"], ["z"])), "Its output 'y' is computed by no node"),
        (file(n("Relu", ["b"], ["a"]), n("Relu", ["a"], ["b"]), n("Add", ["x", "b"], ["y"])),
         "The node 'a' (Relu) waits for its own result"),
        (file(n("Add", [], ["y"])), "input size 0"),
        (file(n("Add", ["x"], ["y"])), "input size 1"),
        (file(n("Add", ["x", "w"], ["y"]), w=np.ones(3, "f4")), "y): Incompatible dimensions"),
        (file(n("MatMul", ["x", "w"], ["y"]), w=np.ones((400, 5), "f4")), "Incompatible dimensions"),
        (file(n("Transpose", ["x"], ["y"], perm=[0, 7])), "Invalid attribute perm"),
        (file(n("Transpose", ["x"], ["y"], perm=[1, 1])), "repeated value"),
        (file(n("Concat", ["x", "w"], ["y"], axis=1), w=np.ones(4, "f4")), "must have same rank"),
        (file(n("Softmax", ["x"], ["y"], axis=9)), "'axis' must be in"),
        (file(n("Cast", ["x"], ["y"], to=99)), "a valid type"),
        (file(n("Where", ["x", "x", "x"], ["y"])), "unsupported type: tensor(float)"),
        (file(n("ReduceMean", ["x", "a"], ["y"]), a=np.array([55])), "axis must be in"),
        (file(n("Reshape", ["x", "s"], ["y"]), s=np.array([-1, -4])), "Invalid dimension value"),
        (file(n("Slice", ["x", "a", "b", "a", "a"], ["y"]), a=np.array([0]), b=np.array([4])),
         "'step' cannot be 0"),
        (file(n("Relu", ["x"], ["y"]), x=None), "Its input 'x' has no sizes"),
        (file(n("Own", ["x"], ["y"], domain="own"), functions=(
            helper.make_function("own", "Own", ["x"], ["y"], [n("Own", ["x"], ["y"], domain="own")],
                                 [helper.make_opsetid("own", 1)]),)), "calls itself"),
    ],
)  # fmt: skip
def test_malformed_graphs(model: onnx.ModelProto, reason: str) -> None:
    found = said(model)
    assert found.startswith("ArtefactError: file.onnx is not a valid ONNX file.")
    assert reason in found


@table(
    "attributes, reason",
    [
        ({"strides": [0, 0]}, "strides must only contain positive values"),
        ({"strides": [1]}, "strides has incorrect size"),
        ({"dilations": [-5, -5]}, "dilations must only contain positive values"),
        ({"pads": [-1, -1, -1, -1]}, "pads must not contain negative values"),
        ({"w": (2, 3)}, "'y' (Conv)|spatial dimensions"),
    ],
)
def test_malformed_convolutions(attributes: dict[str, Any], reason: str) -> None:
    found = said(conv(**attributes))
    assert found.startswith("ArtefactError")
    assert any(words in found for words in reason.split("|"))


def em(**attributes: Any) -> onnx.ModelProto:
    known = {"iterations": 1, "strides": [1, 1], "inverse_temperatures": [0.1], "epsilon": 1e-6}
    given = {k: v for k, v in {**known, **attributes}.items() if v is not None}
    inputs = ["x", "a", "w", "bu", "ba"]
    return file(n("EMRouting", inputs, ["y", "q"], domain="capsedge", **given),
                x=(1, 2, 2, 3, 16), y=None, a=np.ones((1, 2, 2, 3), "f4"),
                w=np.ones((1, 1, 3, 2, 4, 4), "f4"), bu=np.ones(2, "f4"), ba=np.ones(2, "f4"))  # fmt: skip


@table(
    "attributes, reason",
    [
        ({}, ""),
        ({"iterations": 0}, "its attribute 'iterations' is invalid"),
        ({"iterations": 1.0}, "its attribute 'iterations' is invalid"),
        ({"iterations": None}, "it lacks the attribute 'iterations'"),
        ({"iterations": 2}, "its inputs do not fit each other"),
        ({"strides": [1]}, "its inputs do not fit each other"),
        ({"ones_first": 2}, "its attribute 'ones_first' is invalid"),
        ({"epsilon": 0.0}, "its attribute 'epsilon' is invalid"),
        ({"nothing": 1}, "it has no attribute 'nothing'"),
    ],
)
def test_malformed_capsule_operators(attributes: dict[str, Any], reason: str) -> None:
    found = said(em(**attributes))
    if not reason:
        assert found == ""
    else:
        assert f"The node 'y' (EMRouting) cannot be computed: {reason}" in found


def test_capsule_operators_without_their_opset() -> None:
    model = em()
    del model.opset_import[2]
    assert "No opset import for domain 'capsedge'" in said(model)


HUGE = 2**20


@table(
    "model, node",
    [
        (conv(pads=[30_000] * 4), "'y' (Conv)"),
        (file(n("Expand", ["x", "s"], ["z"]), n("ReduceSum", ["z"], ["y"]), x=(1, 1), y=(1, 1),
              s=np.array([HUGE, HUGE])), "'z' (Expand)"),
        (file(n("Tile", ["x", "s"], ["z"]), n("ReduceSum", ["z"], ["y"]), y=(1, 1),
              s=np.array([1, 2**31])), "'z' (Tile)"),
        (file(n("ConstantOfShape", ["s"], ["z"]), n("Add", ["x", "z"], ["y"]), x=(1, 1),
              y=("a", "b"), s=np.array([HUGE, HUGE])), "'z' (ConstantOfShape)"),
        (file(n("Range", ["a", "b", "a"], ["z"]), n("Cast", ["z"], ["f"], to=1),
              n("Add", ["x", "f"], ["y"]), x=(1, 1), y=None, a=SIZES(1), b=SIZES(2**36)),
         "'z' (Range)"),
        (file(n("Pad", ["x", "p"], ["z"]), n("ReduceSum", ["z"], ["y"]), y=(1, 1),
              p=np.array([0, 0, 0, 2**40])), "'z' (Pad)"),
        (file(n("Resize", ["x", "", "s"], ["z"]), n("ReduceSum", ["z"], ["y"]), x=(1, 1, 4, 4),
              y=(1, 1, 1, 1), s=np.array([1, 1, 1e6, 1e6], "f4")), "'z' (Resize)"),
        (file(n("OneHot", ["i", "d", "v"], ["z"]), n("ReduceSum", ["z"], ["s"], keepdims=0),
              n("Add", ["x", "s"], ["y"]), i=np.arange(4), d=SIZES(2**40),
              v=np.array([0, 1], "f4")), "'z' (OneHot)"),
        (file(n("Relu", ["x"], ["y"]), x=(1, 2**40), y=(1, 2**40)), "'x' has"),
        (file(n("Relu", ["x"], ["y"]), x=(2**62, 2**62), y=(2**62, 2**62)), "'x' has"),
        (file(n("Own", ["x"], ["y"], domain="own"), y=(1, 1), functions=(
            helper.make_function("own", "Own", ["x"], ["y"], [
                n("Constant", [], ["s"], value_ints=[HUGE, 4]), n("Expand", ["x", "s"], ["z"]),
                n("Tile", ["z", "s"], ["t"]), n("ReduceSum", ["t"], ["y"])],
                [helper.make_opsetid("", 18)]),)), "(Tile)"),
    ],
)  # fmt: skip
def test_sizes_are_judged_before_they_are_allocated(model: onnx.ModelProto, node: str) -> None:
    found = said(model)
    assert found.startswith("UnsupportedModelError: file.onnx is too large.")
    assert node in found
    assert f"the limit is {limits.C_VALUES:,}" in found


def test_a_branch_is_judged_like_the_graph() -> None:
    def branch(name: str) -> onnx.GraphProto:
        nodes = [n("Expand", ["x", "s"], [f"{name}z"]), n("ReduceSum", [f"{name}z"], [name])]
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(name, FLOAT, None)]
        )

    stored = {"s": np.array([HUGE, 4]), "c": np.array(True)}
    choice = n("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    model = file(choice, x=(HUGE, 1), y=("a", "b"), **stored)
    assert said(model) == ""
    assert "(Expand) computes 4,194,304 numbers" in said(model, Bounds(values=2**22 - 1))


def test_constants_are_judged_together() -> None:
    nodes = [n("ConstantOfShape", ["s"], [f"z{k}"]) for k in range(8)]
    model = file(*nodes, n("Sum", ["x", *(f"z{k}" for k in range(8))], ["y"]), y=None,
                 s=np.array([2**11, 4]))  # fmt: skip
    assert said(model) == ""
    allowed = limits.CONSTANT_STEPS * 2  # `s` has two numbers
    found = said(model, Bounds(values=8 * 2**13 - 1 - allowed))
    assert "Nodes that do not depend on its inputs compute 65,536 numbers in all" in found
    assert said(model, Bounds(values=8 * 2**13 - allowed)) == ""
    assert "Its nodes compute" in said(model, Bounds(total=2**13 - 1))


def test_weights_may_be_arranged_in_several_nodes() -> None:
    """Bodies of capsule operators do that; published networks came over the limit of their own weights."""
    names = ["w", *(f"w{k}" for k in range(1, 10)), "y"]
    nodes = [n("Neg", [a], [b]) for a, b in pairwise(names[:-1])]
    weight = np.zeros((2, 1024), np.float32)
    model = file(*nodes, n("MatMul", ["x", "w9"], ["y"]), x=("N", 2), y=("N", 1024), w=weight)
    assert said(model, Bounds(values=2**11)) == ""


def test_the_batch_counts() -> None:
    model = file(n("Relu", ["x"], ["y"]), x=("N", 4), y=("N", 4))
    assert said(model, Bounds(batch=4, values=16)) == ""
    found = said(model, Bounds(batch=5, values=16))
    assert "too large for batch 5" in found
    assert "Build with a smaller `--batch`." in found


def test_functions_that_multiply_are_counted_and_not_written_out() -> None:
    def doubled(number: int) -> onnx.FunctionProto:
        inner = f"F{number + 1}" if number < 40 else "Last"
        nodes = [n(inner, ["x"], ["t"], domain="own"), n(inner, ["t"], ["y"], domain="own")]
        opsets = [helper.make_opsetid("own", 1)]
        return helper.make_function("own", f"F{number}", ["x"], ["y"], nodes, opsets)

    last = helper.make_function(
        "own", "Last", ["x"], ["y"], [n("Relu", ["x"], ["y"])], [helper.make_opsetid("", 18)]
    )
    functions = (*(doubled(k) for k in range(41)), last)
    model = file(n("F0", ["x"], ["y"], domain="own"), functions=functions)
    assert f"it has {2**41:,}; the limit is {limits.GRAPH_NODES:,}" in said(model)


def test_stored_data_that_is_too_short() -> None:
    model = file(n("Add", ["x", "w"], ["y"]), w=ONE)
    model.graph.initializer[0].raw_data = b"\0\0\0\0"
    assert "Its tensor 'w' is damaged" in said(model)


# --- Order ---


def unsorted() -> onnx.ModelProto:
    return file(
        n("Neg", ["b"], ["y"], name="last"), n("Exp", ["a"], ["b"]), n("Relu", ["x"], ["a"])
    )


def test_nodes_out_of_order_are_sorted() -> None:
    data = unsorted().SerializeToString()
    made = onnx.load_model_from_string(checked(data, "file.onnx"))
    assert [node.op_type for node in made.graph.node] == ["Relu", "Exp", "Neg"]
    assert checked(made.SerializeToString(), "file.onnx") == made.SerializeToString()


@pytest.mark.parametrize("both", [False, True])
def test_the_standard_domain_by_its_other_name(both: bool) -> None:
    """Tools write ``ai.onnx`` for the standard domain, in nodes, branches and imports."""
    inner = helper.make_graph(
        [n("Neg", ["x"], ["a"], domain="ai.onnx")],
        "then",
        [],
        [helper.make_tensor_value_info("a", FLOAT, (1, 4))],
    )
    model = file(
        n("If", ["c"], ["h"], domain="ai.onnx", then_branch=inner, else_branch=inner),
        n("Relu", ["h"], ["y"], domain="ai.onnx"),
        c=np.array(True),
    )
    if both:
        model.opset_import.append(helper.make_opsetid("ai.onnx", 18))
    else:
        model.opset_import[0].domain = "ai.onnx"
    better = onnx.load_model_from_string(
        check_here(model.SerializeToString(), "file.onnx", C_BOUNDS)
    )
    assert {node.domain for node in ir.all_nodes(better.graph.node)} == {""}
    assert [e.domain for e in better.opset_import].count("") == 1
    assert "ai.onnx" not in [e.domain for e in better.opset_import]


def test_a_branch_reads_what_is_computed_after_it() -> None:
    def branch(name: str, inner: str) -> onnx.GraphProto:
        nodes = [n("Relu", [f"{name}_t"], [name]), n("Neg", [inner], [f"{name}_t"])]
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(name, FLOAT, [1, 4])]
        )

    choice = n("If", ["c"], ["y"], then_branch=branch("p", "a"), else_branch=branch("q", "a"))
    model = file(choice, n("Exp", ["x"], ["a"]), c=np.array(True))
    made = onnx.load_model_from_string(checked(model.SerializeToString(), "file.onnx"))
    assert [node.op_type for node in made.graph.node] == ["Exp", "If"]
    inner = made.graph.node[1].attribute[0].g
    assert [node.op_type for node in inner.node] == ["Neg", "Relu"]


@pytest.mark.thorough
def test_the_verbs_take_nodes_out_of_order(tmp_path: Path) -> None:
    path = tmp_path / "file.onnx"
    onnx.save(unsorted(), path)
    assert capsedge.optimize(path, measure=0).comparisons
    assert write_c(path, tmp_path / "net").description["outputs"][0]["name"] == "y"


# --- Training mode, types, capsule operators ---


def test_batch_normalization_in_training_mode_is_named() -> None:
    vectors = {name: np.ones(4, "f4") for name in "sbmv"}
    node = n("BatchNormalization", ["x", *"sbmv"], ["y", "m2", "v2"], name="norm", training_mode=1)
    found = said(file(node, **vectors))
    assert "the result of an image depends on the others of its batch" in found
    assert "The node 'norm' (BatchNormalization)" in found
    node.attribute[0].i = 0
    del node.output[1:]
    assert said(file(node, **vectors)) == ""


def test_dropout_in_training_mode_is_named() -> None:
    node = n("Dropout", ["x", "r", "t"], ["y"], name="drop")
    found = said(file(node, r=np.float32(0.5), t=np.array(True)))
    assert "An output depends on the node 'drop' (Dropout)" in found


def test_a_wrong_type_is_named_with_its_node() -> None:
    model = file(n("Cast", ["x"], ["z"], to=FLOAT, name="wrong"), n("Relu", ["z"], ["y"]))
    model.graph.value_info.append(helper.make_tensor_value_info("z", HALF, [1, 4]))
    found = said(model)
    assert found.startswith("ArtefactError")
    assert "wrong" in found
    assert "float32, stated float16" in found


@table(
    "change, reason",
    [
        (lambda node: node.attribute.append(helper.make_attribute("own", 1)), "no attribute 'own'"),
        (lambda node: setattr(node.attribute[0], "name", "epsilon"), "invalid"),
        (lambda node: node.input.append("lengths"), "inputs"),
    ],
)
def test_capsule_operators_fit_their_specification(
    change: Callable[[Node], None], reason: str
) -> None:
    model = capsule_model()
    node = next(node for node in model.graph.node if node.domain == "capsedge")
    change(node)
    assert said(model).startswith("ArtefactError"), reason


def test_a_file_without_bodies_is_checked_with_them() -> None:
    assert said(capsule_model(function=False)) == ""


def test_an_output_without_a_shape_is_no_fault() -> None:
    assert said(file(n("Relu", ["x"], ["y"]), y=None)) == ""


# --- The process ---


@pytest.mark.thorough
def test_memory_of_the_process_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx computes all values of a Range to look for sizes among them: 80 bytes for each."""
    monkeypatch.setattr(limits, "CHECK_MEMORY", 1 << 26)
    nodes = [n("Range", ["a", "b", "a"], ["z"]), n("Cast", ["z"], ["f"], to=1)]
    model = file(*nodes, n("Add", ["x", "f"], ["y"]), x=(1, 1), y=None, a=SIZES(1), b=SIZES(2**27))
    data = model.SerializeToString()
    with pytest.raises((UnsupportedModelError, ArtefactError), match=r"[Cc]heck"):
        checked(data, "file.onnx")
    with pytest.raises(UnsupportedModelError, match="cannot be inferred"):
        with_shapes(data, "file.onnx")


def test_a_process_that_ends_is_an_error_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        check, "run_check_steps", lambda *_: (_ for _ in ()).throw(RuntimeError("odd"))
    )
    with pytest.raises(ArtefactError, match="RuntimeError: odd"):
        checked(unsorted().SerializeToString(), "file.onnx")


def test_inspect_names_what_is_in_training_mode(tmp_path: Path) -> None:
    vectors = {name: np.ones(4, "f4") for name in "sbmv"}
    for training in (0, 1):
        outputs = ["y", "m2", "v2"] if training else ["y"]
        node = n("BatchNormalization", ["x", *"sbmv"], outputs, name="norm", training_mode=training)
        onnx.save(file(node, **vectors), tmp_path / "file.onnx")
        assert capsedge.inspect(tmp_path / "file.onnx").training == ["norm"] * training


NAN, INF = np.nan, np.inf


@table(
    "model, reason",
    [
        (conv(), ""),
        (file(n("Mul", ["x", "w"], ["y"]), w=[[1.0, NAN, NAN, 0.0]]),
         "w [1, 4]: 2 of 4, the first is nan at [0, 1]"),
        (file(n("MatMul", ["x", "w"], ["y"]), w=np.diag(np.float32([1, INF, 1, 1]))),
         "first is inf at [1, 1]"),
        (file(n("Add", ["x", "mask"], ["y"]), mask=np.float32([[0, -INF, 0, 0]])), ""),
        (file(n("Constant", [], ["w"], value=numpy_helper.from_array(np.float32([[NAN]]))),
              n("Mul", ["x", "w"], ["y"])), "w [1, 1]: 1 of 1"),
    ],
)  # fmt: skip
def test_weights_that_are_not_finite_are_named(model: onnx.ModelProto, reason: str) -> None:
    found = ""
    try:
        refuse_not_finite(model.SerializeToString(), "file.onnx")
    except ArtefactError as error:
        found = error.why
    assert reason in found if reason else not found, found


def test_an_old_runtime_is_an_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.__version__", "1.2.0")
    with pytest.raises(EnvironmentProblem, match=r"ONNX Runtime 1\.2\.0 is too old"):
        checked(unsorted().SerializeToString(), "file.onnx")
