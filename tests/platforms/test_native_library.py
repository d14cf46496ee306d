"""The compiled libraries by the names of each system, and what is said and done where they do not open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capsedge.runtime.backends import native_library
from tests.conftest import ROOT
from tests.platforms.systems import SUFFIXES, SYSTEMS, run

_SAMPLE = "capsedge/zoo/samples/digit-7.png"
needs_library = pytest.mark.skipif(
    native_library.installed(native_library.NAME) is None,
    reason="the operator library is not built: install capsedge where there is a C++17 compiler",
)


def _broken(folder: Path, platform: str) -> Path:
    place = folder / "capsedge" / "runtime" / "_native" / f"libcapsedge_ort{SUFFIXES[platform]}"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"not a library")
    return folder


@needs_library
@pytest.mark.thorough
@pytest.mark.parametrize("platform", SYSTEMS)
def test_the_operators_are_found_and_run(platform: str, tmp_path: Path) -> None:
    done = run(platform, "-m", "capsedge", "doctor", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    checks = {check["name"]: check for check in said["checks"]}
    assert "fused operators" in checks["default model"]["found"]
    assert f"libcapsedge_ort{SUFFIXES[platform]}, " in checks["operator library"]["found"]
    assert said["machine"]["simd"] in checks["operator library"]["found"]
    if platform == "win32":
        assert said["machine"]["cpu"] == "A processor from the registry"
    else:
        assert said["machine"]["system"] == "macOS 14.5"


@needs_library
@pytest.mark.parametrize("platform", SYSTEMS)
def test_config_names_the_library_and_flags_of_the_system(platform: str, tmp_path: Path) -> None:
    said = json.loads(run(platform, "-m", "capsedge", "config", "--json", cwd=tmp_path).stdout)
    assert Path(said["library"]).name == f"libcapsedge{SUFFIXES[platform]}"
    assert said["libs"][1:] == ["-lcapsedge", *said["rpath"]]
    # Windows finds a DLL beside the program, or on PATH.
    assert said["rpath"] == ([] if platform == "win32" else [f"-Wl,-rpath,{said['libdir']}"])


_FLAGS = """
from pathlib import Path
from capsedge.cli import config
config._say({"cflags": ["-IC:/Program Files/capsedge"], "libs": []}, ["cflags"])
"""


@pytest.mark.parametrize(("platform", "quote"), [("win32", '"'), ("darwin", "'")])
def test_flags_are_quoted_for_the_shell_of_the_system(
    platform: str, quote: str, tmp_path: Path
) -> None:
    done = run(platform, "-c", _FLAGS, cwd=tmp_path)
    assert done.stdout.strip() == f"{quote}-IC:/Program Files/capsedge{quote}", done.stderr


@pytest.mark.thorough
def test_on_macos_a_library_that_does_not_open_is_left_out_with_a_warning(tmp_path: Path) -> None:
    """Nobody has run it there; without the function bodies, no model would run at all."""
    done = run(
        "darwin",
        "-m",
        "capsedge",
        "infer",
        _SAMPLE,
        cwd=ROOT,
        libraries=_broken(tmp_path, "darwin"),
    )
    assert done.returncode == 0, done.stderr
    assert "portable operators" in done.stdout
    assert "digit-7.png  7 " in done.stdout
    assert "does not open, so function bodies run instead" in done.stderr
    assert "file too short" in done.stderr  # the system's reason
    refused = run(
        "darwin", "-m", "capsedge", "infer", _SAMPLE, "--ops", "fused",
        cwd=ROOT, libraries=tmp_path,
    )  # fmt: skip
    assert refused.returncode == 3
    assert "file too short" in refused.stderr


@pytest.mark.thorough
def test_on_windows_a_library_that_does_not_open_is_an_error(tmp_path: Path) -> None:
    done = run(
        "win32", "-m", "capsedge", "infer", _SAMPLE, cwd=ROOT, libraries=_broken(tmp_path, "win32")
    )
    assert done.returncode == 3
    assert "cannot be loaded into ONNX Runtime" in done.stderr


_MESSAGES = """
import os
from capsedge.errors import CapsedgeError
from capsedge.runtime.backends import native_library
for ask in (native_library.find_embedding, native_library.find_library):
    try:
        ask()
    except CapsedgeError as error:
        print(error)
print(native_library.no_library())
"""


@pytest.mark.parametrize(
    ("platform", "has", "lacks"),
    [
        ("win32", ("wheel for 64-bit Windows", "Remove-Item Env:CAPSEDGE_OPS_LIBRARY"), "unset"),
        ("darwin", ("xcode-select --install", "unset CAPSEDGE_OPS_LIBRARY"), "Remove-Item"),
    ],
)
def test_messages_name_commands_of_the_system(
    platform: str, has: tuple[str, ...], lacks: str, tmp_path: Path
) -> None:
    done = run(
        platform, "-c", _MESSAGES, cwd=tmp_path,
        libraries=tmp_path, CAPSEDGE_OPS_LIBRARY="/nowhere/library",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(words in done.stdout for words in has), done.stdout
    assert lacks not in done.stdout
    assert "apt-get" not in done.stdout


_RUNTIME = """
import sys
from capsedge.errors import CapsedgeError
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
try:
    import_onnxruntime()
except CapsedgeError as error:
    print(error.fix)
"""


@pytest.mark.parametrize(("platform", "named"), [("win32", True), ("darwin", False)])
def test_the_visual_cpp_runtime_is_named_where_onnxruntime_lacks_it(
    platform: str, named: bool, tmp_path: Path
) -> None:
    (tmp_path / "onnxruntime.py").write_text(
        "raise ImportError('DLL load failed while importing onnxruntime_pybind11_state: "
        "The specified module could not be found.')\n"
    )
    done = run(platform, "-c", _RUNTIME, cwd=tmp_path)
    assert ("msvc-runtime" in done.stdout) == named, done.stdout + done.stderr
