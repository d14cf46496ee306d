"""`pip install .` where the libraries cannot be built: the rest is installed, which says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

_SOURCES = ("capsedge", "pyproject.toml", "README.md", "LICENSE")


def _built(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build the wheel of the sources in a folder, as pip does it."""
    pytest.importorskip("scikit_build_core")
    return subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-build-isolation",
            "--disable-pip-version-check", "--wheel-dir", "made", *words, ".",
        ],
        cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip


def _sources(folder: Path, system: str) -> Path:
    """The sources, with what is done on Windows and macOS done on a system instead."""
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__", "node_modules", "site", "_native")
            shutil.copytree(ROOT / name, folder / name, ignore=unwanted, symlinks=True)
        else:
            shutil.copy(ROOT / name, folder)
    settings = folder / "pyproject.toml"
    text = settings.read_text("utf-8")
    assert text.count('"win32|darwin"') == 1
    settings.write_text(text.replace("win32|darwin", system), "utf-8")
    return folder


@pytest.mark.slow
def test_without_build_tools_the_libraries_are_left_out(tmp_path: Path) -> None:
    """As on Windows without Visual Studio, where CMake's default generator finds no program."""
    done = _built(_sources(tmp_path, sys.platform), CMAKE_GENERATOR="NMake Makefiles")
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "capsedge is installed without its compiled libraries" in said
    (wheel,) = (tmp_path / "made").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "/_native/" in name]


@pytest.mark.slow
def test_on_linux_a_failed_build_is_an_error(tmp_path: Path) -> None:
    done = _built(_sources(tmp_path, "win32"), CMAKE_GENERATOR="NMake Makefiles")
    assert done.returncode != 0


@pytest.mark.slow
def test_a_compiler_that_the_sources_do_not_support_builds_nothing(tmp_path: Path) -> None:
    """A toolchain file names the compiler that CMake sees; it is never called."""
    toolchain = tmp_path / "msvc.cmake"
    toolchain.write_text(
        "set(CMAKE_CXX_COMPILER_ID_RUN 1)\nset(CMAKE_CXX_COMPILER_ID MSVC)\n"
        "set(CMAKE_CXX_COMPILER_VERSION 19.40)\nset(CMAKE_CXX_COMPILER_FORCED 1)\n"
    )
    (tmp_path / "sources").mkdir()
    folder = _sources(tmp_path / "sources", "win32")
    done = _built(folder, f"-Ccmake.toolchain-file={toolchain}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MSVC on Linux is not supported" in " ".join((done.stdout + done.stderr).split())
    (wheel,) = (folder / "made").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "/_native/" in name]
