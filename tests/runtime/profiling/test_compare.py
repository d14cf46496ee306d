"""Peers: in turns, after their outputs were compared."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import capsedge
from capsedge.errors import CapsedgeError, EnvironmentProblem, UsageError
from capsedge.runtime.profiling import report_text, worker
from capsedge.runtime.profiling.compare import (
    Entrant,
    Entry,
    SpeedComparison,
    check_installed,
    compare,
    largest_difference,
)
from capsedge.runtime.profiling.profile import random_inputs, session_device
from capsedge.runtime.profiling.startup import Worker, write_inputs
from capsedge.runtime.profiling.timing import summarize
from capsedge.runtime.profiling.worker import RunLimits, Specification
from tests.runtime.models import capsule_model, save


def entrant(name: str, peer: str, model: Path) -> Entrant:
    return Entrant(name, Specification(peer, str(model), "", threads=1), "model")


@pytest.mark.thorough
def test_same_model_and_another(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("capsedge.runtime.profiling.compare.PAUSE", 0.0)
    monkeypatch.setattr("capsedge.runtime.profiling.compare.TURN_WARMUP", 0.0)
    model = save(capsule_model(), tmp_path / "model.onnx")
    other = save(capsule_model(gain=5.0), tmp_path / "other.onnx")
    feeds = random_inputs(capsedge.load(model), 2)
    entrants = [
        entrant("capsedge", "capsedge", model),
        entrant("ort", "ort", model),
        entrant("wrong", "ort", other),
    ]
    found = compare(entrants, feeds, RunLimits(0.0, 0.0, 10))
    first, same, wrong = found.entries
    assert first.difference == 0
    assert same.difference < 1e-5
    assert same.latency is not None
    assert len(first.samples) == len(same.samples) == 10
    assert found.ratio(first) == 1
    assert found.fastest in (first, same)
    assert (first.from_first_file, same.from_first_file) == (0, same.difference)
    assert wrong.from_first_file == wrong.difference
    assert found.failed == (wrong,)
    assert "differs from capsedge" in wrong.problem
    assert wrong.samples == ()
    assert "onnxruntime" in same.version


@pytest.mark.thorough
def test_differences_are_from_the_first_file(tmp_path: Path, monkeypatch):
    """Two networks: each backend is checked against its own, and both are compared with the first file."""
    monkeypatch.setattr("capsedge.runtime.profiling.compare.PAUSE", 0.0)
    monkeypatch.setattr("capsedge.runtime.profiling.compare.TURN_WARMUP", 0.0)
    one = save(capsule_model(), tmp_path / "one.onnx")
    two = save(capsule_model(gain=5.0), tmp_path / "two.onnx")
    specification = {
        name: Specification(peer, str(model), "", threads=1)
        for name, peer, model in (("a", "capsedge", one), ("b", "capsedge", two), ("c", "ort", two))
    }
    entrants = [Entrant(n, s, s.model) for n, s in specification.items()]
    feeds = random_inputs(capsedge.load(one), 2)
    a, b, c = compare(entrants, feeds, RunLimits(0.0, 0.0, 5)).entries
    assert (a.difference, a.from_first_file) == (0, 0)
    assert b.difference == 0
    assert c.difference < 1e-5
    assert b.from_first_file is not None
    assert b.from_first_file > 1e-2
    assert c.from_first_file == pytest.approx(b.from_first_file, rel=1e-3)
    assert not any(entry.problem for entry in (a, b, c))


@pytest.mark.thorough
def test_what_fails_is_an_entry_if_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("capsedge.runtime.profiling.compare.PAUSE", 0.0)
    model = save(capsule_model(), tmp_path / "model.onnx")
    dies = tmp_path / "dies.py"
    dies.write_text(
        "import os, sys\n"
        "from capsedge.runtime.profiling import worker\n"
        "if 'dies' in sys.argv[1]: worker.take_times = lambda *_: os.abort()\n"
        "worker.main()"
    )
    command = (sys.executable, str(dies))
    entrants = [
        entrant("first", "ort", model),
        entrant("no such file", "ort", tmp_path / "none.onnx"),
        Entrant("dies", Specification("ort", str(model), module="dies"), "model", command),
        Entrant("lives", Specification("ort", str(model)), "model", command),
    ]
    feeds = random_inputs(capsedge.load(model), 2)
    found = compare(entrants, feeds, RunLimits(0.0, 0.0, 4), rounds=2, keep_going=True)
    first, absent, dead, last = found.entries
    assert "none.onnx" in absent.problem
    assert dead.problem == "The process of ort ended with code -6."
    assert (dead.latency, dead.difference) == (None, 0.0)
    assert found.failed == (absent, dead)
    assert len(first.samples) == len(last.samples) == 4
    assert (first.loaded_bytes or 1) <= (first.peak_bytes or 1)
    with pytest.raises(CapsedgeError):
        compare(entrants[1:2], feeds, RunLimits(0.0, 0.0, 1), keep_going=True)


def test_the_worker_needs_nothing_of_this_package():
    """Other interpreters run the file; what its loaders need, they import themselves."""
    tree = ast.parse(Path(worker.__file__).read_text())
    names = []
    for node in tree.body:
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
    assert {n.partition(".")[0] for n in names} <= {*sys.stdlib_module_names, "numpy"}


def test_images_that_are_run_one_by_one():
    images = [{"x": np.full((1, 3), k, np.float32)} for k in range(4)]
    memory = np.zeros((1, 3), np.float32)  # which the runtime writes every answer to

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        memory[:] = 2 * feeds["x"]
        return {"y": memory, "first": memory[:, 0]}

    y, first = worker._outputs_of(run, images, {})
    assert y.shape == (4, 1, 3)
    np.testing.assert_array_equal(first[:, 0], [0, 2, 4, 6])


def entry(name: str, median: float | None, difference: float | None = 0.0) -> Entry:
    samples = () if median is None else (median,)
    latency = None if median is None else summarize(np.array(samples))
    problem = "" if latency else "differs"
    return Entry(name, name, "1", 0.0, difference, problem, samples, latency, 10.0, 1 << 20)


@pytest.mark.parametrize(
    ("median", "words"),
    [
        (0.01, "first"),
        (0.0027, "3.7x faster"),
        (0.0448, "4.5x slower"),
        (0.0104, "1.04x slower"),
        (0.01001, "as fast"),
        (2.0, "200x slower"),
        (None, ""),
    ],
)
def test_ratios_are_words(median: float | None, words: str):
    entries = (entry("first", 0.01), entry("other", median))
    found = SpeedComparison(1, 1, 5, entries)
    assert found.speed_in_words(entries[words != "first"]) == words


def test_tables_mark_the_fastest_and_leave_out_what_cannot_be_compared():
    entries = (entry("a", 0.02), entry("b", 0.01, 0.5), entry("c", None), entry("d", 0.03, None))
    found = SpeedComparison(1, 1, 5, entries)
    assert found.fastest is entries[1]
    table = report_text.comparison(found)
    column = table.columns.index("against the first")
    assert [row[column] for row in table.rows] == [
        "first", "2.0x faster, fastest", "differs", "1.50x slower",
    ]  # fmt: skip
    assert [row[-1] for row in table.rows] == ["0.0e+00", "5.0e-01", "0.0e+00", "-"]
    assert SpeedComparison(1, 1, 5, entries[:1]).fastest is None


def test_a_worker_that_cannot_load_says_why(tmp_path: Path):
    model = save(capsule_model(), tmp_path / "model.onnx")
    feeds = random_inputs(capsedge.load(model), 1)
    broken = onnx.load(model)  # a whole file, of an operator that nobody has
    broken.graph.node[0].op_type, broken.graph.node[0].domain = "Teleport", ""
    model.write_bytes(broken.SerializeToString())
    with pytest.raises(EnvironmentProblem, match="ort failed"):
        compare([entrant("ort", "ort", model)], feeds, RunLimits(0.0, 0.0, 1))


def test_a_worker_that_is_gone_is_an_error(tmp_path: Path):
    model = save(capsule_model(), tmp_path / "model.onnx")
    inputs = write_inputs(tmp_path, random_inputs(capsedge.load(model), 1))
    with Worker(Specification("ort", str(model), str(inputs), threads=1)) as started:
        started._process.kill()
        started._process.wait()
        with pytest.raises(EnvironmentProblem, match="process of ort ended with code -9"):
            started.round(RunLimits(0.0, 0.0, 1))


def test_workers_run_on_the_gpu_of_the_session(tmp_path: Path):
    session = capsedge.load(save(capsule_model(), tmp_path / "model.onnx"))
    names = []
    for session.backend.gpu in (None, 0, 1):
        names.append(session_device(session))
    assert names == ["cpu", "cuda", "cuda:1"]


def test_unknown_and_missing_peers(monkeypatch):
    with pytest.raises(UsageError, match="Unknown peer 'tflite'"):
        check_installed(["tflite"])
    monkeypatch.setattr("capsedge.runtime.profiling.compare.installed_version", lambda name: "")
    with pytest.raises(EnvironmentProblem, match="pip install openvino"):
        check_installed(["openvino"])


@pytest.mark.parametrize(("peer", "package"), [("litert", "ai-edge-litert"), ("mnn", "MNN")])
def test_missing_converters_say_what_to_install(monkeypatch, peer, package):
    monkeypatch.setattr("capsedge.runtime.profiling.compare.installed_version", lambda name: "")
    with pytest.raises(EnvironmentProblem, match=package):
        check_installed([peer])
    for module in ("ai_edge_litert", "ai_edge_litert.interpreter", "MNN"):
        monkeypatch.setitem(sys.modules, module, None)
    asked = Specification(peer, "m.onnx")
    with pytest.raises(ImportError) as missing:
        worker.LOADERS[peer](asked)
    what, _, fix = worker._parts(missing.value, asked)
    assert what.endswith("cannot read m.onnx.")
    assert package in fix


def test_litert_gets_images_as_it_wants_them(monkeypatch):
    """By a stand-in for LiteRT: channels last, outputs by name."""
    taken = {}

    class Interpreter:
        def __init__(self, model_path, num_threads):
            taken.update(model=model_path, threads=num_threads)

        def allocate_tensors(self):
            pass

        def get_input_details(self):
            return [{"name": "images:0", "index": 7, "shape": np.array([1, 4, 5, 3])}]

        def get_output_details(self):
            return [{"name": "lengths", "index": 8}]

        def set_tensor(self, index, value):
            taken[index] = value

        def invoke(self):
            taken[8] = taken[7].sum((1, 2))

        def get_tensor(self, index):
            return taken[index]

    module = SimpleNamespace(Interpreter=Interpreter)
    monkeypatch.setitem(sys.modules, "ai_edge_litert", SimpleNamespace(interpreter=module))
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", module)
    monkeypatch.setattr(worker.importlib.metadata, "version", lambda name: "1")
    run, said = worker.load_litert(Specification("litert", "model.tflite", threads=2))
    images = np.random.default_rng(0).random((1, 3, 4, 5)).astype(np.float32)
    np.testing.assert_allclose(run({"images": images})["lengths"], images.sum((2, 3)), rtol=1e-5)
    assert (taken["model"], taken["threads"], said) == ("model.tflite", 2, "ai-edge-litert 1")


@pytest.mark.parametrize(("peer", "package"), [("mnn", "MNN"), ("litert", "onnx2tf")])
def test_converted_peers_agree(tmp_path, peer, package):
    """With the runtime itself, where it is installed."""
    pytest.importorskip(package, reason=f"pip install {package}")
    file = save(capsule_model(batch=1, capsedge_node=False), tmp_path / "model.onnx")
    session = capsedge.load(file)
    feeds = random_inputs(session, 1)
    run, _ = worker.LOADERS[peer](Specification(peer, str(file)))
    assert largest_difference(run(feeds), session.run(feeds["images"])) < 1e-5


def test_difference_is_relative_and_sees_nan():
    wanted = {"y": np.array([1.0, -4.0])}
    assert largest_difference({"y": np.array([1.0, -3.0])}, wanted) == 0.25
    assert not largest_difference({"y": np.array([np.nan, -4.0])}, wanted) <= 1.0
    with pytest.raises(EnvironmentProblem):
        largest_difference({"z": np.zeros(2)}, wanted)
