"""What the CUDA kernels' interface refuses and leaves behind, and where its lanes meet shared memory."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.conformance.cases import Case, make
from tests.native import cuda_library
from tests.native.test_cuda import host as host  # the fixture
from tests.native.test_cuda import of
from tests.tables import table

DYNAMIC = of("DynamicRouting", N=7, I=128)
EM = of("EMRouting", C=8, M=8)


def layer_of(case: Case, **fields: int) -> cuda_library.Layer:
    """Without addresses."""
    layer = cuda_library.layer_of(case.operator, case.attributes, make(case, "float32").inputs)
    for name, value in fields.items():
        setattr(layer, name, value)
    return layer


@table(
    "given, size, words",
    [
        (0, 1 << 30, "the workspace is missing"),
        (256, 1, "the workspace is too small"),
        (8, 1 << 30, "the workspace is not aligned"),
    ],
)
def test_a_wrong_workspace_is_refused(host: ctypes.CDLL, given: int, size: int, words: str) -> None:
    """Before anything runs: no address of this layer is one."""
    layer = layer_of(DYNAMIC, scheme=cuda_library.SCHEMES["split"])
    text = ctypes.create_string_buffer(256)
    assert host.capsedge_cuda_route(ctypes.byref(layer), given, size, None, text, 256) == 1
    assert text.value.decode() == words


def ways(places: Iterable[int]) -> int:
    """Turns that shared memory takes for these words, of four bytes: 32 banks, one word of each in a turn."""
    words = defaultdict(set)
    for place in places:
        words[place % 32].add(place)
    return max(len(bank) for bank in words.values())


@pytest.mark.parametrize("parents", [1, 2, 5, 8, 10, 16, 32, 33, 64])
@pytest.mark.parametrize(("case", "rows"), [(EM, 4), (DYNAMIC, 1)], ids=["em", "dynamic"])
def test_lanes_of_a_pass_meet_no_bank_twice(
    host: ctypes.CDLL, case: Case, rows: int, parents: int
) -> None:
    """A lane reads and writes four elements of its parent at once: eight lanes in one turn."""
    layer = layer_of(case, parents=parents, rows=rows, inner=4, columns=16 // rows)
    lanes = [parent for parent in range(32) if parent < parents]
    for h in range(0, 16, 4):
        at = [host.capsedge_cuda_emulate_place(ctypes.byref(layer), m, h) for m in lanes]
        assert all(place % 4 == 0 for place in at)
        for first in range(0, len(lanes), 8):
            assert ways(place + e for place in at[first : first + 8] for e in range(4)) == 1


@pytest.mark.thorough
def test_errors_of_the_cuda_runtime_are_left_to_nobody(tmp_path: Path) -> None:
    """A caller's next call of its own would report them."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("the launch code needs g++")
    units = [str(cuda_library.SOURCES / "launch.cpp")]
    subprocess.run(
        [compiler, "-std=c++17", f"-I{cuda_library.SOURCES}",
         str(Path(__file__).with_name("cuda_errors.cpp")), *units, "-o", str(tmp_path / "errors")],
        check=True,
    )  # fmt: skip
    done = subprocess.run([str(tmp_path / "errors")], capture_output=True, text=True, check=True)
    assert not done.stdout, done.stdout


def test_the_interface_of_the_cuda_runtime_is_that_of_its_headers() -> None:
    """Sizes, offsets, values and signatures; no header of CUDA is needed to build capsedge."""
    compiler = shutil.which("g++")
    headers = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    if compiler is None or not (headers / "cuda_runtime_api.h").is_file():
        pytest.skip(
            "needs g++ and CUDA's headers: install CUDA 12.8 or newer, or set CUDA_HOME to its folder"
        )
    done = subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof", f"-I{headers}",
         f"-I{cuda_library.SOURCES}", str(Path(__file__).with_name("cudart_abi.cpp"))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
