"""The portability benchmark: whatever a runtime does is a row of the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import portability
from benchmarks.portability import BEGIN, END, Prepared, Row, interpreter, judge, row


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    onnx = pytest.importorskip("onnx", reason="pip install 'capsedge[build]'")
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("Relu", ["images"], ["lengths"])],
        "graph",
        [helper.make_tensor_value_info("images", 1, [1, 3])],
        [helper.make_tensor_value_info("lengths", 1, [1, 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    images = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    np.savez(tmp_path / "in.npz", images=images)
    return Prepared(
        {"": tmp_path / "m.onnx"}, tmp_path / "in.npz", {"lengths": np.maximum(images, 0)}, 1.0
    )


def test_a_runtime_that_is_right(prepared: Prepared) -> None:
    found = row("onnx.reference", "m", "fp32", prepared, sys.executable, 0.0)
    assert (found.converts, found.problem, found.difference, found.flips) == (True, "", 0.0, 0)
    assert found.median_ms is not None
    assert found.version.startswith("onnx ")


def test_a_runtime_that_is_wrong(prepared: Prepared) -> None:
    wrong = {"lengths": prepared.outputs["lengths"] + np.array([0.0, 5.0, 0.0], np.float32)}
    other = Prepared(prepared.files, prepared.inputs, wrong, 1.0)
    found = row("onnx.reference", "m", "fp32", other, sys.executable, 0.0)
    assert found.converts
    assert found.problem.startswith("wrong: ")
    assert found.flips


def test_a_runtime_that_is_missing(prepared: Prepared, tmp_path: Path) -> None:
    for module in ("tract", "ncnn"):
        (tmp_path / module).mkdir()
    found = row("tract", "m", "fp32", prepared, sys.executable, 0.0)
    if not found.converts:
        assert "tract" in found.problem
    found = row("tract", "m", "fp32", prepared, str(tmp_path / "no-python"), 0.0)
    assert (found.converts, found.difference) == (False, None)
    assert "cannot start" in found.problem


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os; os.abort()", "ended with code -6"),
        ("import time; time.sleep(60)", "gave no answer within 2.0 s"),
        ("import sys; sys.exit('a reason')", "ended with code 1. a reason"),
        ("print('a log'); print('{not all of it')", "ended with code 0"),
        ("""print('{"error": ["refused", "why", ""]}')""", "refused why"),
    ],
)
def test_a_runtime_that_fails(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(program)
    monkeypatch.setattr(portability, "WORKER", worker)
    limit = 2.0 if "sleep" in program else 60.0
    found = row("mnn", "m", "fp32", prepared, sys.executable, 0.0, limit)
    assert not found.converts
    assert message in found.problem


def test_outputs_are_matched_by_name_size_and_order() -> None:
    wanted = {"lengths": np.eye(2), "poses": np.ones((2, 2, 3))}
    poses, lengths = np.ones((2, 1, 6)), np.eye(2)[:, None]
    assert judge({"p": poses, "l": lengths}, wanted) == (0.0, 0)
    swapped = {"other": lengths, "lengths": lengths[::-1]}
    assert judge(swapped, {"lengths": np.eye(2)}) == (1.0, 2)
    second = {"a": lengths[::-1], "b": lengths}
    assert judge(second, {"x": np.eye(2)[::-1], "y": np.eye(2)}) == (0.0, 0)
    assert judge({"lengths": np.full((2, 1, 2), np.nan)}, {"lengths": np.eye(2)})[0] == np.inf
    with pytest.raises(ValueError, match="no output with 6 elements"):
        judge({"lengths": lengths}, wanted)


def test_the_interpreter_of_a_runtime(tmp_path: Path) -> None:
    assert interpreter("mnn", tmp_path) == sys.executable
    place = tmp_path / "mnn" / "bin" / "python"
    place.parent.mkdir(parents=True)
    place.touch()
    assert interpreter("mnn", tmp_path) == str(place)


def test_the_table(tmp_path: Path) -> None:
    rows = [
        Row("mnn", "MNN 3", "m", "fp32", True, 2e-7, 0, 0.5, 0.25),
        Row("ncnn", "", "m", "fp32", False, problem="a | <b>\n" + "x" * 300),
    ]
    document = {
        "machine": {"cpu": "one"},
        "command": "python",
        "rows": [json.loads(json.dumps(r.__dict__)) for r in rows],
    }
    text = portability.markdown(document)
    assert "| MNN 3 | m | fp32 | yes | 2.0e-07 | 0 | 0.50 | 0.25 |" in text
    assert "| ncnn | m | fp32 | a \\| &lt;b> xxx" in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    portability.write_table(text, page)
    assert page.read_text() == f"before\n{BEGIN}\n{text}\n{END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="no <!--"):
        portability.write_table(text, page)
