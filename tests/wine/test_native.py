"""The kernels of the Windows wheel pass the native tests at every SIMD level."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from capsedge.runtime.backends import native_library
from tests.conformance.cases import CASES
from tests.conformance.dump import dump
from tests.wine.conftest import NATIVE, answer, compiled
from tools import pe, wine, zig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The native test program, linked to the wheel's operator library."""
    folder = tmp_path_factory.mktemp("program")
    library = libraries / "libcapsedge_ort.dll"
    definition = folder / "names.def"
    names = sorted(pe.read(library.read_bytes()).exports)
    definition.write_text("\n".join(["EXPORTS", *names, ""]))
    made = folder / "libcapsedge_ort.dll.a"
    subprocess.run(
        [
            zig.variables(zig.WINDOWS)["CAPSEDGE_ZIG"], "dlltool", "-m", "i386:x86-64",
            "-D", library.name, "-d", definition, "-l", made,
        ],
        check=True,
    )  # fmt: skip
    sources = [NATIVE / "tests" / f"{n}.cpp" for n in ("main", "case_file", "cases", "concurrent")]
    folders = (f"-I{NATIVE / name}" for name in ("include", "kernels", "kernels/cpu", "."))
    options = ("-std=c++17", "-Wno-psabi", "-DCAPSEDGE_C_INTERFACE_ONLY")
    return compiled(folder / "native_tests.exe", *options, *folders, *sources, made)


def test_levels_are_those_of_linux_but_for_amx(levels: list[str], linux: Path) -> None:
    assert levels == [name for name in native_library.levels_of(linux) if name != "amx"]


@pytest.mark.parametrize("what", ["cases", "concurrent"])
def test_the_cases_at_every_level(
    what: str, program: Path, libraries: Path, levels: list[str], tmp_path: Path
) -> None:
    dump(tmp_path, [case for case in CASES if not case.heavy], ["float32", "float16", "uint8"])
    added = {"WINEPATH": wine.path_of(libraries)}
    assert answer(program, "levels", added=added) == f"levels: {','.join(levels)}\n"
    said = answer(program, what, wine.path_of(tmp_path), added=added)
    counts = re.search(rf"^{what}: (\d+) passed, (\d+) failed$", said, re.MULTILINE)
    assert counts is not None, said[-3000:]
    print(counts[0])
    assert int(counts[1]) >= len(levels)
    assert int(counts[2]) == 0
