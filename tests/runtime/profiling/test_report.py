"""What a report says, and how it is written down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import capsedge
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.profiling.profile import (
    MeasurementConditions,
    ProfileReport,
    measurement_warnings,
)
from capsedge.runtime.profiling.profile_options import ProfileOptions
from tests.conftest import ROOT

MODEL = ROOT / "capsedge/zoo/digits-dynamic.onnx"


def test_the_document_is_json_and_repeats_the_samples(report: ProfileReport):
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    for run in document["runs"]:
        samples = run["samples_ms"]
        assert run["latency_ms"]["p99"] == pytest.approx(np.percentile(samples, 99), rel=1e-12)
        assert run["latency_ms"]["count"] == len(samples) >= 10
    assert "samples_ms" not in report.to_dict(samples=False)["runs"][0]


def test_sums_are_consistent(report: ProfileReport):
    for run in report.runs:
        assert run.operators is not None
        total = sum(o.microseconds for o in run.operators.operators) / 1e3
        assert run.operators.sum_ms == pytest.approx(total)
        assert sum(r.milliseconds for r in run.layers) == pytest.approx(total)
        assert sum(r.milliseconds for r in run.groups) == pytest.approx(total)
        assert run.operators.attributed > 0


def test_markdown_has_every_layer(report: ProfileReport):
    text = report.to_markdown()
    for row in report.runs[0].layers:
        assert f"| {row.name} |" in text


def test_the_trace_is_one_that_perfetto_loads(report: ProfileReport, tmp_path: Path):
    """Complete events with integers for process and thread, no negative times; layers enclose operators."""
    report.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    names = [e for e in trace["traceEvents"] if e["ph"] == "M"]
    assert len(spans) + len(names) == len(trace["traceEvents"])
    assert {e["name"] for e in names} == {"process_name", "thread_name"}
    for e in spans:
        assert isinstance(e["pid"], int)
        assert isinstance(e["tid"], int)
        assert e["ts"] >= 0
        assert e["dur"] >= 0
    for pid in {e["pid"] for e in spans}:
        mine = [e for e in spans if e["pid"] == pid]
        layers, operators = ([e for e in mine if e["tid"] == t] for t in (2, 1))
        for o in operators:
            assert any(
                a["ts"] <= o["ts"] and o["ts"] + o["dur"] <= a["ts"] + a["dur"] for a in layers
            ), o["name"]


@pytest.mark.thorough
def test_png(report: ProfileReport, tmp_path: Path):
    pytest.importorskip("matplotlib")
    from PIL import Image

    report.save_png(tmp_path / "report.png")
    with Image.open(tmp_path / "report.png") as image:
        assert image.width > 800
        assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 50


@pytest.mark.parametrize("kind", ["png", "html"])
def test_charts_without_matplotlib_say_what_to_install(
    kind: str, report: ProfileReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'capsedge\[profile\]'"):
        getattr(report, f"save_{kind}")(tmp_path / f"report.{kind}")


@pytest.mark.thorough
def test_a_file_of_another_tool_is_grouped_by_operator_type(tmp_path: Path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 64]) for n in "xy")
    w = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], np.ones(64 * 64, np.float32))
    opset = [helper.make_opsetid("", 20)]
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    model = helper.make_model(graph, ir_version=9, opset_imports=opset)
    path = tmp_path / "other.onnx"
    onnx.save(model, path)
    run = capsedge.profile(
        capsedge.load(path, threads=1),
        batch=(4,),
        warmup=0,
        duration=0.05,
        startup=False,
    ).runs[0]
    rows = {row.name: row for row in run.layers}
    assert run.groups == []
    assert rows["MatMul"].operators == 2
    assert rows["MatMul"].operations == 2 * 2 * 4 * 64 * 64


@pytest.mark.thorough
def test_startup_is_of_a_process_of_its_own():
    session = capsedge.load(MODEL, threads=1)
    run = capsedge.profile(session, warmup=0, duration=0.05, operators=False).runs[0]
    assert run.operators is None
    assert run.startup is not None
    s = run.startup
    assert s.cold_start_ms > s.load_ms > 0
    assert s.cold_start_ms > s.first_ms > 0
    assert s.peak_bytes is None or s.peak_bytes >= (s.steady_bytes or 0) > 2**20


@pytest.mark.thorough
def test_profiling_needs_no_torch_and_no_onnx(tmp_path: Path):
    code = (
        "import sys; sys.modules.update(torch=None, onnx=None, matplotlib=None, rich=None, click=None)\n"
        "import capsedge\n"
        f"s = capsedge.load({str(MODEL)!r}, threads=1)\n"
        "r = capsedge.profile(s, warmup=0, duration=0.02, startup=False)\n"
        "r.save_trace('trace.json'); print(r.to_markdown())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert "classes" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "bad", [{"warmup": -1.0}, {"duration": -1.0}, {"iterations": 0}, {"batch": (0,)}, {"batch": ()}]
)
def test_wrong_limits(bad):
    with pytest.raises(UsageError):
        capsedge.profile(capsedge.load(MODEL, threads=1), **bad)


def test_inputs_that_are_no_numbers_are_refused(tmp_path: Path):
    x, y = (helper.make_tensor_value_info(n, TensorProto.STRING, ["N"]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "text", [x], [y])
    path = tmp_path / "text.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8), path
    )
    with pytest.raises(UsageError, match="Random values"):
        capsedge.profile(capsedge.load(path))


def test_warnings(report: ProfileReport):
    run = report.runs[0]
    calm = MeasurementConditions((1.0, 1.0), 0.0, 2, 0.0)
    steady = {**run.latency.__dict__, "cv": 0.01}
    latency = type(run.latency)(**steady)
    window = type(run.stable)(0, 100, latency.median)
    assert measurement_warnings(latency, window, calm, None, False) == []
    found = measurement_warnings(
        type(run.latency)(**{**steady, "cv": 0.5}),
        type(run.stable)(None, 0, 1.0),
        MeasurementConditions((1.0, 0.5), 3.0, 2, 0.2),
        None,
        False,
    )
    kinds = [sentence.partition(":")[0] for sentence in found]
    assert kinds == ["Variance", "No stable window", "CPU frequency", "CPU load", "CPU load"]


def test_many_slow_runs_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    session = capsedge.load(MODEL, threads=1)
    measured = {"taken": 0.01}
    monkeypatch.setattr(
        "capsedge.runtime.profiling.profile.timed_runs", lambda *_: [measured["taken"]]
    )
    options = ProfileOptions(
        warmup=0.001, duration=0.001, iterations=2, operators=False, startup=False
    )
    said: list[str] = []
    capsedge.profile(session, options, progress=said.append)
    assert len(said) == 1
    measured["taken"] = 7.0
    capsedge.profile(session, options, progress=said.append)
    assert said[-1].startswith("one run takes 7.0 s: 2 runs, the least number, take 14 s")
