"""``capsedge doctor``: honest lines, and the exit code of the base job."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from capsedge.cli import app
from capsedge.runtime import doctor, machine
from capsedge.runtime.doctor import diagnose
from capsedge.runtime.machine import BROKEN, MISSING, OK, Check


@pytest.mark.thorough
def test_every_line_that_is_not_ok_says_cost_and_cure() -> None:
    for check in diagnose().checks:
        assert check.found
        assert (check.status == OK) == (not check.cost and not check.fix), check


def test_every_verb_whose_packages_are_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda _: "")
    costs = " ".join(check.cost for check in diagnose().checks)
    for lost in ("export", "quantize", "batch", "serve", "see", "videos", "import", "WebAssembly"):
        assert lost in costs


def test_machine_facts() -> None:
    facts = machine.machine()
    assert int(facts["cores"]) >= 1
    assert facts["simd"] in ("AMX", "AVX-512 VNNI", "AVX-512", "AVX2", "NEON", "plain")


def test_the_operator_library_names_the_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def levels() -> bytes:
        return b"plain,avx2,avx512,avx512vnni"

    library = SimpleNamespace(capsedge_kernel_levels=levels)
    with monkeypatch.context() as patch:
        patch.setattr("capsedge.runtime.machine.find_library", lambda: tmp_path / "ops.so")
        patch.setattr("ctypes.CDLL", lambda _: library)
        patch.setattr("capsedge.runtime.machine._cpuinfo", lambda _: "")
        assert machine.simd_level() == "AVX-512 VNNI"
    (tmp_path / "ops.so").write_bytes(b"no library")
    for broken in (tmp_path / "ops.so", tmp_path / "absent.so"):
        monkeypatch.setenv("CAPSEDGE_OPS_LIBRARY", str(broken))
        assert machine.simd_level() in ("AMX", "AVX-512 VNNI", "AVX-512", "AVX2", "NEON", "plain")


def test_versions_without_importing() -> None:
    code = (
        "import sys; from capsedge.runtime.machine import versions;"
        "print(versions('torch', 'onnx', 'PIL', 'no_such_package'));"
        "assert not {'torch', 'onnx', 'PIL'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "PIL" in done.stdout
    assert "no_such_package" not in done.stdout


@pytest.mark.thorough
def test_base_job_works_here() -> None:
    """The default model really loads and runs."""
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.stdout
    assert result.stdout.rstrip().splitlines()[-1].startswith("PASSED")


@pytest.mark.thorough
def test_broken_default_model_fails(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    zoo = pytest.importorskip("capsedge.runtime.zoo")
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


def pci(folder: Path, vendor: str, kind: str) -> Path:
    """A folder of PCI devices, with one of this vendor and class."""
    device = folder / "pci" / "0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    return device.parent


@pytest.mark.parametrize(
    ("vendor", "kind", "there"),
    [
        ("0x10de", "0x030200", True),
        ("0x10de", "0x030000", True),
        ("0x10de", "0x0403", False),  # the sound of a graphics card
        ("0x8086", "0x030000", False),
    ],
)
def test_gpus_are_found_without_a_driver(
    vendor: str, kind: str, there: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "NODES", (str(tmp_path / "nvidia0"),))
    monkeypatch.setattr(machine, "PCI", pci(tmp_path, vendor, kind))
    assert machine.has_gpu() == there
    (tmp_path / "nvidia0").touch()
    assert machine.has_gpu()


class Driver:
    """A stand-in for libcuda, which finds `count` GPUs or fails."""

    def __init__(self, status: int, count: int) -> None:
        self.status, self.count = status, count

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.status

    def cuDeviceGetCount(self, to: Any) -> int:  # noqa: N802
        to._obj.value = self.count
        return 0

    def cuDriverGetVersion(self, to: Any) -> int:  # noqa: N802
        to._obj.value = 12060
        return 0


@pytest.mark.parametrize(
    ("there", "driver", "hidden", "status", "words"),
    [
        (False, Driver(100, 0), None, MISSING, "none in this machine"),
        (False, None, None, MISSING, "none in this machine"),
        (True, None, None, MISSING, "no CUDA driver"),
        (True, Driver(0, 2), None, OK, "driver for CUDA 12.6"),
        (True, Driver(100, 0), "", BROKEN, "unset CUDA_VISIBLE_DEVICES"),
        (True, Driver(803, 0), None, BROKEN, "CUDA error 803"),
    ],
)
def test_a_machine_without_a_gpu_has_nothing_broken(
    there: bool, driver: Driver | None, hidden: str | None, status: str, words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def library(name: str) -> Driver:
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(machine, "has_gpu", lambda: there)
    monkeypatch.setattr(machine.ctypes, "CDLL", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    check = machine.gpu()
    assert check.status == status
    assert words in check.found + check.fix


@pytest.mark.thorough
def test_nothing_is_broken_here_without_a_gpu() -> None:
    if machine.has_gpu():
        pytest.skip("this machine has an NVIDIA GPU")
    assert [c for c in diagnose().checks if c.status == BROKEN] == []


def package(folder: Path, name: str, version: str) -> None:
    """An installed distribution that provides the module onnxruntime."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "top_level.txt").write_text("onnxruntime\n")


@pytest.mark.parametrize(
    ("names", "fix"),
    [
        (["onnxruntime"], ""),
        (["onnxruntime-gpu"], ""),
        (
            ["onnxruntime", "onnxruntime-gpu"],
            "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'capsedge[gpu]'",
        ),
        (
            ["onnxruntime", "onnxruntime-openvino"],
            "pip uninstall -y onnxruntime onnxruntime-openvino && pip install onnxruntime-openvino",
        ),
    ],
)
def test_packages_of_onnxruntime_that_overwrite_each_other(
    names: list[str], fix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in names:
        package(tmp_path, name, "1.31.1")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = machine.onnxruntime_packages()
    assert [c.fix for c in found] == ([fix] if fix else [])
    assert all(c.status == BROKEN and "overwrite each other" in c.found for c in found)
