"""Sigmoids whose relative error matters are exact down to -100, in ONNX Runtime, in float and float16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.bodies import function_body
from capsedge.graph.rewrites import write_exact_sigmoids

Array = NDArray[np.float64]
X = np.array([-100, -90, -88, -50, -30, -20, -18, -17, -16, -12, -5, -1, 0, 1, 17, 50, 100], "f8")
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
node = helper.make_node


def logistic(x: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -x))


def model(
    nodes: Sequence[onnx.NodeProto], kind: int = FLOAT, **constants: float
) -> onnx.ModelProto:
    """``x [17]`` to ``y``; a constant called ``axis`` is a list of axes."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    stored = {
        n: np.asarray([v], np.int64) if n == "axis" else np.asarray(v, dtype)
        for n, v in constants.items()
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [len(X)])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(v, n) for n, v in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def run(made: onnx.ModelProto, x: Array = X) -> Array:
    kind = made.graph.input[0].type.tensor_type.elem_type
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    given = x.astype(helper.tensor_dtype_to_np_dtype(kind))
    return np.asarray(session.run(None, {"x": given})[0], np.float64)


def assert_close(found: Array, wanted: Array, atol: float) -> None:
    """From -88 on the logistic function is no normal number of FP32: its digits dwindle to one."""
    rtol = np.where(X < -87.3, 0.03, 5e-6)
    assert (np.abs(found - wanted) <= atol + rtol * np.abs(wanted)).all(), (found, wanted)


S = node("Sigmoid", ["x"], ["s"])
GRAPHS: dict[str, tuple[list[onnx.NodeProto], dict[str, float], Callable[[Array], Array]]] = {
    "logarithm": (
        [S, node("Log", ["s"], ["y"])],
        {},
        lambda x: -np.logaddexp(0.0, -x),
    ),
    "logarithm of a view": (
        [S, node("Unsqueeze", ["s", "axis"], ["v"]), node("Log", ["v"], ["y"])],
        {"axis": 0},
        lambda x: -np.logaddexp(0.0, -x)[None],
    ),
    "logarithm of a product": (
        [S, node("Mul", ["s", "two"], ["v"]), node("Log", ["v"], ["y"])],
        {"two": 2.0},
        lambda x: np.log(2.0) - np.logaddexp(0.0, -x),
    ),
    "quotient of itself": (
        [S, node("Add", ["s", "tiny"], ["v"]), node("Div", ["s", "v"], ["y"])],
        {"tiny": 1e-8},
        lambda x: logistic(x) / (logistic(x) + 1e-8),
    ),
    "share": (
        [S, node("Mul", ["s", "two"], ["v"]), node("Div", ["v", "s"], ["y"])],
        {"two": 2.0},
        lambda x: np.full(len(x), 2.0),
    ),
    "share of a sum": (
        [
            S,
            node("Unsqueeze", ["s", "axis"], ["v"]),
            node("Concat", ["v", "v"], ["r"], axis=0),
            node("ReduceSum", ["r", "axis"], ["t"], keepdims=1),
            node("Div", ["r", "t"], ["y"]),
        ],
        {"axis": 0},
        lambda x: np.full((2, len(x)), 0.5),
    ),
    "reciprocal": (
        [
            S,
            node("Add", ["s", "tiny"], ["v"]),
            node("Reciprocal", ["v"], ["r"]),
            node("Mul", ["r", "s"], ["y"]),
        ],
        {"tiny": 1e-8},
        lambda x: logistic(x) / (logistic(x) + 1e-8),
    ),
}


@pytest.mark.parametrize("kind", [FLOAT, HALF], ids=["float", "float16"])
@pytest.mark.parametrize("name", GRAPHS)
def test_tails(name: str, kind: int) -> None:
    if kind == HALF and name == "reciprocal":
        pytest.skip("its epsilon is zero in float16, and 1e44 no number of FP32")
    nodes, constants, function = GRAPHS[name]
    made = model(nodes, kind, **constants)
    before = run(made)
    assert write_exact_sigmoids(made) == 1
    assert "Sigmoid" not in {n.op_type for n in made.graph.node}
    found, wanted = run(made), function(X)
    assert np.isfinite(found).all()
    if kind == FLOAT:
        assert_close(found, wanted, 1.2e-7 if "logarithm" in name else 1e-44)
    elif "tiny" not in constants:
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=6e-8)
    else:  # zero in float16
        assert (found[X > -17] > 0.99).all()
    lost = ~np.isfinite(before) | (np.abs(before - wanted) > 0.01 * np.abs(wanted) + 6e-8)
    assert lost.any()  # the test sees what it is about


@pytest.mark.parametrize("kind", [FLOAT, HALF], ids=["float", "float16"])
def test_other_users_keep_their_type(kind: int) -> None:
    """A result that also goes elsewhere, and a region with an input of its own."""
    nodes = [
        S,
        node("Mul", ["s", "x"], ["m"]),
        node("Div", ["m", "s"], ["q"]),
        node("Concat", ["q", "s", "m"], ["y"], axis=0),
    ]
    made = model(nodes, kind)
    assert write_exact_sigmoids(made) == 1
    found = run(made).reshape(3, -1)
    rtol = 1e-3 if kind == HALF else 1e-6
    ordinary = X > -87
    np.testing.assert_allclose(found[0][ordinary], X[ordinary], rtol=rtol)
    np.testing.assert_allclose(found[1], logistic(X), rtol=rtol, atol=6e-8)


def test_others_stay_as_they_are() -> None:
    gate = [S, node("Mul", ["s", "x"], ["y"])]
    half = [S, node("Div", ["s", "two"], ["y"])]
    outside = [
        S,
        node("Sub", ["s", "two"], ["d"]),
        node("Exp", ["d"], ["e"]),
        node("Log", ["e"], ["y"]),
    ]
    constants = {"two": 2.0}
    for nodes, stored in ((gate, {}), (half, constants), (outside, constants)):
        made = model(nodes, **stored)
        before = made.SerializeToString()
        assert write_exact_sigmoids(made) == 0
        assert made.SerializeToString() == before


@pytest.mark.parametrize("coordinates", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bodies(coordinates: bool, dtype: type) -> None:
    """Activations of parents far below -18, from the function bodies in ONNX Runtime."""
    m = len(X)
    shapes = {"pose": (1, 1, 1, 2, 4), "a": (1, 1, 1, 2), "weight": (1, 1, 2, m, 2, 2)}
    shapes |= {"beta_u": (m,), "beta_a": (m,)}
    attributes = {
        "iterations": 1, "strides": [1, 1], "inverse_temperatures": [1.0], "shared": 0, "epsilon": 1e-6,
    }  # fmt: skip
    if coordinates:
        shapes["coordinates"] = (1, 1, 4)
    body = function_body("EMRouting", [*shapes.values()], attributes)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [node("EMRouting", list(shapes), ["p", "y"], domain="capsedge", **attributes)],
        "g",
        [helper.make_tensor_value_info(n, kind, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("y", kind, None)],
    )
    opsets = [*body.opset_import, helper.make_opsetid("capsedge", 1)]
    made = helper.make_model(graph, functions=[body], opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    # Children that do not act have no mass: the argument is beta_a.
    feeds = {n: np.zeros(s, dtype) for n, s in shapes.items()} | {"beta_a": X.astype(dtype)}
    (found,) = session.run(None, feeds)
    wanted = logistic(X)
    if dtype is np.float32:
        assert_close(found.reshape(-1), wanted, 0)
    else:
        np.testing.assert_allclose(found.reshape(-1), wanted, rtol=1e-3, atol=6e-8)


@pytest.mark.thorough
def test_modules_and_foreign_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'capsedge[export]'")
    import capsedge
    from capsedge.models import ops

    class Net(torch.nn.Module):
        """Activations from -100 to 100 into EM routing, a logarithm and a quotient."""

        def forward(self, x):  # type: ignore[no-untyped-def]
            a = torch.sigmoid(x)
            n = x.shape[0]
            pose = torch.ones(1, 1, 1, 1, 4) * x.reshape(n, 1, 1, -1, 1) / 100
            eye = torch.eye(2).reshape(1, 1, 1, 1, 2, 2).repeat(1, 1, len(X), 3, 1, 1)
            mean, _, _ = ops.em_routing(
                pose, a.reshape(n, 1, 1, -1), eye, torch.zeros(3), torch.zeros(3),
                inverse_temperatures=(1e-3, 1e-3), epsilon=1e-8, normalize_activations=True,
            )  # fmt: skip
            return {"mean": mean, "logs": torch.log(a), "share": a / (a + 1e-8)}

    given = torch.tensor(X, dtype=torch.float32)[None]
    example = given.repeat(2, 1) / 10
    capsedge.export(Net(), tmp_path / "net.onnx", example=example)
    exported = onnx.load(tmp_path / "net.onnx")
    assert "Sigmoid" not in {n.op_type for n in exported.graph.node}
    session = onnxruntime.InferenceSession(
        tmp_path / "net.onnx", providers=["CPUExecutionProvider"]
    )
    found = dict(
        zip(("mean", "logs", "share"), session.run(None, {"x": given.numpy()}), strict=True)
    )
    np.testing.assert_allclose(found["logs"][0], -np.logaddexp(0.0, -X), rtol=1e-6, atol=1e-7)
    share = logistic(X) / (logistic(X) + 1e-8)
    assert_close(found["share"][0], share, 0)
    wanted = Net()(given)["mean"].numpy()
    np.testing.assert_allclose(found["mean"], wanted, rtol=1e-4, atol=1e-5)

    nodes, constants, _ = GRAPHS["quotient of itself"]
    foreign = model(nodes, **constants)
    report = capsedge.optimize(foreign.SerializeToString(), tmp_path / "o.onnx", measure=0)
    assert any("Sigmoid written exactly" in note for note in report.notes)
    assert_close(run(onnx.load(tmp_path / "o.onnx")), share, 0)
