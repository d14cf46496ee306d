"""The distributions: what is in them, what they need, and that they run where they are installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from capsedge.deploy.web import SITE, built_page
from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.cuda import load_cuda
from tests.conftest import ROOT
from tests.release import interpreters
from tests.release.environments import SAMPLE, answers, environment, label, without_variables
from tools import cuda_wheel, pe, release, wheels, zig
from tools.macos import macho

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
LINUX = {
    "capsedge/runtime/_native/libcapsedge_ort.so",
    "capsedge/runtime/_native/lib/libcapsedge.so",
}
LIBRARIES = {
    **dict.fromkeys(wheels.PROCESSORS, LINUX),
    zig.WINDOWS: {*pe.LIBRARIES, pe.IMPORT_LIBRARY},
    zig.MACOS: {*macho.LIBRARIES},
}


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheels_hold_the_same_but_for_the_libraries(made: dict[str, Path]) -> None:
    plain = {n for n in names(made["pure"]) if ".dist-info/" not in n}
    assert not any("/_native/" in n or n.endswith((".so", ".cpp")) for n in plain)
    for kind, libraries in LIBRARIES.items():
        full = {n for n in names(made[kind]) if ".dist-info/" not in n}
        assert plain < full
        assert all("/_native/" in n for n in full - plain)
        assert full >= libraries


def test_the_source_archive_holds_what_a_build_needs(made: dict[str, Path]) -> None:
    with tarfile.open(made["sdist"]) as archive:
        held = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    assert {"pyproject.toml", "LICENSE", "capsedge/runtime/native/CMakeLists.txt"} <= held
    assert page() <= held


def page() -> set[str]:
    """The files of the page that `make web` builds, as distributions name them."""
    folder = SITE.relative_to(ROOT).as_posix()
    return {f"{folder}/{name}" for name in built_page()}


@pytest.mark.parametrize("kind", ["pure", *wheels.TAGS])
def test_the_page_is_in_every_wheel(made: dict[str, Path], kind: str) -> None:
    assert page() <= names(made[kind])


def test_a_release_lists_what_is_installed_with_it(made: dict[str, Path]) -> None:
    """Checksums of every file, and the bill of materials of ``[cpu]``."""
    folder = made["pure"].parent
    subprocess.run(["sha256sum", "--check", "--strict", release.CHECKSUMS], cwd=folder, check=True)
    (bill,) = folder.glob("*.cdx.json")
    document = json.loads(bill.read_text(encoding="utf-8"))
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == "capsedge"
    found = {component["name"].lower() for component in document["components"]}
    assert {"numpy", "onnxruntime", "pillow", "click", "rich"} <= found
    assert not found & {"torch", "pip", "capsedge"}
    assert str(Path.home()) not in bill.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", wheels.TAGS)
def test_the_libraries_agree_with_the_tag(made: dict[str, Path], kind: str) -> None:
    assert wheels.judged_tag(made[kind]) == wheels.TAGS[kind]


# Options and judged paths of every verb: how annotations are read differs between versions of Python.
_OPTIONS = """
import json
from capsedge.cli import _paths as _places, app
verbs = {name: app.get_command(None, name) for name in app.list_commands(None)}
found = {name: sorted(o for p in verb.params for o in p.opts) for name, verb in verbs.items()}
roles = {
    name: sorted(_places._roles(verb.callback.__wrapped__))
    for name, verb in verbs.items() if verb.callback is not None
}
print(json.dumps([found, roles]))
"""


def options(python: str | Path, folder: Path) -> Any:
    said = subprocess.run(
        [python, "-c", _OPTIONS], cwd=folder, check=True, capture_output=True, text=True
    )
    return json.loads(said.stdout)


def test_every_python_of_this_machine(made: dict[str, Path], tmp_path: Path) -> None:
    """For the versions that it lacks, test_versions.py resolves the packages."""
    wanted = options(sys.executable, tmp_path)
    for version, python in interpreters.here().items():
        started = time.perf_counter()
        programs = environment(python, made["x86_64"], tmp_path / version)
        said = answers([programs / "capsedge"], tmp_path)
        print(f"Python {version}: installed and inferred in {time.perf_counter() - started:.1f} s")
        assert (label(said), said["ops"]) == ("7", "fused"), version
        assert options(programs / "python", tmp_path) == wanted, version


def test_the_wheel_without_libraries_gives_the_same_label(
    made: dict[str, Path], tmp_path: Path
) -> None:
    programs = environment(Path(sys.executable), made["pure"], tmp_path / "env")
    said = answers([programs / "capsedge"], tmp_path)
    assert (label(said), said["ops"]) == ("7", "portable")


def test_the_two_lines_for_a_gpu(made: dict[str, Path], tmp_path: Path) -> None:
    """All that README's lines install is found; without a GPU, the driver is what is missing."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    programs = tmp_path / "env" / "bin"
    pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    wanted = [made["x86_64"], made["cuda"], "onnxruntime-gpu[cuda,cudnn]"]
    subprocess.run([*pip, *wanted], check=True)
    environment = without_variables()
    said = subprocess.run(
        [programs / "capsedge", "infer", "--device", "cuda", SAMPLE], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if load_cuda_devices():
        assert said.returncode == 0, said.stderr
    else:
        assert said.returncode == 3, said.stderr
        assert "There is no NVIDIA GPU that CUDA can use on this machine." in said.stderr
    found = subprocess.run(
        [programs / "python", "-c", _LOADED], cwd=tmp_path, env=environment, capture_output=True,
        text=True, check=True,
    ).stdout  # fmt: skip
    for library in ("libcublasLt", "libcublas", "libcudart", "libcurand", "libcudnn"):
        assert f"/{library}.so" in found
    doctor = subprocess.run(
        [programs / "capsedge", "doctor"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    assert re.search(r"CUDA kernels +ok +\S+kernels\.fatbin", doctor)


# The libraries of packages in a process that has asked for a GPU.
_LOADED = """
import onnxruntime
from capsedge.runtime.backends.onnxruntime_session import preload_cuda
preload_cuda(onnxruntime)
print(*(line for line in open("/proc/self/maps") if "/nvidia/" in line))
"""


def load_cuda_devices() -> int:
    """GPUs that CUDA sees here."""
    try:
        return load_cuda().device_count()
    except EnvironmentProblem:
        return 0


def test_the_kernels_are_of_the_same_version_and_for_every_gpu(
    made: dict[str, Path], tmp_path: Path
) -> None:
    """The index takes files of up to 100 MB."""
    assert made["cuda"].name.split("-")[1] == made["pure"].name.split("-")[1]
    assert made["cuda"].stat().st_size < cuda_wheel.MOST_BYTES
    with zipfile.ZipFile(made["cuda"]) as archive:
        kernels = Path(archive.extract("capsedge_cuda/kernels.fatbin", tmp_path))
    assert cuda_wheel.architectures(kernels) == (
        sorted(cuda_wheel.ARCHITECTURES),
        [cuda_wheel.ARCHITECTURES[-1]],
    )
