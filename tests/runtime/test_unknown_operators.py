"""Files with operators that a library lacks: their bodies run, or the file is refused by name and version.

A library that lacks an operator is this one without the operator: under another type, which has no kernel,
and for Python also with a table from which it is taken out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import capsedge
from capsedge.errors import EnvironmentProblem

pytest.importorskip("onnx", reason="pip install 'capsedge[build]'")
pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.functions import attach_functions
from capsedge.runtime.onnx_file import summary
from capsedge.spec import operators
from capsedge.spec.operators import OPERATORS
from tests.conformance.cases import BY_NAME, Case, make
from tests.native import libcapsedge

LATER = "7.8.9"
NEW = ("VoteRouting", "QuantizedDynamicRouting")
CASES = {
    operator: next(
        c for c in BY_NAME.values() if c.operator == operator and c.kind == "normal" and c.dims["N"]
    )
    for operator in NEW
}


def written(case: Case, *, bodies: bool, rename: Callable[[str], str] = str) -> bytes:
    """A file with the operator and, before it, one that every library has."""
    inputs = make(case, "float32").inputs
    first = next(iter(inputs))
    node = helper.make_node(
        case.operator, list(inputs), ["v"], domain="capsedge", **dict(case.attributes)
    )
    squash = helper.make_node("Squash", ["x"], [first], domain="capsedge", axis=-1, epsilon=1e-8)
    shape = inputs[first].shape
    graph = helper.make_graph(
        [squash, node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *shape[1:]])],
        [helper.make_tensor_value_info("v", TensorProto.FLOAT, ["N", None, None])],
        [numpy_helper.from_array(x, name) for name, x in inputs.items() if name != first],
        value_info=[helper.make_tensor_value_info(first, TensorProto.FLOAT, ["N", *shape[1:]])],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("capsedge", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model.producer_name, model.producer_version = "capsedge", LATER
    if bodies:
        attach_functions(model)
    for each in (*model.graph.node, *model.functions):
        if isinstance(each, onnx.FunctionProto):
            each.name = rename(each.name)
        else:
            each.op_type = rename(each.op_type)
    return bytes(model.SerializeToString())


def later(name: str) -> str:
    """The type of an operator of a later version."""
    return f"{name}V9" if name in NEW else name


def images(case: Case) -> np.ndarray:
    first = next(iter(make(case, "float32").inputs.values()))
    return np.random.default_rng(0).standard_normal((3, *first.shape[1:])).astype(np.float32)


@pytest.mark.parametrize("operator", NEW)
def test_bodies_run_where_there_is_no_kernel(operator: str, tmp_path: Path) -> None:
    case, path = CASES[operator], tmp_path / "model.onnx"
    path.write_bytes(written(case, bodies=True))
    other = tmp_path / "later.onnx"
    other.write_bytes(written(case, bodies=True, rename=later))
    x = images(case)
    wanted = capsedge.load(path).run(x)["v"]
    np.testing.assert_allclose(capsedge.load(other).run(x)["v"], wanted, atol=2e-6, rtol=2e-5)
    assert np.ptp(wanted) > 0.01
    if libcapsedge.library_path() is not None:
        found = libcapsedge.Session(other).run({"x": x})["v"]
        np.testing.assert_allclose(found, wanted, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("operator", NEW)
@pytest.mark.parametrize("ops", ["auto", "portable"])
def test_files_without_bodies_are_refused(operator: str, ops: str, tmp_path: Path) -> None:
    path = tmp_path / "later.onnx"
    path.write_bytes(written(CASES[operator], bodies=False, rename=later))
    with pytest.raises(EnvironmentProblem) as refused:
        capsedge.load(path, ops=ops)
    for word in (later(operator), LATER, capsedge.__version__, "pip install --upgrade"):
        assert word in str(refused.value)
    assert "Squash" not in str(refused.value)
    if libcapsedge.library_path() is not None:
        with pytest.raises(libcapsedge.Failed) as failed:
            libcapsedge.Session(path, ops=ops)
        assert failed.value.code == libcapsedge.ENVIRONMENT
        for word in (later(operator), LATER, capsedge.__version__, "libcapsedge"):
            assert word in str(failed.value)


@pytest.mark.parametrize("operator", NEW)
def test_a_table_without_the_operator(
    operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[operator]
    bare, full = tmp_path / "bare.onnx", tmp_path / "full.onnx"
    bare.write_bytes(written(case, bodies=False))
    full.write_bytes(written(case, bodies=True))
    x = images(case)
    wanted = capsedge.load(bare).run(x)["v"]
    # A copy, because taking one out and putting it back would change the table's order.
    fewer = {name: spec for name, spec in OPERATORS.items() if name != operator}
    for module in (operators, summary):
        monkeypatch.setattr(module, "OPERATORS", fewer)
    assert operator not in operators.instance_counts([operator])
    with pytest.raises(EnvironmentProblem, match=f"(?s){operator}.*{LATER}"):
        capsedge.load(bare)
    found = capsedge.load(full, ops="portable").run(x)["v"]
    np.testing.assert_allclose(found, wanted, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("producer", [("capsedge", "1; rm -rf /"), ("pytorch", "9.9")])
def test_versions_that_say_nothing_are_not_repeated(
    producer: tuple[str, str], tmp_path: Path
) -> None:
    model = onnx.load_from_string(written(CASES["VoteRouting"], bodies=False, rename=later))
    model.producer_name, model.producer_version = producer
    path = tmp_path / "later.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(EnvironmentProblem) as refused:
        capsedge.load(path)
    assert producer[1] not in str(refused.value)
    assert "later version" in str(refused.value)
