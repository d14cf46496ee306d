"""Whole files: loops, old opsets, the verb, the function, the process that works on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch
from click.testing import CliRunner

import capsedge
from capsedge.cli import app
from capsedge.graph.fusion import matcher, optimize_graph
from capsedge.graph.fusion.execution import session_of
from capsedge.graph.fusion.optimize_graph import optimize_model
from capsedge.graph.fusion.unroll import unroll
from capsedge.spec import limits
from tests.graph.fusion import dynamic_writings as D  # noqa: N812
from tests.graph.fusion.making import exported
from tests.graph.fusion.resembling import Classifier

LOOP = """<ir_version: 8, opset_import: ["": 17]> net (float[N,12,4] x) => (float[N,5,6] v)
{
    y = Tanh(x)  u = Einsum<equation = "ijop,bip->bijo">(W, y)  size = Shape<start = 0, end = 3>(u)
    b0 = ConstantOfShape(size)  z = ReduceSum<keepdims = 0>(u, ax1)  v0 = Mul(z, zero)
    bl, v = Loop(trip, yes, b0, v0) <body = it
    (int64 i, bool go, float[] b, float[] old) => (bool go2, float[] b2, float[] vv)
    {
        go2 = Identity(go)  c = Softmax<axis = 2>(b)  c3 = Unsqueeze(c, ax3)  cu = Mul(c3, u)
        s = ReduceSum<keepdims = 0>(cu, ax1)  q0 = Mul(s, s)  q = ReduceSum(q0, axm)  q1 = Add(q, one)
        f = Div(q, q1)  qe = Add(q, eps)  n = Sqrt(qe)  fs = Mul(f, s)  vv = Div(fs, n)
        v4 = Unsqueeze(vv, ax1)  uv = Mul(u, v4)  a = ReduceSum<keepdims = 0>(uv, axm)  b2 = Add(b, a)
    }>
}"""


def loop(passes: object = 3) -> onnx.ModelProto:
    """Dynamic routing as a Loop."""
    model = parser.parse_model(LOOP)
    rng = np.random.default_rng(0)
    stored = {
        "W": rng.standard_normal((12, 5, 6, 4)).astype("f4"), "trip": np.array(passes), "yes": np.array(True),
        "ax1": np.array([1]), "ax3": np.array([3]), "axm": np.array([-1]), "one": np.float32(1),
        "eps": np.float32(1e-8), "zero": np.float32(0),
    }  # fmt: skip
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(v), k) for k, v in stored.items()
    )
    return model


def test_a_loop_is_written_out_and_recognized() -> None:
    improved = optimize_model(loop().SerializeToString())
    (found,) = improved.fusion.fused
    assert found.parameters["iterations"] == "3"
    assert found.parameters["epsilon"] == "1e-08"
    assert any("1 loop " in note for note in improved.notes)


def test_a_loop_of_many_passes_stays() -> None:
    model, count = unroll(loop(1000))
    assert count == 0
    assert [n.op_type for n in model.graph.node].count("Loop") == 1


def test_a_scan_is_written_out() -> None:
    body = parser.parse_graph(
        "body (float[3] s, float[3] row) => (float[3] t, float[3] o) { t = Add(s, row) o = Mul(t, row) }"
    )
    scan = helper.make_node("Scan", ["s0", "rows"], ["last", "all"], body=body, num_scan_inputs=1)
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> '
        "g (float[3] s0, float[4,3] rows) => (float[3] last, float[4,3] all) {}"
    )
    model.graph.node.append(scan)
    written, count = unroll(model)
    assert count == 1
    feeds = {"s0": np.ones(3, "f4"), "rows": np.arange(12, dtype="f4").reshape(4, 3)}
    runs = (session_of(m).run(None, feeds) for m in (written, model))
    for found, wanted in zip(*runs, strict=True):
        np.testing.assert_allclose(found, wanted)


def as_scan() -> onnx.ModelProto:
    """The same routing as a Scan over three numbers that nothing reads, logits and parents its state."""
    model = loop()
    looped = next(n for n in model.graph.node if n.op_type == "Loop")
    (body,) = (a.g for a in looped.attribute)
    del body.input[:2], body.output[:1]
    body.node.remove(next(n for n in body.node if n.output[0] == "go2"))
    body.input.append(helper.make_tensor_value_info("row", onnx.TensorProto.FLOAT, []))
    scan = helper.make_node("Scan", ["b0", "v0", "rows"], ["bl", "v"], body=body, num_scan_inputs=1)
    looped.CopyFrom(scan)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, "f4"), "rows"))
    return model


def test_a_scan_of_routing_is_recognized() -> None:
    data = as_scan().SerializeToString()
    improved = optimize_model(data)
    (found,) = improved.fusion.fused
    assert (found.operator, found.parameters["iterations"]) == ("DynamicRouting", "3")


OLD = """<ir_version: 3, opset_import: ["": 8]> net (float[N,12,4] x) => (float[N,5,6] v)
{
    y = Tanh(x)  y5 = Unsqueeze<axes = [1, 3]>(y)  m = MatMul(y5, W)  u = Squeeze<axes = [3]>(m)
    z = ReduceSum<axes = [3], keepdims = 0>(u)  b0 = Mul(z, zero)  v0 = ReduceSum<axes = [2], keepdims = 0>(u)
    bl, v = Loop(trip, yes, b0, v0) <body = it
    (int64 i, bool go, float[] b, float[] old) => (bool go2, float[] b2, float[] vv)
    {
        go2 = Identity(go)  t = Transpose<perm = [0, 2, 1]>(b)  c0 = Softmax<axis = 2>(t)
        c = Transpose<perm = [0, 2, 1]>(c0)  c3 = Unsqueeze<axes = [3]>(c)  cu = Mul(c3, u)
        s = ReduceSum<axes = [2], keepdims = 0>(cu)  q0 = Mul(s, s)
        q = ReduceSum<axes = [2], keepdims = 1>(q0)  qe = Add(q, eps)  n = Sqrt(qe)  q1 = Add(q, one)
        f = Div(q, q1)  g = Div(f, n)  vv = Mul(g, s)  v4 = Unsqueeze<axes = [2]>(vv)  uv = Mul(u, v4)
        a = ReduceSum<axes = [3], keepdims = 0>(uv)  b2 = Add(b, a)
    }>
}"""


def test_an_old_file_with_its_weights_among_the_inputs() -> None:
    """Opset 8, IR version 3, a Loop, transposes around the softmax: as tf2onnx wrote it."""
    model = parser.parse_model(OLD)
    stored = {
        "W": np.random.default_rng(0).standard_normal((5, 12, 4, 6)).astype("f4"), "trip": np.array(3),
        "yes": np.array(True), "one": np.float32(1), "eps": np.float32(1e-7), "zero": np.float32(0),
    }  # fmt: skip
    for name, value in stored.items():
        tensor = numpy_helper.from_array(np.array(value), name)
        model.graph.initializer.append(tensor)
        model.graph.input.append(
            helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
        )
    improved = optimize_model(model.SerializeToString())
    (found,) = improved.fusion.fused
    assert (found.operator, found.parameters["epsilon"]) == ("DynamicRouting", "1e-07")
    assert improved.opset_before == 8


@pytest.mark.sample(2)
@pytest.mark.parametrize("opset", [9, 11, 13, 18])
def test_opsets_since(opset: int) -> None:
    x = torch.randn(3, D.CHILDREN, D.SIZE_IN)
    model = exported(D.Batched(), x, opset=opset)
    improved = optimize_model(model.SerializeToString())
    assert improved.opset_before == opset
    assert [f.operator for f in improved.fusion.fused] == ["DynamicRouting"]


@pytest.mark.thorough
def test_two_layers_that_share_a_weight() -> None:
    class Shared(D.Batched):
        def make(self) -> None:
            self.w = self.weight(1, D.CHILDREN, D.CHILDREN, D.SIZE_IN, D.SIZE_IN)

        def route(self, u: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                votes = torch.matmul(self.w, u[:, None, :, :, None]).squeeze(-1)
                b = votes.new_zeros(*votes.shape[:3], 1)
                for i in range(2):
                    u = D.squash_added((b.softmax(1) * votes).sum(2))
                    if i < 1:
                        b = b + torch.matmul(votes, u[..., None])
            return u

    original = exported(Shared(), torch.randn(3, D.CHILDREN, D.SIZE_IN))
    improved = optimize_model(original.SerializeToString())
    assert [f.operator for f in improved.fusion.fused] == ["DynamicRouting"] * 2


@pytest.mark.thorough
def test_one_region_at_fault_does_not_take_the_others_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Pair(D.Batched):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.route(torch.tanh(self.stem(x))), self.route(torch.relu(x))], 1)

    right = matcher.emit_dynamic

    def wrong(graph: Any, found: Any, source: Any, tag: str) -> Any:
        written = right(graph, found, source, tag)
        if tag == "routing_0":
            (bias,) = (t for t in written.edit.initializers if t.name.endswith("_bias"))
            bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + 0.01, bias.name))
        return written

    monkeypatch.setattr(matcher, "emit_dynamic", wrong)
    data = exported(Pair(), torch.randn(3, D.CHILDREN, D.SIZE_IN)).SerializeToString()
    improved = optimize_model(data)
    operators = [f.operator for f in improved.fusion.fused]
    assert operators.count("DynamicRouting") == 1
    (left,) = (e for e in improved.fusion.not_fused if "the whole file would differ" in e.reason)
    assert left.reason.startswith("DynamicRouting")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    x = torch.randn(3, D.CHILDREN, D.SIZE_IN)
    onnx.save(exported(D.Batched(), x, opset=9), folder / "capsules.onnx")
    onnx.save(exported(Classifier(), torch.randn(3, 18, 8)), folder / "other.onnx")
    return folder


@pytest.mark.thorough
def test_the_verb(files: Path, tmp_path: Path) -> None:
    source, target = files / "capsules.onnx", tmp_path / "fused.onnx"
    done = CliRunner().invoke(
        app, ["optimize", str(source), "-o", str(target), "--json", "--measure", "0.1"]
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert [f["operator"] for f in report["fused"]] == ["DynamicRouting"]
    assert report["opset_before"] == 9
    assert report["gain"] > 0
    x = np.random.default_rng(0).standard_normal((5, D.CHILDREN, D.SIZE_IN)).astype("f4")
    found, wanted = (session_of(onnx.load(p)).run(None, {"x": x})[0] for p in (target, source))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.thorough
def test_without_routing_the_file_is_cleaned(files: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app,
        ["optimize", str(files / "other.onnx"), "-o", str(tmp_path / "o.onnx"), "--measure", "0"],
    )
    assert done.exit_code == 0, done.output
    assert "weighs no votes" in done.stdout
    assert (tmp_path / "o.onnx").exists()


@pytest.mark.thorough
def test_a_second_time_changes_nothing(files: Path) -> None:
    first = capsedge.optimize(files / "capsules.onnx", measure=0)
    again = capsedge.optimize(first.model, measure=0)
    assert again.model == first.model
    assert "already" in again.notes[0]


def test_limits_are_those_of_the_process(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPTIMIZE_SECONDS", 0.01)
    with pytest.raises(capsedge.UnsupportedModelError, match="too long"):
        capsedge.optimize(files / "capsules.onnx", measure=0)


def test_opsets_that_are_too_old() -> None:
    ports = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 4]) for n in "xy"]
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:])
    opsets = [onnx.helper.make_opsetid("", 7)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=4)
    with pytest.raises(capsedge.UnsupportedModelError, match="opset 7"):
        capsedge.optimize(model.SerializeToString(), measure=0)


def test_what_the_whole_file_contradicts_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that is put in wrongly is found out by the comparison of files."""
    right = matcher.emit_dynamic

    def wrong(*given: Any) -> Any:
        written = right(*given)
        for tensor in written.edit.initializers:
            if tensor.name.endswith("_weight"):
                tensor.CopyFrom(
                    numpy_helper.from_array(1.01 * numpy_helper.to_array(tensor), tensor.name)
                )
        return written

    monkeypatch.setattr(matcher, "emit_dynamic", wrong)
    improved = optimize_model(loop().SerializeToString())
    assert {f.operator for f in improved.fusion.fused} == {"Squash"}
    (left,) = (e for e in improved.fusion.not_fused if "the whole file would differ" in e.reason)
    assert left.reason.startswith("DynamicRouting")
    assert left.tensor == "v"
    assert all(c.excess <= 1 for c in improved.comparisons)


def test_what_cannot_be_simplified_is_recognized_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_: object) -> onnx.ModelProto:
        raise KeyError("odd")

    x = torch.randn(3, D.CHILDREN, D.SIZE_IN)
    data = exported(D.Einsums(), x).SerializeToString()
    monkeypatch.setattr(optimize_graph, "simplify", fails)
    improved = optimize_model(data)
    assert [f.operator for f in improved.fusion.fused] == ["DynamicRouting"]
    assert "could not be folded" in improved.notes[0]


def graph_of(*nodes: onnx.NodeProto) -> bytes:
    """A file with the input ``x`` and the output ``y``, both ``[N, 4]``."""
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", 4]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


@pytest.mark.thorough
def test_an_output_that_is_nowhere_finite_proves_nothing(tmp_path: Path) -> None:
    zero = helper.make_node("Sub", ["x", "x"], ["zero"])
    data = graph_of(zero, helper.make_node("Div", ["zero", "zero"], ["y"]))
    with pytest.raises(capsedge.ParityError, match="'y' is not finite on any of the inputs"):
        capsedge.optimize(data, tmp_path / "new.onnx", measure=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_an_output_that_is_sometimes_finite_is_compared_there() -> None:
    data = graph_of(helper.make_node("Div", ["x", "x"], ["y"]))  # NaN at zero
    assert capsedge.optimize(data, measure=0).comparisons == 16
