"""libcapsedge in other builds: sanitizers, ARM under emulation; many calls, many threads, allocations."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from capsedge.runtime.zoo import default_model
from tests.cli.examples import plain_images

from . import libcapsedge
from .builds import ARM_C, NATIVE, ROOT, TOOLCHAIN, arm, cmake_build

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
STRESS = Path("libcapsedge") / "tests" / "capsedge_stress"
SAMPLE = ROOT / "capsedge" / "zoo" / "samples" / "digit-7.png"
# ONNX Runtime is not built with the sanitizers. When the process ends it unlocks a mutex that was locked
# where ThreadSanitizer did not look; everything else is reported.
OPTIONS = {
    "thread": {"TSAN_OPTIONS": "report_mutex_bugs=0"},
    "address,undefined": {},
}


def build(folder: Path, *options: str, target: str = "capsedge_stress") -> Path:
    return cmake_build(folder, target, "-DCAPSEDGE_TESTS=ON", *options)


def stress(program: list[str], *words: str, **variables: str) -> str:
    done = subprocess.run(
        [*program, *words],
        capture_output=True, text=True, check=False, env={**os.environ, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = build(tmp_path_factory.mktemp("plain"))
    return [str(folder / STRESS), str(libcapsedge.onnxruntime_library()), str(default_model())]


def test_a_hundred_thousand_calls_do_not_grow(plain: list[str]) -> None:
    assert "calls: 100000, grown by" in stress(plain, "calls", "100000")


def test_a_call_allocates_nothing(plain: list[str]) -> None:
    """In steady state, beyond what ONNX Runtime itself does."""
    found = re.findall(
        r"^allocations: (\w+) (\w+): ([\d.]+) a call in libcapsedge, ([\d.]+) elsewhere$",
        stress(plain, "allocations"),
        re.MULTILINE,
    )
    assert [(what, ops) for what, ops, _, _ in found] == [
        (what, ops) for ops in ("portable", "fused") for what in ("run", "predict")
    ]
    for what, ops, ours, theirs in found:
        assert float(theirs) > 0, "the counter counts"
        assert float(ours) == 0, (what, ops)


def test_threads_and_misuse(plain: list[str]) -> None:
    assert "8 threads, 50 rounds" in stress(plain, "threads", "50")
    assert "misuse: 10 rounds" in stress(plain, "misuse", "10")


@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_sanitizers(kind: str, tmp_path: Path) -> None:
    folder = build(tmp_path / "build", f"-DCAPSEDGE_SANITIZE={kind}", "-DCMAKE_BUILD_TYPE=Release")
    program = [
        str(folder / STRESS),
        str(libcapsedge.onnxruntime_library()),
        str(default_model()),
    ]
    for words in (["threads", "5"], ["misuse", "3"]):
        stress(program, *words, **OPTIONS[kind])


def test_minimum_size(tmp_path: Path) -> None:
    folder = build(tmp_path, "-DCMAKE_BUILD_TYPE=MinSizeRel", target="capsedge")
    library = folder / "libcapsedge" / "libcapsedge.so"
    subprocess.run(["strip", str(library)], check=True)
    assert library.stat().st_size < 1_500_000


def test_arm(tmp_path: Path) -> None:
    """With the ARM build of ONNX Runtime, both emulated."""
    machine = arm(tmp_path)
    folder = build(tmp_path / "build", "--toolchain", str(TOOLCHAIN))
    program = [
        *machine.emulator,
        str(folder / STRESS),
        str(machine.onnxruntime),
        str(default_model()),
    ]
    assert "8 threads, 1 rounds" in stress(program, "threads", "1")
    assert "misuse: 1 rounds" in stress(program, "misuse", "1")

    example = tmp_path / "classify"
    library = folder / "libcapsedge"
    subprocess.run(
        [ARM_C, "-std=c99", f"-I{NATIVE}/libcapsedge/include",
         str(NATIVE / "libcapsedge" / "examples" / "classify.c"), "-o", str(example),
         f"-L{library}", "-lcapsedge", f"-Wl,-rpath,{library}"],
        check=True,
    )  # fmt: skip
    found = stress(
        [*machine.emulator, str(example)],
        str(default_model()),
        str(plain_images([SAMPLE], tmp_path)[0]),
        CAPSEDGE_ONNXRUNTIME=str(machine.onnxruntime),
    )
    assert ": 7, length 0.95" in found
