"""Builds of the native tests: with sanitizers, for ARM, and what each level's object file defines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conformance.cases import CASES, OUTPUTS, UNCACHED, make
from tests.conformance.dump import dump
from tests.conformance.native import one_node

from .builds import ARM_COMPILER, NATIVE, ROOT, TOOLCHAIN, arm, cmake_build, environment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    light = [case for case in CASES if not case.heavy]
    # First, since `concurrent` takes every seventh file.
    dump(folder, [replace(UNCACHED, heavy=False), *light], ["float32", "float16", "uint8"])
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


# Types of inputs as tests/native/ort_run.cpp has them.
ARM_LETTERS = {"float32": "f", "float16": "h", "uint8": "B"}


@pytest.mark.timeout(1800)
def test_onnxruntime_for_arm(tmp_path: Path) -> None:
    """The ARM library in the ARM build of ONNX Runtime, both emulated: one case of each operator."""
    pytest.importorskip("onnx")
    machine = arm(tmp_path)
    build = cmake_build(tmp_path / "build", "capsedge_ort", "--toolchain", str(TOOLCHAIN))
    subprocess.run(
        [ARM_COMPILER, "-std=c++17", "-O1", f"-I{NATIVE}/onnxruntime", f"-I{NATIVE}/kernels/cpu",
         f"-I{ROOT}/tests/native", f"{ROOT}/tests/native/ort_run.cpp", "-o", f"{tmp_path}/ort_run", "-ldl"],
        check=True, capture_output=True,
    )  # fmt: skip

    for operator in OUTPUTS:
        case = next(c for c in CASES if c.operator == operator and not c.heavy)
        for dtype in [d for d in case.dtypes if d != "float64"]:
            example = make(case, dtype)
            model = tmp_path / "model.onnx"
            # Of QuantizedConv all but the image is constant, scalars too.
            constants = {"weight", "weight_scale"}
            if operator == "QuantizedConv":
                constants = example.inputs.keys() - {"x"}
            model.write_bytes(one_node(operator, case.attributes, example.inputs, (*constants,)))
            given = []
            for key, x in example.inputs.items():
                if key in constants:
                    continue
                x.tofile(tmp_path / f"{key}.bin")
                shape = "x".join(map(str, x.shape))
                given.append(f"{key}:{ARM_LETTERS[x.dtype.name]}:{shape}:{tmp_path / key}.bin")
            wanted = [f"out_{key}:{tmp_path / key}.out" for key in OUTPUTS[operator]]
            found = subprocess.run(
                [*machine.emulator, str(tmp_path / "ort_run"), str(machine.onnxruntime),
                 str(build / "libcapsedge_ort.so"), str(model), *given, "--", *wanted],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert found.returncode == 0, found.stdout + found.stderr
            for key in OUTPUTS[operator]:
                values = np.fromfile(tmp_path / f"{key}.out", dtype).reshape(
                    example.wanted[key].shape
                )
                assert example.tolerances[key].excess(values, example.wanted[key]) <= 1, (case, key)


@pytest.mark.parametrize("level", ["plain", "avx2", "avx512", "avx512vnni", "amx"])
def test_a_level_defines_nothing_that_the_linker_could_share(level: str, tmp_path: Path) -> None:
    """An inline function compiled for AVX-512 must not be the one that all levels get."""
    compiler, nm = shutil.which("c++"), shutil.which("nm")
    if compiler is None or nm is None or os.uname().machine != "x86_64":
        pytest.skip("needs a C++ compiler and nm on x86")
    avx2 = ["-mavx2", "-mfma", "-mf16c"]
    avx512 = [*avx2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
    flags = {
        "plain": [],
        "avx2": avx2,
        "avx512": avx512,
        "avx512vnni": [*avx512, "-mavx512vnni"],
        "amx": [*avx512, "-mavx512vnni", "-mamx-tile", "-mamx-int8"],
    }[level]
    probe = [compiler, *flags, "-x", "c++", "-fsyntax-only", "/dev/null"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip(f"this compiler has no {flags[-1]}")
    # Without optimisation, so that nothing is hidden by having been inlined.
    for optimise in ("-O0", "-O3"):
        made = tmp_path / "level.o"
        subprocess.run(
            [compiler, "-std=c++17", "-Wno-psabi", "-fno-exceptions", optimise, "-fPIC", *flags, "-c",
             str(NATIVE / "kernels" / "cpu" / "simd" / f"{level}.cpp"), "-o", str(made)],
            check=True,
        )  # fmt: skip
        listing = subprocess.run(
            [nm, "-C", "--defined-only", "--extern-only", str(made)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        shared = {line.split(maxsplit=2)[2] for line in listing.splitlines()}
        # What VNNI and AMX add to AVX-512 are convolutions.
        table = "kConv" if level in ("avx512vnni", "amx") else "kLevel"
        assert shared == {f"capsedge::{table}_{level}"}


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
