"""``capsedge profile``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from capsedge.cli import app
from capsedge.errors import CapsedgeError, UnsupportedModelError, UsageError
from tests.conftest import ROOT
from tests.runtime.models import capsule_model, save

MODEL = str(ROOT / "capsedge/zoo/digits-dynamic.onnx")
QUICK = ["--warmup", "0", "--duration", "0.05", "--threads", "1"]


def run(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["profile", *options])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


@pytest.mark.thorough
def test_json_and_files(tmp_path: Path):
    html, trace, text = (tmp_path / f"report.{e}" for e in ("html", "json", "md"))
    options = ["--report", str(html), "--report", str(trace), "--report", str(text), "--json"]
    code, out = run(MODEL, "--batch", "1,2", *QUICK, *options)
    document = json.loads(out)
    assert code == 0
    assert [r["batch"] for r in document["runs"]] == [1, 2]
    assert document["runs"][0]["threads"] == 1
    assert html.read_text().startswith("<!doctype html>")
    assert json.loads(trace.read_text())["traceEvents"]
    assert text.read_text().startswith("# Profile")


@pytest.mark.thorough
def test_tables_and_a_peer(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("capsedge.runtime.profiling.compare.PAUSE", 0.0)
    monkeypatch.setattr("capsedge.runtime.profiling.compare.TURN_WARMUP", 0.0)
    model = save(capsule_model(), tmp_path / "model.onnx")
    code, out = run(str(model), *QUICK, "--no-operators", "--compare", "ort")
    assert code == 0
    assert "Latency, milliseconds per batch" in out
    assert "Side by side" in out


@pytest.mark.thorough
def test_a_peer_that_computes_something_else_is_exit_code_4(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("capsedge.runtime.profiling.compare.PAUSE", 0.0)
    model = save(capsule_model(), tmp_path / "model.onnx")
    other = save(capsule_model(gain=5.0), tmp_path / "other.onnx")
    options = ["--no-operators", "--compare", "ort", "--peer-model", str(other)]
    code, out = run(str(model), *QUICK, *options)
    assert code == 4
    assert "differs from" in out


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--compare", "tflite"], UsageError),
        (["--batch", "one"], UsageError),
        (["--batch", "0"], UsageError),
        (["--duration", "-1"], UsageError),
        (["--report", "nowhere/report.html"], UsageError),
        (["--report", "report.pdf"], UsageError),
        (["--report", "t.json", "--no-operators"], UsageError),
        (["--compare", "ort", "--peer-model", "nowhere.onnx"], UsageError),
        (["--peer-model", MODEL], UsageError),
        (["--compare", "ort", "--checkpoint", "model.safetensors"], UsageError),
        (["--compare", "openvino"], UnsupportedModelError),
    ],
)
def test_errors_come_before_the_work(options: list[str], error: type[CapsedgeError]):
    if "openvino" in options:
        pytest.importorskip("openvino")
    with pytest.raises(error):
        run(MODEL, *QUICK, *options)
