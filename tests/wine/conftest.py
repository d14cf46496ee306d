"""The wheel for Windows beside a Windows Python, and a compiler for programs (`make test-wine`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.release.conftest import build_one, missing
from tools import wheels, wine, zig

NATIVE = wheels.ROOT / "capsedge" / "runtime" / "native"
MODEL = wheels.ROOT / "capsedge" / "zoo" / "digits-dynamic.onnx"


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the wheel's package; the Windows Python imports it."""
    if shutil.which("wine") is None or not wine.PYTHON.is_file():
        missing("runs a Windows Python in Wine: make test-wine")
    wheel = build_one(zig.WINDOWS, tmp_path_factory)
    shutil.rmtree(wine.PACKAGE, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wine.PACKAGE)
    return wine.PACKAGE


@pytest.fixture(scope="session")
def libraries(package: Path) -> Path:
    """The folder of the wheel's libraries."""
    return package / "capsedge" / "runtime" / "_native"


@pytest.fixture(scope="session")
def levels(package: Path) -> list[str]:
    """The SIMD levels that the operator library finds here, as Python asks it."""
    code = (
        "from capsedge.runtime.backends import native_library as n; "
        "print(','.join(n.levels_of(n.find_library())))"
    )
    return answer(wine.PYTHON, "-c", code).strip().split(",")


@pytest.fixture(scope="session")
def linux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operator library of the wheel for Linux, by the same compiler."""
    wheel = build_one("x86_64", tmp_path_factory)
    return wheels.library_in(wheel, tmp_path_factory.mktemp("linux"))


def answer(*command: str | Path, added: dict[str, str] | None = None) -> str:
    """What a Windows program prints; it must succeed."""
    done = wine.run(*command, added=added)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def compiled(program: Path, *words: str | Path) -> Path:
    """A program for Windows, compiled by zig with all warnings as errors."""
    variables = zig.variables(zig.WINDOWS)
    compiler = "c++" if any(str(w).endswith(".cpp") for w in words) else "cc"
    command = [
        variables["CAPSEDGE_ZIG"], compiler, "-target", variables["CAPSEDGE_TARGET"], "-O2",
        "-Wall", "-Wextra", "-Werror", *map(str, words), "-o", str(program),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return program
