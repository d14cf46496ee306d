"""Sums of products and votes become matrix products, repeated values are computed once; the results stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.fusion import proof
from capsedge.graph.fusion.matrix_products import write_matrix_products
from capsedge.graph.fusion.optimize_graph import optimize_model

Array = np.ndarray
n = helper.make_node


def model(
    nodes: Sequence[onnx.NodeProto], inputs: dict[str, Sequence[int | str]], **stored: Array
) -> onnx.ModelProto:
    """A graph from these inputs to ``y``."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, list(s)) for k, s in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def run(made: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, feeds)
    return np.asarray(found)


def kinds(made: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in made.graph.node)


def check_same(before: onnx.ModelProto, batch: int = 3, seed: int = 0) -> onnx.ModelProto:
    """The rewritten graph, after its result was compared with that of the original."""
    rng = np.random.default_rng(seed)
    feeds = {
        i.name: rng.standard_normal(
            [d.dim_value or batch for d in i.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for i in before.graph.input
    }
    after = onnx.ModelProto()
    after.CopyFrom(before)
    write_matrix_products(after)
    want, got = run(before, feeds), run(after, feeds)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * max(1, np.abs(want).max()))
    return after


J, I, P, D = 5, 80, 12, 6  # noqa: E741


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("layout", ["jip", "ijp"])
def test_weighted_sums_and_agreements(layout: str, keepdims: int) -> None:
    """Votes in both orders; in the second, they are transposed once for both."""
    children, shape = (2, [J, I, P]) if layout == "jip" else (1, [I, J, P])
    c, v = list(shape), list(shape)
    c[2], v[children - 1] = 1, 1
    before = model(
        [
            n("Mul", ["c", "u"], ["cu"]),
            n("ReduceSum", ["cu", "children"], ["s"], keepdims=1),
            n("Mul", ["u", "s"], ["us"]),
            n("ReduceSum", ["us", "poses"], ["y"], keepdims=keepdims),
        ],
        {"c": ["N", *c], "u": ["N", *shape]},
        children=np.array([children]),
        poses=np.array([-1]),
    )
    found = kinds(check_same(before))
    assert found["MatMul"] == 2
    assert not found["Mul"] + found["ReduceSum"]
    assert found["Transpose"] == (
        0 if layout == "jip" else 5
    )  # of the votes once, of what is small


def test_a_single_sum_over_other_axes_stays() -> None:
    """One matrix product does not pay for a transposition."""
    before = model(
        [n("Mul", ["c", "u"], ["cu"]), n("ReduceSum", ["cu", "a"], ["y"])],
        {"c": ["N", I, J, 1], "u": ["N", I, J, P]},
        a=np.array([1]),
    )
    assert kinds(check_same(before)) == {"Mul": 1, "ReduceSum": 1}


def test_a_product_that_others_read_stays() -> None:
    before = model(
        [n("Mul", ["c", "u"], ["cu"]), n("ReduceSum", ["cu", "a"], ["s"]), n("Add", ["s", "cu"], ["y"])],
        {"c": ["N", J, I, 1], "u": ["N", J, I, P]},
        a=np.array([2]),
    )  # fmt: skip
    assert kinds(check_same(before))["Mul"] == 1


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("matrix", [1, 4])
def test_votes(first: bool, matrix: int) -> None:
    """Vectors and pose matrices, with the weights on either side."""
    u, w = ([matrix, D], [D, P]) if first else ([D, matrix], [P, D])
    weight = np.random.default_rng(1).standard_normal((J, I, *w)).astype(np.float32)
    pair = ["u", "w"] if first else ["w", "u"]
    before = model([n("MatMul", pair, ["y"])], {"u": ["N", 1, I, *u]}, w=weight)
    after = check_same(before)
    (stored,) = [t for t in after.graph.initializer if len(t.dims) == 3]
    assert list(stored.dims) == [I, D, J * P]
    assert "w" not in [t.name for t in after.graph.initializer]


def test_votes_of_repeated_children() -> None:
    """As in ports from Keras: children tiled for every parent."""
    weight = np.random.default_rng(1).standard_normal((1, J, I, P, D)).astype(np.float32)
    before = model(
        [
            n("Tile", ["u", "times"], ["tiled"]),
            n("Unsqueeze", ["tiled", "last"], ["columns"]),
            n("MatMul", ["w", "columns"], ["y"]),
        ],
        {"u": ["N", 1, I, D]},
        w=weight,
        times=np.array([1, J, 1, 1]),
        last=np.array([-1]),
    )
    found = kinds(check_same(before))
    assert not found["Tile"]
    assert found["MatMul"] == 1


@pytest.mark.parametrize("ahead", [(1,), ()])
def test_votes_that_are_multiplied_and_added_up(ahead: tuple[int, ...]) -> None:
    weight = np.random.default_rng(1).standard_normal((*ahead, J, I, D, P)).astype(np.float32)
    before = model(
        [n("Mul", ["u", "w"], ["uw"]), n("ReduceSum", ["uw", "a"], ["y"], keepdims=0)],
        {"u": ["N", 1, I, D, 1]},
        w=weight,
        a=np.array([3]),
    )
    after = check_same(before)
    assert kinds(after)["MatMul"] == 1
    assert not kinds(after)["Mul"]
    assert [I, D, J * P] in [list(t.dims) for t in after.graph.initializer]


def test_large_matrices_and_weights_of_several_nodes_stay() -> None:
    rng = np.random.default_rng(1)
    large = rng.standard_normal((J, 3, 64, 80)).astype(np.float32)
    before = model([n("MatMul", ["u", "w"], ["y"])], {"u": ["N", 1, 3, 1, 64]}, w=large)
    assert kinds(check_same(before)) == {"MatMul": 1}
    small = rng.standard_normal((J, I, D, D)).astype(np.float32)
    twice = [n("MatMul", ["u", "w"], ["h"]), n("MatMul", ["h", "w"], ["y"])]
    before = model(twice, {"u": ["N", 1, I, 1, D]}, w=small)
    assert kinds(check_same(before)) == {"MatMul": 2}


def test_cosine_agreement() -> None:
    """Norms are those of the parents, not of parents repeated for every child."""
    before = model(
        [
            n("Shape", ["u"], ["sizes"]),
            n("Expand", ["v", "sizes"], ["e"]),
            n("ReduceL2", ["e", "last"], ["ne"]),
            n("Clip", ["ne", "small"], ["ce"]),
            n("Div", ["e", "ce"], ["de"]),
            n("Mul", ["u", "de"], ["p"]),
            n("ReduceSum", ["p", "last"], ["y"], keepdims=0),
        ],
        {"u": ["N", J, I, P], "v": ["N", J, 1, P]},
        last=np.array([-1]),
        small=np.float32(1e-8),
    )
    after = check_same(before)
    assert kinds(after)["MatMul"] == 1
    assert not kinds(after)["Expand"] + kinds(after)["Shape"]


def test_couplings_of_a_constant_are_stored() -> None:
    before = model(
        [
            n("Shape", ["u"], ["all"]),
            n("Slice", ["all", "from", "to"], ["some"]),
            n("Expand", ["zero", "some"], ["b"]),
            n("Softmax", ["b"], ["c"], axis=1),
            n("Unsqueeze", ["c", "at"], ["c4"]),
            n("Mul", ["c4", "u"], ["cu"]),
            n("ReduceSum", ["cu", "children"], ["y"]),
        ],
        {"u": ["N", J, I, P]},
        zero=np.float32(0),
        at=np.array([-1]),
        children=np.array([2]),
        **{"from": np.array([0]), "to": np.array([3])},
    )
    found = kinds(check_same(before))
    assert found["MatMul"] == 1
    assert not found["Expand"]


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_shapes(data: st.DataObject) -> None:
    """Whatever the axes, the results stay, and the graph remains valid."""
    rank = data.draw(st.integers(2, 5))
    whole = [data.draw(st.sampled_from([1, 2, 7, 33])) for _ in range(rank)]
    axis = data.draw(st.integers(0, rank - 1))
    a, b = (
        [d if data.draw(st.booleans()) or k == axis else 1 for k, d in enumerate(whole)]
        for _ in "ab"
    )
    free = data.draw(st.booleans())
    shapes = {"a": ["N" if free else 2, *a], "b": ["N" if free else 1, *b]}
    keepdims = data.draw(st.integers(0, 1))
    expanded = [max(x, y) for x, y in zip(a, b, strict=True)]
    before = model(
        [
            n("Expand", ["a", "size"], ["e"]),
            n("Mul", ["e", "b"], ["p"]),
            n("ReduceSum", ["p", "axis"], ["s"], keepdims=keepdims),
            n("Mul", ["b", "e"], ["q"]),
            n("ReduceSum", ["q", "axis"], ["t"], keepdims=keepdims),
            n("Add", ["s", "t"], ["y"]),
        ],
        shapes,
        size=np.array([1, *expanded]),
        axis=np.array([axis + 1]),
    )
    check_same(before)


def test_couplings_viewed_as_rows_stay_repeated() -> None:
    """Rows of all images are not one image."""
    before = model(
        [
            n("Shape", ["u"], ["all"]),
            n("Slice", ["all", "from", "to"], ["some"]),
            n("Expand", ["zero", "some"], ["b"]),
            n("Reshape", ["b", "flat"], ["rows"]),
            n("Softmax", ["rows"], ["c"], axis=1),
            n("Reshape", ["c", "back"], ["c4"]),
            n("Mul", ["c4", "u"], ["y"]),
        ],
        {"u": ["N", I, J, P]},
        zero=np.float32(0),
        flat=np.array([-1, J]),
        back=np.array([-1, I, J, 1]),
        **{"from": np.array([0]), "to": np.array([3])},
    )
    check_same(before)


def test_a_squeeze_of_all_axes_keeps_the_batch() -> None:
    before = model(
        [
            n("Expand", ["logits", "sizes"], ["b"]),
            n("Softmax", ["b"], ["c"], axis=1),
            n("Squeeze", ["c"], ["c2"]),
            n("Unsqueeze", ["c2", "last"], ["c3"]),
            n("Mul", ["u", "c3"], ["y"]),
        ],
        {"u": [3, J, P]},
        logits=np.arange(J, dtype=np.float32).reshape(1, J, 1),
        sizes=np.array([3, J, 1]),
        last=np.array([2]),
    )
    check_same(before)


def test_a_sum_over_all_axes_stays() -> None:
    before = model(
        [n("Expand", ["v", "size"], ["e"]), n("ReduceSum", ["e", "none"], ["y"])],
        {"v": ["N", J, 1, P]},
        size=np.array([1, 1, I, 1]),
        none=np.array([], np.int64),
    )
    check_same(before)


def test_names_that_the_file_has_are_not_taken() -> None:
    before = model(
        [
            n("Mul", ["c", "u"], ["cu"]),
            n("ReduceSum", ["cu", "sizes_m1_5_12"], ["s"], keepdims=0),
            n("Reshape", ["s", "sizes"], ["y"]),
        ],
        {"c": ["N", J, I, 1], "u": ["N", J, I, P]},
        sizes_m1_5_12=np.array([2]),
        sizes=np.array([-1, J, P]),
    )
    assert kinds(check_same(before))["MatMul"] == 1


def test_sums_behind_a_squash() -> None:
    """The shapes behind a capsule operator are known."""
    before = model(
        [
            n("ReduceSum", ["u", "children"], ["s"], keepdims=1),
            n("Mul", ["s", "s"], ["ss"]),
            n("ReduceSum", ["ss", "poses"], ["n2"], keepdims=1),
            n("Add", ["n2", "one"], ["more"]),
            n("Div", ["n2", "more"], ["share"]),
            n("Mul", ["share", "s"], ["scaled"]),
            n("Add", ["n2", "epsilon"], ["safe"]),
            n("Sqrt", ["safe"], ["norm"]),
            n("Div", ["scaled", "norm"], ["v"]),
            n("Mul", ["u", "v"], ["uv"]),
            n("ReduceSum", ["uv", "poses"], ["y"], keepdims=0),
        ],
        {"u": ["N", J, I, P]},
        children=np.array([2]),
        poses=np.array([-1]),
        one=np.float32(1),
        epsilon=np.float32(1e-8),
    )
    optimized = optimize_model(before.SerializeToString())
    assert [f.operator for f in optimized.fusion.fused] == ["Squash"]
    found = kinds(onnx.load_model_from_string(optimized.model))
    assert found["MatMul"] == 1
    assert not found["Mul"]


@pytest.mark.parametrize("used", [True, False])
def test_couplings_of_zeros(used: bool) -> None:
    """As ``x.new_zeros`` is exported."""
    before = model(
        [
            n("Shape", ["u"], ["all"]),
            n("Slice", ["all", "from", "to"], ["some"]),
            n("ConstantOfShape", ["some"], ["b"]),
            n("Softmax", ["b"], ["c"], axis=1) if used else n("ArgMax", ["b"], ["c0"], axis=1),
            *([] if used else [n("Cast", ["c0"], ["c"], to=TensorProto.FLOAT)]),
            n("Unsqueeze", ["c", "at"], ["c4"]),
            n("Mul", ["c4", "u"], ["cu"]),
            n("ReduceSum", ["cu", "children"], ["y"]),
        ],
        {"u": ["N", J, I, P]},
        at=np.array([-1]),
        children=np.array([2]),
        **{"from": np.array([0]), "to": np.array([3])},
    )
    after = check_same(before)
    assert kinds(after)["ConstantOfShape"] == (0 if used else 1)
    assert not [t.name for t in after.graph.initializer if t.name.endswith("_fill")]


def test_matrix_capsules() -> None:
    """The two axes of a pose matrix are summed over, and repeated for, together."""
    before = model(
        [
            n("Mul", ["c", "u"], ["cu"]),
            n("ReduceSum", ["cu", "children"], ["s"], keepdims=1),
            n("Mul", ["u", "s"], ["us"]),
            n("ReduceSum", ["us", "poses"], ["y"], keepdims=0),
        ],
        {"c": ["N", I, J, 1, 1], "u": ["N", I, J, 4, 4]},
        children=np.array([1]),
        poses=np.array([3, 4]),
    )
    found = kinds(check_same(before))
    assert found["MatMul"] == 2
    assert not found["Mul"] + found["ReduceSum"]


def test_votes_of_a_layer_called_twice() -> None:
    """Its weights are stored once."""
    weight = np.random.default_rng(1).standard_normal((J, J, D, D)).astype(np.float32)
    before = model(
        [
            n("MatMul", ["u", "w"], ["votes"]),
            n("ReduceSum", ["votes", "children"], ["h"], keepdims=0),
            n("Unsqueeze", ["h", "parents"], ["v"]),
            n("MatMul", ["v", "w"], ["y"]),
        ],
        {"u": ["N", 1, J, 1, D]},
        w=weight,
        children=np.array([2]),
        parents=np.array([1]),
    )
    after = check_same(before)
    (stored,) = [t for t in after.graph.initializer if len(t.dims) > 2]
    assert list(stored.dims) == [J, D, J * D]


def test_sums_stay_where_their_order_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file without matrix products is kept, and a note says so."""

    def changed_result(made: onnx.ModelProto) -> int:
        made.graph.node[0].op_type = "Sub"
        return 1

    before = model([n("Add", ["x", "x"], ["y"])], {"x": ["N", P]})
    monkeypatch.setattr(proof, "write_matrix_products", changed_result)
    optimized = optimize_model(before.SerializeToString())
    assert kinds(onnx.load_model_from_string(optimized.model)) == {"Add": 1}
    assert any("sums of products stay as they are" in note for note in optimized.notes)


def test_a_stored_vector_is_no_matrix() -> None:
    before = model(
        [n("Mul", ["u", "w"], ["uw"]), n("ReduceSum", ["uw", "a"], ["y"])],
        {"u": ["N", J, 1, P]},
        w=np.arange(P, dtype=np.float32),
        a=np.array([-1]),
    )
    check_same(before)


def test_couplings_of_a_free_length_are_not_stored() -> None:
    """Where a value that is stored would depend on the length, the rest of the file is still optimized."""
    before = model(
        [
            n("Shape", ["u"], ["all"]),
            n("Slice", ["all", "from", "to"], ["some"]),
            n("Expand", ["zero", "some"], ["b"]),
            n("Softmax", ["b"], ["c"], axis=1),
            n("Unsqueeze", ["c", "at"], ["c4"]),
            n("Mul", ["c4", "u"], ["cu"]),
            n("ReduceSum", ["cu", "children"], ["y"]),
        ],
        {"u": ["N", J, "L", P]},
        zero=np.float32(0),
        at=np.array([-1]),
        children=np.array([2]),
        **{"from": np.array([0]), "to": np.array([3])},
    )
    notes = optimize_model(before.SerializeToString()).notes
    assert any("the length stays free" in note for note in notes), notes
