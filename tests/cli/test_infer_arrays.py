"""``capsedge infer --inputs``: outputs for arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("onnx", reason="makes the files: pip install 'capsedge[export]'")

import capsedge
from capsedge.cli import app
from capsedge.errors import UsageError
from capsedge.runtime.session.classify import run_rows
from tests.runtime.test_table_indices import table_file

ROWS = 70  # more than one run takes


def inputs(rows: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {"hist": rng.integers(0, 9, (rows, 5)), "user": rng.integers(0, 4, rows)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    table_file(tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", **inputs())
    return tmp_path


def infer(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["infer", *map(str, arguments)])


def test_outputs_of_all_rows(place: Path) -> None:
    given = ("--inputs", place / "x.npz", "-m", place / "m.onnx")
    result = infer(*given, "-o", place / "out.npz")
    assert result.exit_code == 0, result.output
    wanted = capsedge.load(place / "m.onnx").run(inputs())["interests"]
    with np.load(place / "out.npz") as stored:
        np.testing.assert_allclose(stored["interests"], wanted, rtol=1e-6)
    assert "interests [70, 3]" in result.output
    document = json.loads(infer(*given, "--json").stdout)
    np.testing.assert_allclose(document["outputs"]["interests"], wanted, rtol=1e-6)


def test_no_input_is_replaced(place: Path) -> None:
    for taken in ("x.npz", "m.onnx"):
        before = (place / taken).read_bytes()
        result = infer("--inputs", place / "x.npz", "-m", place / "m.onnx", "-o", place / taken)
        assert "It is an input of the same command" in str(result.exception)
        assert (place / taken).read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "infer takes images or --inputs"),
        (["a.png", "--inputs", "x.npz"], "infer takes images or --inputs"),
        (["--inputs", "x.npz"], "--inputs needs one --model"),
        (["--inputs", "x.npz", "-m", "m.onnx", "--top", "2"], "--top is for images"),
        (["--inputs", "missing.npz", "-m", "m.onnx"], "missing.npz"),
    ],
)
def test_refused(
    place: Path, arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "a.png").write_bytes(b"")
    result = infer(*arguments)
    assert isinstance(result.exception, UsageError)
    assert told in str(result.exception)


def test_an_index_beyond_its_table(place: Path) -> None:
    np.savez(place / "bad.npz", **{**inputs(), "user": np.full(ROWS, 4)})
    result = infer("--inputs", place / "bad.npz", "-m", place / "m.onnx", "-o", place / "out.npz")
    assert isinstance(result.exception, UsageError)
    assert "Input 'user' has an index that its table does not have" in str(result.exception)
    assert not (place / "out.npz").exists()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"user": np.zeros(3, np.int64)}, "Rows: hist 70, user 3"),
        ({"hist": np.zeros((0, 5), np.int64), "user": np.zeros(0, np.int64)}, "have none"),
        ({"user": np.zeros(ROWS)}, "has the type float64"),
    ],
)
def test_rows_that_do_not_fit(place: Path, changed: dict[str, Any], told: str) -> None:
    with capsedge.load(place / "m.onnx") as session, pytest.raises(UsageError, match=told):
        run_rows(session, {**inputs(), **changed})


def test_smaller_whole_numbers_are_cast(place: Path) -> None:
    with capsedge.load(place / "m.onnx") as session:
        found = run_rows(session, {n: x.astype(np.uint8) for n, x in inputs().items()}, 7)
        np.testing.assert_allclose(
            found["interests"], session.run(inputs())["interests"], rtol=1e-6
        )
