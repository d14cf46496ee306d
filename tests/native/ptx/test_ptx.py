"""nvcc's own code for the CUDA kernels, executed on the CPU: results, races, bounds; and faults are found.

`make test-gpu-code` runs everything here, for three architectures; `make test-all` a sample for one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.native import cuda_library
from tests.native import test_tensorrt_plugin as plugin
from tools.ptx import build

from . import checks, mutants

pytestmark = pytest.mark.skipif(bool(build.unavailable()), reason=build.unavailable())
SAMPLE = "kind=(normal|huge)"


def python(*words: str, **variables: str) -> str:
    """What a process says that ends well."""
    done = subprocess.run(
        [sys.executable, "-m", *words], env={**os.environ, **variables}, cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def conformance(architecture: int, scheme: str, dtype: str, *words: str) -> None:
    """All cases, none of which is skipped that has a kernel."""
    counted(f"cuda-ptx-{scheme}", dtype, *words, CAPSEDGE_PTX_ARCHITECTURE=str(architecture))


def counted(backend: str, dtype: str, *words: str, **variables: str) -> None:
    """The conformance of a backend: more than a few cases run, and none fails."""
    command = ("tests.conformance", "test", "--backend", backend, "--dtype", dtype, *words)
    said = python(*command, **variables)
    found = re.search(r"^test: (\d+) ok", said, re.M)
    assert found, said[-500:]
    assert int(found[1]) > 100


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("scheme", "dtype"), [("auto", "float32"), ("auto", "float16"), ("cluster", "float32")]
)
def test_sample(scheme: str, dtype: str) -> None:
    conformance(90, scheme, dtype, "--light", "--filter", SAMPLE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("scheme", cuda_library.SCHEMES)
@pytest.mark.parametrize("architecture", build.ARCHITECTURES)
def test_whole_registry(architecture: int, scheme: str, dtype: str) -> None:
    conformance(architecture, scheme, dtype, *(() if scheme == "auto" else ("--light",)))


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", checks.CHECKS)
def test_the_runtime(name: str) -> None:
    python("tests.native.ptx.checks", name, **checks.compiled().variables())


@pytest.mark.thorough
@pytest.mark.parametrize("architecture", [75, 87])
def test_limits_of_other_architectures(architecture: int) -> None:
    python("tests.native.ptx.checks", "limits", **checks.compiled(architecture).variables())


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_refusals_of_the_kernels_file() -> None:
    python("tests.native.ptx.host_code", "loading", **build.built(90).variables())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_through_the_driver(dtype: str) -> None:
    """As on JetPack 6: a CUDA runtime before 12.8 loads and launches nothing itself."""
    own = replace(build.built(87), cudart=build.cudart(version="12.6"))
    said = python(
        "tests.conformance", "test", "--backend", "cuda-kernels-auto", "--dtype", dtype, "--light",
        **own.variables(),
    )  # fmt: skip
    counted = re.search(r"^test: (\d+) ok", said, re.M)
    assert counted, said[-500:]
    assert int(counted[1]) > 100


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", build.ARCHITECTURES)
def test_more_parents_than_lanes(architecture: int) -> None:
    python("tests.native.ptx.host_code", "wide", **build.built(architecture).variables())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["clusters", "determinism", "graphs", "streams"])
def test_behaviour(name: str) -> None:
    """What the day with a GPU asks of it: equal bits in every run, in CUDA graphs and on several streams."""
    python("tests.native.cuda_behaviour", name, **build.built(90).variables())


TENSORRT = ROOT / "capsedge" / "runtime" / "native" / "tensorrt"
COVERAGE = "--coverage,-O0"


def executed_lines(folder: Path, counters: Path) -> dict[str, dict[int, int]]:
    """How often each line of the host's code ran, by file: gcov's counts of the objects in a folder."""
    found: dict[str, dict[int, int]] = {}
    for notes in folder.rglob("*.gcno"):
        data = next(counters.rglob(notes.with_suffix(".gcda").name), None)
        if data is None:
            continue
        shutil.copy(data, notes.parent)
        said = subprocess.run(
            ["gcov", "--stdout", "--json-format", notes.name], cwd=notes.parent, capture_output=True,
            text=True, check=True,
        ).stdout  # fmt: skip
        for file in json.loads(said)["files"]:
            lines = found.setdefault(Path(file["file"]).name, {})
            for line in file["lines"]:
                number = int(line["line_number"])
                lines[number] = lines.get(number, 0) + int(line["count"])
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_of_the_launch_code_runs(tmp_path: Path) -> None:
    """Every line of launch.cpp, launch.h and the plugin's enqueue, error returns too."""
    own = build.built(90, flags=COVERAGE)
    shutil.copytree(own.library.parent, tmp_path / own.library.stem)
    mock = tmp_path / "plugin" / "libplugin.so"
    mock.parent.mkdir()
    sources = [TENSORRT / f"{name}.cpp" for name in (*plugin.SOURCES, "mock/driver")]
    folders = (
        TENSORRT / "mock",
        TENSORRT,
        TENSORRT.parent,
        TENSORRT.parent / "kernels",
        build.KERNELS,
    )
    subprocess.run(
        ["g++", "-std=c++17", "-O0", "--coverage", "-shared", "-fPIC", "-fvisibility=hidden",
         *(f"-I{folder}" for folder in folders), *map(str, sources),
         *(str(TENSORRT.parent / "kernels" / f"{name}.cpp") for name in plugin.KERNELS),
         str(own.library), "-o", str(mock)],
        cwd=mock.parent, check=True,
    )  # fmt: skip
    counters = {"GCOV_PREFIX": str(tmp_path / "counters"), "CAPSEDGE_PLUGIN_MOCK": str(mock)}
    for name in ("launches", "enqueue"):
        python("tests.native.ptx.host_code", name, **own.variables(), **counters)
    found = executed_lines(tmp_path, tmp_path / "counters")
    for file in ("launch.cpp", "launch.h"):
        assert len(found[file]) > 2
        assert [line for line, count in found[file].items() if not count] == [], file
    text = (TENSORRT / "plugin.cpp").read_text().splitlines()
    start = next(k for k, line in enumerate(text, 1) if "Plugin::enqueue" in line)
    missed = {
        text[n - 1].strip() for n, count in found["plugin.cpp"].items() if n > start and not count
    }
    assert missed <= UNREACHABLE, missed


# Of the plugin's enqueue: what onShapeChange has refused before, and exceptions of memory.
UNREACHABLE = {"} catch (...) {", "return 1;", "}"}
IN_ALL = ("a barrier is missing", "the end of an output is passed")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "mutant",
    [pytest.param(m, id=m.name.replace(" ", "-"),
                  marks=pytest.mark.thorough if m.name in IN_ALL else pytest.mark.slow)
     for m in mutants.MUTANTS],
)  # fmt: skip
def test_mutants_are_found(mutant: mutants.Mutant, tmp_path: Path) -> None:
    code, said = mutants.run(mutant.scheme, mutant.cases, mutants.mutated(mutant, tmp_path))
    assert (code == 0) == (mutant.name == "nothing"), said[-2000:]
    assert mutant.words in said, said[-2000:]


@pytest.mark.thorough
@pytest.mark.parametrize("architecture", [90])
def test_what_is_not_known_is_named(architecture: int, tmp_path: Path) -> None:
    """An instruction that the execution does not have is an error, not a guess."""
    own = build.built(architecture)
    text = (own.folder / "kernels.ptx").read_text().replace("\tbar.sync", "\tbar.red.popc", 1)
    (tmp_path / "kernels.ptx").write_text(text)
    code, said = mutants.run("auto", mutants.DYNAMIC, tmp_path)
    assert "an instruction that is not known: bar.red.popc" in said
    assert "no GPU" in said or code
