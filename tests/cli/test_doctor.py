"""``capsedge doctor``: honest lines, and the exit code of the base job."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from capsedge.cli import app
from capsedge.runtime.machine import doctor, environment
from capsedge.runtime.machine.check import BROKEN, MISSING, OK, Check
from capsedge.runtime.machine.doctor import diagnose


def test_every_line_that_is_not_ok_says_cost_and_cure() -> None:
    for check in diagnose().checks:
        assert check.found
        assert (check.status == OK) == (not check.cost and not check.fix), check


def test_machine_facts() -> None:
    facts = environment.machine()
    assert int(facts["cores"]) >= 1
    assert facts["simd"] in ("AVX-512 VNNI", "AVX-512", "AVX2", "NEON", "plain")


def test_versions_without_importing() -> None:
    code = (
        "import sys; from capsedge.runtime.machine.environment import versions;"
        "print(versions('torch', 'onnx', 'PIL', 'no_such_package'));"
        "assert not {'torch', 'onnx', 'PIL'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "PIL" in done.stdout
    assert "no_such_package" not in done.stdout


def test_base_job_works_here() -> None:
    """The default model really loads and runs."""
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.stdout
    assert result.stdout.rstrip().splitlines()[-1].startswith("PASSED")


def test_broken_default_model_fails(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    zoo = pytest.importorskip("capsedge.zoo")
    broken = tmp_path / "m.onnx"
    broken.write_bytes(b"")
    monkeypatch.setattr(zoo, "default_model", lambda: broken)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert document["ready"] is False
    (line,) = [c for c in document["checks"] if c["name"] == "default model"]
    assert line["status"] == BROKEN
    assert "empty" in line["found"]
    assert line["fix"]


def test_missing_onnxruntime_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "onnxruntime" else find(n, *a)
    )
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 3
    assert "capsedge[cpu]" in result.stdout
    assert result.stdout.rstrip().splitlines()[-1].startswith("FAILED")


def test_missing_workstation_parts_do_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = (
        Check("python", "infer", OK, "3.12"),
        Check("torch", "export", MISSING, "not installed", "no export", "pip install x"),
    )
    monkeypatch.setattr(doctor, "diagnose", lambda: doctor.Diagnosis({"cores": "1"}, checks))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "pip install x" in result.stdout


def test_operator_library_that_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    library = tmp_path / "libcapsedge_ort.so"
    library.write_bytes(b"not a library")
    monkeypatch.setenv("CAPSEDGE_OPS_LIBRARY", str(library))
    (line,) = [c for c in diagnose().checks if c.name == "operator library"]
    assert line.status == BROKEN
    assert str(library) in line.found
    monkeypatch.setenv("CAPSEDGE_OPS_LIBRARY", str(tmp_path / "none.so"))
    (line,) = [c for c in diagnose().checks if c.name == "operator library"]
    assert line.status == BROKEN
    assert "unset" in line.fix
