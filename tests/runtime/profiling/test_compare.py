"""Peers: in turns, after their outputs were compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import capsedge
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.profiling.compare import Entrant, check_installed, compare, difference
from capsedge.runtime.profiling.driver import Worker, write_inputs
from capsedge.runtime.profiling.measure import Limits
from capsedge.runtime.profiling.profiler import random_inputs, session_device
from capsedge.runtime.profiling.worker import Specification
from tests.runtime.models import capsule_model, save


def entrant(name: str, peer: str, model: Path) -> Entrant:
    return Entrant(name, Specification(peer, str(model), "", threads=1), "model")


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
    found = compare(entrants, feeds, Limits(0.0, 0.0, 10))
    first, same, wrong = found.entries
    assert first.difference == 0
    assert same.difference < 1e-5
    assert same.latency is not None
    assert len(first.samples) == len(same.samples) == 10
    assert found.ratio(first) == 1
    assert found.failed == (wrong,)
    assert "differs from capsedge" in wrong.problem
    assert wrong.samples == ()
    assert "onnxruntime" in same.version


def test_a_worker_that_cannot_load_says_why(tmp_path: Path):
    model = save(capsule_model(), tmp_path / "model.onnx")
    feeds = random_inputs(capsedge.load(model), 1)
    model.write_bytes(b"no model")
    with pytest.raises(EnvironmentProblem, match="ort failed"):
        compare([entrant("ort", "ort", model)], feeds, Limits(0.0, 0.0, 1))


def test_a_worker_that_is_gone_is_an_error(tmp_path: Path):
    model = save(capsule_model(), tmp_path / "model.onnx")
    inputs = write_inputs(tmp_path, random_inputs(capsedge.load(model), 1))
    with Worker(Specification("ort", str(model), str(inputs), threads=1)) as worker:
        worker._process.kill()
        worker._process.wait()
        with pytest.raises(EnvironmentProblem, match="process of ort ended"):
            worker.round(Limits(0.0, 0.0, 1))


def test_workers_run_on_the_gpu_of_the_session(tmp_path: Path):
    session = capsedge.load(save(capsule_model(), tmp_path / "model.onnx"))
    names = []
    for session.gpu in (None, 0, 1):
        names.append(session_device(session))
    assert names == ["cpu", "cuda", "cuda:1"]


def test_unknown_and_missing_peers(monkeypatch):
    with pytest.raises(UsageError, match="Unknown peer 'tflite'"):
        check_installed(["tflite"])
    monkeypatch.setattr("capsedge.runtime.profiling.compare.installed_version", lambda name: "")
    with pytest.raises(EnvironmentProblem, match="pip install openvino"):
        check_installed(["openvino"])


def test_difference_is_relative_and_sees_nan():
    wanted = {"y": np.array([1.0, -4.0])}
    assert difference({"y": np.array([1.0, -3.0])}, wanted) == 0.25
    assert not difference({"y": np.array([np.nan, -4.0])}, wanted) <= 1.0
    with pytest.raises(EnvironmentProblem):
        difference({"z": np.zeros(2)}, wanted)
