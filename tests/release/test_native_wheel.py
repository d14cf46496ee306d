"""The wheel for this machine's processor computes what a local build computes, at the same SIMD levels.

`make test-wheel` builds it and runs these tests; with CAPSEDGE_WHEELS they judge a wheel that exists.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from capsedge.runtime.backends import native_library
from capsedge.runtime.zoo import MODELS
from tests.conformance.cases import CASES
from tests.conformance.dump import dump
from tests.conformance.selection import selected
from tests.conftest import ROOT
from tests.native import libcapsedge
from tests.native.builds import NATIVE
from tests.release.conftest import build_one
from tests.release.environments import answers, compare, environment, without_variables
from tools import wheels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        platform.machine() not in wheels.PROCESSORS,
        reason="wheels are for x86-64 and 64-bit ARM only",
    ),
]
MODEL = ROOT / "capsedge" / "zoo" / "digits-em.onnx"
# Sums in another order: by the local compiler and by zig's.
TOLERANCE = 2e-6  # of a score


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and nothing of the checkout."""
    wheel = build_one(platform.machine(), tmp_path_factory)
    return environment(sys.executable, wheel, tmp_path_factory.mktemp("wheel") / "env")


@pytest.fixture(scope="module")
def libraries(programs: Path) -> Path:
    """The folder of the wheel's libraries, as the installed package finds it."""
    code = "from capsedge.runtime.backends import native_library as n; print(n.find_library())"
    said = subprocess.run(
        [programs / "python", "-c", code],
        cwd=programs, env=without_variables(), check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    found = Path(said.strip()).parent
    assert programs.parent in found.parents
    return found


def test_the_levels_of_the_operator_library(libraries: Path) -> None:
    local = wheels.local_library()
    assert libraries not in local.parents
    assert native_library.levels_of(libraries / native_library.NAME) == native_library.levels_of(
        local
    )


def levels_of_libcapsedge(library: Path) -> str:
    """It exports no function for them, and names them when it is asked for one that no machine has."""
    code = f"from tests.native import libcapsedge as c; c.Session({str(MODEL)!r}, ops='fused')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=without_variables(**{libcapsedge.LIBRARY_VARIABLE: library, "CAPSEDGE_SIMD": "none"}),
    )  # fmt: skip
    found = re.search(r"this machine runs ([\w, ]+):", done.stderr)
    assert found is not None, done.stderr
    return found[1].replace(", ", ",")


def test_the_levels_of_libcapsedge(libraries: Path) -> None:
    wanted = ",".join(native_library.levels_of(wheels.local_library()))
    assert levels_of_libcapsedge(libraries / "lib" / native_library.LIBRARY) == wanted


@pytest.mark.parametrize("model", MODELS)
def test_every_bundled_model_answers_as_the_local_build(
    model: str, programs: Path, tmp_path: Path
) -> None:
    there = answers([programs / "capsedge"], tmp_path, "--model", model)
    here = answers([sys.executable, "-m", "capsedge"], ROOT, "--model", model, variables=os.environ)
    compare(there, here, TOLERANCE)


def test_native_tests(libraries: Path, tmp_path: Path) -> None:
    """The native test program, linked with the library of the wheel: its cases, alone and side by side."""
    compiler = shutil.which("c++")
    assert compiler is not None  # the local build needs it too
    light = [case for case in CASES if not case.heavy]
    operators = sorted({case.operator for case in light})
    few = [c for name in operators for c in selected([x for x in light if x.operator == name])]
    dump(tmp_path / "cases", few, ["float32", "float16", "uint8"])
    sources = [NATIVE / "tests" / f"{n}.cpp" for n in ("main", "case_file", "cases", "concurrent")]
    program = tmp_path / "native_tests"
    subprocess.run(
        [
            compiler, "-std=c++17", "-O1", "-pthread", "-DCAPSEDGE_C_INTERFACE_ONLY",
            *(f"-I{NATIVE / folder}" for folder in ("include", "kernels", "kernels/cpu", ".")),
            *sources, libraries / native_library.NAME, f"-Wl,-rpath,{libraries}", "-o", program,
        ],
        check=True,
    )  # fmt: skip
    for what in ("cases", "concurrent"):
        done = subprocess.run(
            [program, what, tmp_path / "cases"], capture_output=True, text=True, check=False
        )
        counts = re.search(rf"^{what}: (\d+) passed, (\d+) failed$", done.stdout, re.MULTILINE)
        assert counts is not None, done.stdout + done.stderr
        print(counts[0])
        assert int(counts[1]) > 0
        assert int(counts[2]) == done.returncode == 0, done.stdout[-3000:]


def test_a_sample_of_the_conformance_cases(libraries: Path) -> None:
    """Those of the fast tests, on the kernels at their lowest and highest level and in ONNX Runtime."""
    command = [
        sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider",
        "tests/conformance/test_conformance.py", "-k", "test_selected_cases or test_the_backend_runs",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=without_variables(**{native_library.VARIABLE: libraries / native_library.NAME}),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    print(done.stdout.splitlines()[-1])
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 20
