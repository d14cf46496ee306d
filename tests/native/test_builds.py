"""Builds of the native tests: with sanitizers, for ARM, and what each level's object file defines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.cases import CASES
from tests.conformance.dump import dump

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "runtime" / "native"


def environment() -> dict[str, str]:
    """cmake and ninja come from the environment that runs the tests."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    dump(folder, [case for case in CASES if not case.heavy], ["float32", "float16"])
    return folder


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["plain", "old", "asan", "tsan", "arm"])
def test_native_tests(kind: str, cases: Path, tmp_path: Path) -> None:
    if kind == "old" and os.uname().machine != "x86_64":
        pytest.skip("older x86 processors are emulated on x86 only")
    found = subprocess.run(
        [str(NATIVE / "tests" / "run.sh"), kind, str(cases), str(tmp_path / "build")],
        capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    if found.returncode == 77:
        pytest.skip(found.stderr.strip())
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-4000:]
    counts = re.findall(r"^(\w+): (\d+) passed, (\d+) failed$", found.stdout, re.MULTILINE)
    wanted = {"tsan": ["concurrent"], "old": ["cases", "cases"]}.get(
        kind, ["math", "cases", "concurrent"]
    )
    assert [name for name, _, _ in counts] == wanted
    if kind == "old":
        # The same binary picks what each processor has.
        assert re.findall(r"^levels: (.*)$", found.stdout, re.MULTILINE) == ["plain", "plain,avx2"]
    assert all(int(passed) > 0 and failed == "0" for _, passed, failed in counts)


@pytest.mark.parametrize("level", ["plain", "avx2", "avx512"])
def test_a_level_defines_nothing_that_the_linker_could_share(level: str, tmp_path: Path) -> None:
    """An inline function compiled for AVX-512 must not be the one that all levels get."""
    compiler, nm = shutil.which("c++"), shutil.which("nm")
    if compiler is None or nm is None or os.uname().machine != "x86_64":
        pytest.skip("needs a C++ compiler and nm on x86")
    flags = {
        "plain": [],
        "avx2": ["-mavx2", "-mfma", "-mf16c"],
        "avx512": [
            "-mavx2",
            "-mfma",
            "-mf16c",
            "-mavx512f",
            "-mavx512bw",
            "-mavx512dq",
            "-mavx512vl",
        ],
    }[level]
    # Without optimisation, so that nothing is hidden by having been inlined.
    for optimise in ("-O0", "-O3"):
        made = tmp_path / "level.o"
        subprocess.run(
            [compiler, "-std=c++17", "-Wno-psabi", optimise, "-fPIC", *flags, "-c",
             str(NATIVE / "kernels" / "cpu" / f"{level}.cpp"), "-o", str(made)],
            check=True,
        )  # fmt: skip
        listing = subprocess.run(
            [nm, "-C", "--defined-only", "--extern-only", str(made)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        shared = {line.split(maxsplit=2)[2] for line in listing.splitlines()}
        assert shared == {f"capsedge::kLevel_{level}"}


def test_installing_without_a_compiler_says_what_is_lost(tmp_path: Path) -> None:
    cmake = shutil.which("cmake", path=environment()["PATH"])
    if cmake is None:
        pytest.skip("cmake is not installed: pip install cmake")
    found = subprocess.run(
        [cmake, "-S", str(NATIVE), "-B", str(tmp_path), "-G", "Unix Makefiles",
         "-DCMAKE_MAKE_PROGRAM=/bin/true"],
        capture_output=True, text=True, check=False,
        env={"PATH": str(tmp_path), "CXX": "/nonexistent/c++"},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    message = " ".join(found.stderr.split())
    assert "no C++ compiler found, so the fused CPU operators are left out" in message
    assert "apt-get install g++" in message
