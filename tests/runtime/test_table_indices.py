"""Inputs that are indices: named errors in Python and C, for files of ``export`` and of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="makes the files: pip install 'capsedge[export]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import capsedge  # noqa: E402
from capsedge.errors import ArtefactError, UsageError  # noqa: E402
from capsedge.runtime.metadata.table_indices import (  # noqa: E402
    InputBounds,
    inputs_property,
    read_inputs_property,
)
from capsedge.spec.fields import INPUTS_KEY  # noqa: E402
from tests.native.libcapsedge import ARTEFACT, USAGE, Failed, Session, library_path  # noqa: E402

needs_library = pytest.mark.skipif(library_path() is None, reason="libcapsedge is not built")
ENTRIES = {"hist": 9, "user": 4}
STATED = {
    "hist": InputBounds(9, (0, 6), independent=True),
    "user": InputBounds(4, (), independent=True),
}


def table_file(
    path: Path,
    properties: dict[str, str] | None = None,
    length: int | str = "L",
    batch: int | str = "N",
) -> Path:
    """A sum of the items of a history ``[N, L]`` and of a user ``[N]``, from tables of 9 and 4 entries."""
    rng = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array(rng.random((n, 3), np.float32), f"{name}_table")
        for name, n in ENTRIES.items()
    ]
    nodes = [
        helper.make_node("Gather", ["hist_table", "hist"], ["items"]),
        helper.make_node("ReduceSum", ["items", "one"], ["sum"], keepdims=0),
        helper.make_node("Gather", ["user_table", "user"], ["row"]),
        helper.make_node("Add", ["sum", "row"], ["interests"]),
    ]
    shapes = {"hist": [batch, length], "user": [batch]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.INT64, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("interests", TensorProto.FLOAT, [batch, 3])],
        [*stored, numpy_helper.from_array(np.array([1]), "one")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, inputs_property(STATED) if properties is None else properties)
    onnx.save(model, path)
    return path


def given(**changed: Any) -> dict[str, np.ndarray]:
    inputs = {"hist": np.full((2, 5), 8), "user": np.array([0, 3])} | changed
    return {name: np.asarray(x, np.int64) for name, x in inputs.items() if x is not None}


# What is passed; what Python says, and C.
WRONG: list[tuple[dict[str, Any], str, str]] = [
    (
        {"hist": [[1, 2], [3, 9]]},
        r"'hist' has an index that its table does not have.\nFound: 9 at \[1, 1\]; expected: 0 to 8",
        r"'hist' has an index that its table does not have.\nFound: 9; expected: 0 to 8",
    ),
    (
        {"hist": [[-1, 2], [3, -7]]},
        r"Found: -1 at \[0, 0\] and 1 more; expected: 0 to 8",
        "Found: -1 and 1 more; expected: 0 to 8",
    ),
    ({"user": [0, 4]}, r"'user' .*\nFound: 4 at \[1\]", "'user' .*\nFound: 4; expected: 0 to 3"),
    (
        {"hist": np.zeros((2, 0))},
        r"'hist' has an empty axis.\nIts shape is \[2, 0\]",
        r"'hist' has an empty axis.\nIts shape is \[2, 0\]",
    ),
    (
        {"hist": np.zeros((2, 7))},
        r"'hist' is too long for the network.\nIts shape is \[2, 7\], and axis 1 has at most 6.\nKeep the 6",
        r"'hist' is too long for the network.\nIts shape is \[2, 7\], and axis 1 has at most 6.\nKeep the 6",
    ),
    (
        {"hist": np.zeros((1, 5))},
        r"'hist' and 'user' do not fit together.\nN is 1 in \[1, 5\] and 2 in \[2\]",
        "'hist' and 'user' do not fit together.\nThe batch is 1 in the one and 2 in the other",
    ),
    (
        {"hist": np.zeros((2, 5, 1))},
        r"shape \[2, 5, 1\].\nExpected: \[N, L\].\nPad shorter inputs",
        r"shape \[2, 5, 1\].\nExpected: \[N, N\].\nPad shorter inputs",
    ),
    ({"user": None}, "Missing: user", "has 2 inputs, and 1 were given.\nIts inputs: hist, user"),
]


@pytest.mark.parametrize(("changed", "told", "_"), WRONG)
def test_python_names_the_input(tmp_path: Path, changed: dict[str, Any], told: str, _: str) -> None:
    session = capsedge.load(table_file(tmp_path / "m.onnx"))
    with pytest.raises(UsageError, match=told):
        session.run(given(**changed))
    assert session.run(given())["interests"].shape == (2, 3)


@needs_library
@pytest.mark.parametrize(("changed", "_", "told"), WRONG)
def test_c_names_the_input(tmp_path: Path, changed: dict[str, Any], _: str, told: str) -> None:
    path = table_file(tmp_path / "m.onnx")
    session = Session(path)
    with pytest.raises(Failed, match=told) as failed:
        session.run(given(**changed), {"interests": 64})
    assert failed.value.code == USAGE
    found = session.run(given(), {"interests": 64})["interests"]
    np.testing.assert_array_equal(found, capsedge.load(path).run(given())["interests"])


def test_a_file_of_another_tool_says_it_too(tmp_path: Path) -> None:
    """ONNX takes -1 for the last entry, and ONNX Runtime refuses what is beyond."""
    session = capsedge.load(table_file(tmp_path / "m.onnx", {}))
    last = session.run(given(user=[-1, 3]))["interests"]
    np.testing.assert_array_equal(last[0], last[1])
    with pytest.raises(UsageError, match=r"'user' has an index.*\nFound: 4; expected: 0 to 3"):
        session.run(given(user=[4, 0]))


@needs_library
def test_c_says_it_of_a_file_of_another_tool(tmp_path: Path) -> None:
    session = Session(table_file(tmp_path / "m.onnx", {}))
    with pytest.raises(
        Failed, match="An input has an index that its table does not have"
    ) as failed:
        session.run(given(user=[4, 0]), {"interests": 64})
    assert failed.value.code == USAGE


DAMAGED = {
    "no object": "[]",
    "no JSON": "{",
    "an entry of another kind": '{"hist": 9}',
    "another member": '{"hist": {"entries": 9, "rows": 9}}',
    "no table": '{"hist": {"entries": 0}}',
    "a fraction": '{"hist": {"entries": 1.5}}',
    "nothing": '{"hist": {}}',
    "no length": '{"hist": {"longest": [0, 0]}}',
    "a length below 0": '{"hist": {"longest": [0, -1]}}',
    "a length that is none": '{"hist": {"longest": [null, 6]}}',
    "one length": '{"hist": {"longest": 6}}',
    "rows that depend on each other": '{"hist": {"independent": false}}',
    "a number for a truth": '{"hist": {"independent": 1}}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_property_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ArtefactError, match="property capsedge_inputs cannot be read"):
        read_inputs_property({INPUTS_KEY: text})
    if library_path() is not None:
        with pytest.raises(Failed, match="property capsedge_inputs cannot be read") as failed:
            Session(table_file(tmp_path / "m.onnx", {INPUTS_KEY: text}))
        assert failed.value.code == ARTEFACT


@pytest.mark.parametrize("longest", [[6], [0, 6, 6]])
def test_lengths_of_other_axes_are_refused(tmp_path: Path, longest: list[int]) -> None:
    """Known only beside the graph."""
    path = table_file(tmp_path / "m.onnx", {INPUTS_KEY: f'{{"hist": {{"longest": {longest}}}}}'})
    told = f"lengths of {len(longest)} axes of 'hist', which has 2"
    with pytest.raises(ArtefactError, match=told):
        capsedge.load(path)
    if library_path() is not None:
        with pytest.raises(Failed, match=told) as failed:
            Session(path)
        assert failed.value.code == ARTEFACT


def test_the_property_comes_back() -> None:
    assert inputs_property({}) == {}
    assert read_inputs_property({}) == {}
    for stated in (
        STATED,
        {"hist": InputBounds(9, (0, 6))},
        {"user": InputBounds(independent=True)},
    ):
        assert read_inputs_property(inputs_property(stated)) == stated


@needs_library
def test_another_number_of_rows_than_a_fixed_batch(tmp_path: Path) -> None:
    """The batch is at fault, not the length of the history."""
    path = table_file(tmp_path / "m.onnx", batch=2)
    session, native = capsedge.load(path), Session(path)
    three, short = given(hist=np.ones((3, 5)), user=[0, 1, 2]), given(hist=np.ones((2, 5, 1)))
    for inputs, told in ((three, "batch is fixed: pass 2 in each run"), (short, "Pad shorter")):
        with pytest.raises(UsageError, match=told):
            session.run(inputs)
        with pytest.raises(Failed, match=told):
            native.run(inputs)
