"""What the native code takes an x86 processor for: from registers of many processors, and on this machine."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from capsedge.runtime.machine import _cpuinfo

from . import library
from .builds import NATIVE, ROOT

# Register and bit of each flag, by the manuals of Intel and AMD: CPUID leaves 1 and 7, and XCR0.
REGISTERS = ("leaf1_c", "leaf7_b", "leaf7_c", "leaf7_d", "leaf7_1_a", "xcr0")
BITS = {
    "fma": ("leaf1_c", 12), "osxsave": ("leaf1_c", 27), "avx": ("leaf1_c", 28), "f16c": ("leaf1_c", 29),
    "avx2": ("leaf7_b", 5), "avx512f": ("leaf7_b", 16), "avx512dq": ("leaf7_b", 17),
    "avx512bw": ("leaf7_b", 30), "avx512vl": ("leaf7_b", 31), "avx512_vnni": ("leaf7_c", 11),
    "amx_tile": ("leaf7_d", 24), "amx_int8": ("leaf7_d", 25), "avx_vnni": ("leaf7_1_a", 4),
    "sse_state": ("xcr0", 1), "avx_state": ("xcr0", 2), "opmask": ("xcr0", 5), "zmm_low": ("xcr0", 6),
    "zmm_high": ("xcr0", 7), "tile_shapes": ("xcr0", 17), "tile_contents": ("xcr0", 18),
}  # fmt: skip
HASWELL = {"fma", "osxsave", "avx", "f16c", "avx2", "sse_state", "avx_state"}
SKYLAKE_SERVER = HASWELL | {
    "avx512f", "avx512dq", "avx512bw", "avx512vl", "opmask", "zmm_low", "zmm_high"
}  # fmt: skip
CASCADE_LAKE = SKYLAKE_SERVER | {"avx512_vnni"}
TILES = {"amx_tile", "amx_int8", "tile_shapes", "tile_contents"}
SAPPHIRE_RAPIDS = CASCADE_LAKE | TILES | {"avx_vnni"}
ZMM_STATE = {"opmask", "zmm_low", "zmm_high"}
# What each feature takes: no flag more, and none less.
NEEDS = {
    "avx2": HASWELL - {"osxsave"},  # without it XCR0 is not read
    "avx512": SKYLAKE_SERVER - {"osxsave"},
    "avx512vnni": CASCADE_LAKE - {"osxsave"},
    "tiles": (CASCADE_LAKE | TILES) - {"osxsave"},
    "avxvnni": (HASWELL | {"avx_vnni"}) - {"osxsave"},
}
PROCESSORS = {
    "none of it": (set(), ""),
    "Sandy Bridge": ({"osxsave", "avx", "sse_state", "avx_state"}, ""),
    "Haswell, Zen 1 to 3": (HASWELL, "avx2"),
    "AVX2 without FMA": (HASWELL - {"fma"}, ""),
    "Knights Landing: F alone": (HASWELL | ZMM_STATE | {"avx512f"}, "avx2"),
    "Skylake server": (SKYLAKE_SERVER, "avx2 avx512"),
    "Cascade Lake, Zen 4": (CASCADE_LAKE, "avx2 avx512 avx512vnni"),
    "Alder Lake": (HASWELL | {"avx_vnni"}, "avx2 avxvnni"),
    "Sapphire Rapids": (SAPPHIRE_RAPIDS, "avx2 avx512 avx512vnni tiles avxvnni"),
    "a system from before AVX": (SAPPHIRE_RAPIDS - {"avx_state"}, ""),
    "a system from before AVX-512": (SAPPHIRE_RAPIDS - ZMM_STATE, "avx2 avxvnni"),
    "a system from before AMX": (
        SAPPHIRE_RAPIDS - {"tile_shapes", "tile_contents"},
        "avx2 avx512 avx512vnni avxvnni",
    ),
}
needs_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the features of x86 processors are read on x86 only"
)
Ask = Callable[[list[set[str]]], list[str]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: apt-get install g++")
    made = tmp_path_factory.mktemp("features") / "features"
    source = ROOT / "tests" / "native" / "features.cpp"
    include = f"-I{NATIVE / 'kernels' / 'cpu'}"
    subprocess.run([compiler, "-std=c++17", "-Wall", include, source, "-o", made], check=True)
    return made


@pytest.fixture
def ask(program: Path) -> Ask:
    """What the code finds where processors and system have these flags."""

    def found(machines: list[set[str]]) -> list[str]:
        lines = []
        for flags in machines:
            values = dict.fromkeys(REGISTERS, 0)
            for register, bit in (BITS[flag] for flag in flags):
                values[register] |= 1 << bit
            lines.append(" ".join(f"{value:x}" for value in values.values()))
        done = subprocess.run(
            [program, "-"], input="\n".join(lines), capture_output=True, text=True, check=True
        )
        return [line.strip() for line in done.stdout.splitlines()]

    return found


@needs_x86
def test_processors(ask: Ask) -> None:
    wanted = {name: features for name, (_, features) in PROCESSORS.items()}
    found = ask([flags for flags, _ in PROCESSORS.values()])
    assert dict(zip(PROCESSORS, found, strict=True)) == wanted


@needs_x86
def test_each_feature_needs_its_flags_and_no_other(ask: Ask) -> None:
    """With these flags alone it is there; without one of them it is not, whatever else there is."""
    alone = ask(list(NEEDS.values()))
    assert [name in said.split() for name, said in zip(NEEDS, alone, strict=True)] == [True] * 5
    pairs = [(name, flag) for name, flags in NEEDS.items() for flag in sorted(flags)]
    without = ask([set(BITS) - {flag} for _, flag in pairs])
    wrong = [pair for pair, said in zip(pairs, without, strict=True) if pair[0] in said.split()]
    assert wrong == []


def of_the_kernel() -> dict[str, bool]:
    """What Linux says of this processor: it hides what it does not save."""
    flags = set(_cpuinfo("flags").split())
    return {
        "avx2": {"avx", "avx2", "fma", "f16c"} <= flags,
        "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags,
        "avx512vnni": "avx512_vnni" in flags,
        "tiles": {"amx_tile", "amx_int8"} <= flags,
        "avxvnni": "avx_vnni" in flags,
    }


@needs_x86
def test_this_machine(program: Path) -> None:
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    assert {name: name in said for name in NEEDS} == of_the_kernel()


@needs_x86
@pytest.mark.skipif(library.load() is None, reason="the operator library is not built")
def test_the_levels_of_the_library_here() -> None:
    here = of_the_kernel()
    wanted = ["plain", *(name for name in ("avx2", "avx512", "avx512vnni") if here[name])]
    found = library.levels()
    assert [level for level in found if level != "amx"] == wanted
    assert "amx" not in found or here["tiles"]  # older compilers have none, a sandbox may refuse it


def test_no_native_code_asks_the_run_time_library_of_the_compiler() -> None:
    """zig's answers no to everything, so that a wheel would run without vectors."""
    asking = re.compile(r"__builtin_cpu_(supports|is|init)\s*\(|target_clones|\bifunc\b")
    sources = [
        path
        for folder in (NATIVE, ROOT / "capsedge" / "exporters" / "c")
        for path in folder.rglob("*")
        if path.suffix in {".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".py"}
    ]
    assert len(sources) > 50
    assert [p for p in sources if asking.search(p.read_text(encoding="utf-8"))] == []
