"""What ``doctor`` says of JetPack, TensorRT, CUDA and driver, by the table."""

from __future__ import annotations

import platform
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import capsedge
from capsedge.errors import EnvironmentProblem
from capsedge.runtime import doctor, machine
from capsedge.runtime.backends import native_library, tensorrt_library
from capsedge.runtime.machine import BROKEN, MISSING, OK

ORIN = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8\n"


def test_the_table_is_whole() -> None:
    for row in doctor.table()["jetpack"]:
        tensorrt = doctor.tensorrt_row(row["tensorrt"])
        assert tensorrt is not None
        assert tensorrt["supported"] == row["supported"], row
        assert doctor.version_numbers(row["cuda"]) >= (11,)
    for row in doctor.table()["tensorrt"]:
        if row["supported"]:
            assert all(doctor.driver_for(cuda) for cuda in row["cuda"])


@pytest.mark.parametrize(
    ("text", "release"),
    [
        (ORIN, "36.4.3"),
        ("# R38 (release), REVISION: 4.0, GCID: 1, BOARD: generic", "38.4.0"),
        ("", ""),
        ("something else", ""),
    ],
)
def test_release_file(text: str, release: str) -> None:
    assert doctor.l4t_release(text) == release


@pytest.mark.parametrize(
    ("l4t", "status", "words"),
    [
        ("36.4.3", OK, "JetPack 6.1 or 6.2"),
        ("38.2.0", OK, "JetPack 7.0"),
        ("39.2", OK, "TensorRT 10.16"),
        ("35.4.1", BROKEN, "JetPack 5"),
        ("36.3.0", BROKEN, "JetPack 6.0"),
        ("32.7.4", BROKEN, "older than JetPack 5"),
        ("39.4", OK, "newer than capsedge knows: after JetPack 7.2"),
        ("50.1", OK, "newer than capsedge knows"),
    ],
)
def test_jetpack(l4t: str, status: str, words: str) -> None:
    check = doctor.jetpack(l4t)
    assert check.status == status
    assert words in check.found
    assert (status == OK) == (not check.fix)


@pytest.mark.parametrize(
    ("version", "l4t", "status", "words"),
    [
        ("10.3.0", "", OK, "10.3.0"),
        ("11.4.0.106", "", OK, "11.4"),
        ("10.3.0.30", "36.4.3", OK, "10.3"),
        # The last release for JetPack 6, and the first of the 11 line for any JetPack.
        ("10.7.0", "36.4.3", OK, "10.7.0"),
        ("10.8.0", "36.4.3", BROKEN, "does not support JetPack 6.1 or 6.2 (its own: 10.3)"),
        ("11.4.1", "36.5", BROKEN, "does not support JetPack 6.2"),
        ("10.3.0", "38.2", BROKEN, "does not support JetPack 7.0"),
        ("10.16.2.10", "39.2", OK, "10.16.2.10"),
        ("11.0.0.114", "39.2", BROKEN, "does not support JetPack 7.2"),
        ("11.4.0.106", "39.2", BROKEN, "does not support JetPack 7.2"),
        ("11.4.1", "39.2", OK, "JetPack 7.2.2 or later on AGX Orin"),
        ("11.4.1", "39.4", OK, "JetPack 7.2.2 or later"),
        ("8.6.1", "", BROKEN, "too old"),
        ("12.0.0", "", BROKEN, "newer than capsedge knows"),
        ("", "", MISSING, "not installed"),
    ],
)
def test_tensorrt(version: str, l4t: str, status: str, words: str) -> None:
    check = doctor.tensorrt(version, l4t)
    assert check.status == status
    assert words in check.found
    assert (status == OK) == (not check.fix)


@pytest.mark.parametrize(
    ("cuda", "driver", "status", "words"),
    [
        ("13", "12.6", BROKEN, "580.65.06 or later, or `pip install 'capsedge[tensorrt-cu12]'`"),
        ("13", "13.0", OK, "11.4.0.106 for CUDA 13"),
        ("12", "13.0", OK, "11.4.0.106 for CUDA 12"),
        ("", "12.6", OK, "11.4.0.106"),
    ],
)
def test_wheels_of_tensorrt_and_the_driver(cuda: str, driver: str, status: str, words: str) -> None:
    check = doctor.tensorrt("11.4.0.106", "", cuda, driver)
    assert check.status == status
    assert words in check.found + check.fix


@pytest.mark.parametrize(
    ("driver", "extra"), [("12.6", "tensorrt-cu12"), ("13.2", "tensorrt-cu13")]
)
def test_how_to_get_tensorrt(monkeypatch: pytest.MonkeyPatch, driver: str, extra: str) -> None:
    monkeypatch.setattr(tensorrt_library, "driver_version", lambda: driver)
    assert f"capsedge[{extra}]" in tensorrt_library.how_to_get()
    monkeypatch.setattr(tensorrt_library.platform, "machine", lambda: "aarch64")
    assert "python3-libnvinfer" in tensorrt_library.how_to_get()


def test_the_power_mode_of_a_jetson(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Asked, since its number means another mode on another board."""
    assert machine.power_mode() == ""
    program = tmp_path / "nvpmodel"
    program.write_text('#!/bin/sh\n[ "$1" = -q ] && printf "NV Power Mode: MAXN_SUPER\\n2\\n"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert machine.power_mode() == "MAXN_SUPER"
    assert machine.machine()["power_mode"] == "MAXN_SUPER"
    program.write_text("#!/bin/sh\nexit 1\n")
    assert machine.power_mode() == ""


@pytest.mark.parametrize(
    ("gpu", "runtime", "driver", "status", "words"),
    [
        (True, "12.6", "12.6", OK, "12.6, driver for 12.6"),
        (True, "12.8", "12.2", OK, "driver for 12.2"),
        (True, "13.0", "12.6", BROKEN, "580.65.06"),
        (True, "12.6", "0.0", BROKEN, "no driver"),
        (False, "12.6", "0.0", OK, "no GPU here"),
    ],
)
def test_cuda(
    gpu: bool, runtime: str, driver: str, status: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "has_gpu", lambda: gpu)
    check = doctor.cuda(runtime, driver)
    assert check.status == status
    assert words in check.found + check.fix


def test_on_a_jetson(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "nv_tegra_release"
    file.write_text(ORIN)
    monkeypatch.setattr(doctor, "RELEASE_FILE", file)
    monkeypatch.setattr(doctor, "installed_version", lambda package: "10.3.0")
    found = {check.name: check for check in doctor.nvidia_checks()}
    assert found["JetPack"].status == OK
    assert found["tensorrt"].status == OK
    assert "plugin library" in found


def test_plugin_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPSEDGE_TENSORRT_PLUGIN", "/nonexistent/plugin.so")
    (line,) = [check for check in doctor.nvidia_checks() if check.name == "plugin library"]
    assert line.status == BROKEN
    assert "unset CAPSEDGE_TENSORRT_PLUGIN" in line.fix


@pytest.fixture
def packaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder of capsedge-cuda, with a plugin library for TensorRT 10 on this machine."""
    folder = tmp_path / "site" / "capsedge_cuda"
    library = folder / platform.machine() / "libcapsedge_tensorrt10.so"
    library.parent.mkdir(parents=True)
    library.touch()
    (folder / "__init__.py").write_text(f'__version__ = "{capsedge.__version__}"\n')
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "capsedge_cuda", raising=False)
    monkeypatch.delenv("CAPSEDGE_TENSORRT_PLUGIN", raising=False)
    yield folder
    sys.modules.pop("capsedge_cuda", None)


def test_the_plugin_library_of_the_package(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By TensorRT's major version, and by the processor."""
    library = packaged / platform.machine() / "libcapsedge_tensorrt10.so"
    assert tensorrt_library.find_plugin(10) == library
    assert tensorrt_library.find_plugin(11) is None
    assert "has none for TensorRT 11" in tensorrt_library.no_plugin(11).why
    found = doctor._plugin("10.3.0")
    assert (found.status, found.found) == (OK, str(library))
    missing = doctor._plugin("11.1.0")
    assert missing.status == MISSING
    assert "TensorRT 11" in missing.found
    assert "TensorRT's headers" in missing.fix
    assert "no TensorRT" in doctor._plugin("").found
    monkeypatch.setattr(tensorrt_library.platform, "machine", lambda: "sparc")
    assert tensorrt_library.find_plugin(10) is None


def test_a_package_of_another_version(packaged: Path) -> None:
    (packaged / "__init__.py").write_text('__version__ = "0"\n')
    with pytest.raises(EnvironmentProblem, match="another version"):
        tensorrt_library.find_plugin(10)
    assert doctor._plugin("10.3.0").status == BROKEN


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_library, "find_package", lambda: None)
    assert tensorrt_library.find_plugin(10) is None
    assert "make cuda-wheel" in tensorrt_library.no_plugin(10).fix


@pytest.mark.parametrize(
    ("name", "version", "major"),
    [("tensorrt", "10.3.0", 10), ("tensorrt", "11.4.1", 11), ("tensorrt_rtx", "1.7.1", 11)],
)
def test_the_interface_of_a_package(name: str, version: str, major: int) -> None:
    module = types.ModuleType(name)
    module.__version__ = version  # type: ignore[attr-defined]
    assert tensorrt_library.interface(module) == major


@pytest.mark.parametrize(
    ("driver", "capability", "name"),
    [
        ("13.0", "8.7", "kernels.fatbin"),
        ("14.2", "9.0", "kernels.fatbin"),
        ("12.6", "8.7", "kernels.cuda12.sm87.cubin"),
        ("12.6", "8.6", None),
        ("11.4", "8.7", None),
        ("12.6", "", None),
    ],
)
def test_the_code_that_a_driver_takes(
    tmp_path: Path, driver: str, capability: str, name: str | None
) -> None:
    (tmp_path / "kernels.cuda12.sm87.cubin").touch()
    found = native_library.code_for(tmp_path / "kernels.fatbin", driver, capability)
    assert found == (name and tmp_path / name)
