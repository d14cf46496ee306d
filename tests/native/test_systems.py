"""Which compilers build the libraries for which system (cmake/systems.cmake)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.builds import NATIVE

SYSTEMS = NATIVE / "cmake" / "systems.cmake"


def refusal(folder: Path, **variables: str) -> str:
    """Why this compiler builds nothing for this system, as CMake says it."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("CMake is not installed")
    script = folder / "ask.cmake"
    script.write_text(f'include("{SYSTEMS}")\ncapsedge_refusal(why)\nmessage("${{why}}")\n')
    words = [f"-D{name}={value}" for name, value in variables.items()]
    done = subprocess.run([cmake, *words, "-P", script], capture_output=True, text=True, check=True)
    return done.stderr.strip()


@pytest.mark.parametrize(
    ("system", "compiler"),
    [("Linux", "GNU"), ("Linux", "Clang"), ("Windows", "Clang"), ("Darwin", "AppleClang")],
)
def test_compilers_that_build(system: str, compiler: str, tmp_path: Path) -> None:
    given = {"CMAKE_SYSTEM_NAME": system, "CMAKE_CXX_COMPILER_ID": compiler}
    assert refusal(tmp_path, **given) == ""


@pytest.mark.parametrize(
    ("system", "compiler", "imitated", "said"),
    [
        ("Windows", "GNU", "", "does not align AVX-512 values on the stack (its bug 54412)"),
        ("Windows", "MSVC", "", "MSVC on Windows is not supported"),
        ("Windows", "Clang", "MSVC", "Clang on Windows is not supported (GCC or Clang on Linux"),
        ("FreeBSD", "Clang", "", "Clang on FreeBSD is not supported"),
    ],
)  # fmt: skip
def test_compilers_that_are_refused(
    system: str, compiler: str, imitated: str, said: str, tmp_path: Path
) -> None:
    given = {"CMAKE_SYSTEM_NAME": system, "CMAKE_CXX_COMPILER_ID": compiler}
    assert said in refusal(tmp_path, **given, CMAKE_CXX_SIMULATE_ID=imitated)
