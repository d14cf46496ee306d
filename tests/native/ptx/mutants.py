"""Faults put into the PTX, one for each kind of mistake that a GPU may or may not punish."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.ptx import build

DYNAMIC = (
    "^DynamicRouting.N=3,I=31,J=10,Pin=8,Pout=16,iterations=3.*leaky=0,over_children=0.*normal"
)
ONE_PASS = DYNAMIC.replace("iterations=3", "iterations=1")
VECTORS = "^AttentionRouting.N=2,H=6,W=5,C=2,Kh=3,Kw=2,M=3,Pin=16,P=16,strides=1x1.*normal"
# Kernels of FP32, by parts of their names.
WHOLE = "whole_kernel_Sums_1x16x1_f32_f32"
PART = "part_kernel_Sums_1x16x1_f32_f32"
FINISH = "finish_kernel_f32"
TILED = "tiled_kernel_Sums_4x4x2_f32_f32"
# Lanes, or warps, that go another way: registers of their own, and where they go.
SOME = """.reg .pred %mutant; .reg .b32 %where;
mov.u32 %where, %tid.x;
and.b32 %where, %where, {mask};
setp.eq.s32 %mutant, %where, 0;
@%mutant bra $mutant_1;
"""


@dataclass(frozen=True)
class Mutant:
    """A change of one place in one kernel, the run that shows it, and what the run says.

    Attributes:
        pattern: of a line; the place is the ``number``-th line that it fits and that the run executes.
        change: the line's text instead.
    """

    name: str
    kernel: str
    pattern: str
    change: Callable[[re.Match[str]], str]
    scheme: str
    cases: str
    words: str
    number: int = 0


def without(match: re.Match[str]) -> str:
    return ""


def further(bytes_: int) -> Callable[[re.Match[str]], str]:
    """The address of a load or a store moved by so many bytes."""

    def change(match: re.Match[str]) -> str:
        def moved(m: re.Match[str]) -> str:
            return f"[{m[1]}+{int(m[2] or 0) + bytes_}]"

        return re.sub(r"\[(%?\w+)(?:\+(-?\d+))?\]", moved, match[0])

    return change


def around(mask: int, twice: bool) -> Callable[[re.Match[str]], str]:
    """Threads whose number has none of these bits jump past the line, or to a second copy of it."""

    def change(match: re.Match[str]) -> str:
        other = (
            f"bra.uni $mutant_2;\n$mutant_1:\n{match[0]}\n$mutant_2:\n" if twice else "$mutant_1:\n"
        )
        return f"{SOME.format(mask=mask)}{match[0]}\n{other}"

    return change


def leave(match: re.Match[str]) -> str:
    """The first warp returns before the line."""
    return f"{SOME.format(mask=224)}bra.uni $mutant_2;\n$mutant_1:\nret;\n$mutant_2:\n{match[0]}"


def instead(old: str, new: str) -> Callable[[re.Match[str]], str]:
    def change(match: re.Match[str]) -> str:
        made = re.sub(old, new, match[0])
        assert made != match[0]
        return made

    return change


BARRIER, SHUFFLE = r"\tbar\.sync.*;", r"\tshfl\.sync.*;"
TO_SHARED, FROM_SHARED = r"\tst\.shared.*;", r"\tld\.shared.*;"
TO_GLOBAL, FROM_GLOBAL = r"\tst\.global.*;", r"\tld\.global.*;"
CLUSTER = r"\tbarrier\.cluster\.arrive;\s+barrier\.cluster\.wait;"

MUTANTS = (
    Mutant("nothing", WHOLE, BARRIER, lambda m: m[0], "portable", DYNAMIC, ""),
    Mutant("a barrier is missing", WHOLE, BARRIER, without, "portable", DYNAMIC, "race:"),
    Mutant("a barrier between tiles is missing", TILED, BARRIER, without, "tiled", VECTORS, "race:"),
    Mutant("a shared address is too large", WHOLE, TO_SHARED, further(1 << 20), "portable", DYNAMIC,
           "outside of shared memory"),
    Mutant("a shared address is one element off", WHOLE, TO_SHARED, further(4), "portable", DYNAMIC,
           "memory"),
    Mutant("a shared address is misaligned", WHOLE, TO_SHARED, further(2), "portable", DYNAMIC,
           "misaligned address in shared memory"),
    Mutant("the end of an output is passed", FINISH, TO_GLOBAL, further(1920), "split", DYNAMIC,
           "of an allocation of 1920 bytes", 1),
    Mutant("a global address is far off", PART, FROM_GLOBAL, further(1 << 40), "split", DYNAMIC,
           "in no allocation"),
    Mutant("a global address is misaligned", PART, r"\tld\.global\.v4\.f32.*;", further(4), "split", DYNAMIC,
           "a misaligned address"),
    Mutant("a part is not written", PART, TO_GLOBAL, without, "split", DYNAMIC,
           "reads memory that nobody has written"),
    Mutant("shared memory is not written", WHOLE, TO_SHARED, without, "portable", DYNAMIC,
           "reads shared memory that nobody has written"),
    Mutant("all blocks write the first one's part", PART, r"\tmov\.u32.*%ctaid\.y;", instead("%ctaid.y", "0"),
           "split", DYNAMIC, "race:"),
    Mutant("lanes are at different shuffles", WHOLE, SHUFFLE, around(1, True), "portable", DYNAMIC,
           "not all at the same shuffle"),
    Mutant("some lanes skip a shuffle", WHOLE, SHUFFLE, around(1, False), "portable", DYNAMIC,
           "not all at the same shuffle"),
    Mutant("a warp skips a barrier", WHOLE, BARRIER, around(224, False), "portable", DYNAMIC, "race:", -1),
    Mutant("a warp returns before a barrier", WHOLE, BARRIER, leave, "portable", DYNAMIC,
           "a barrier is not reached by all; some have returned", -1),
    Mutant("lanes skip a barrier", WHOLE, BARRIER, around(1, False), "portable", DYNAMIC,
           "a barrier is not reached by all"),
    Mutant("a shuffle has half of the lanes", WHOLE, SHUFFLE, instead(r"%\w+;$", "65535;"), "portable",
           DYNAMIC, "another mask"),
    Mutant("copies are not waited for", TILED, r"\tcp\.async\.wait_group.*;", without, "tiled", VECTORS,
           "copy"),
    Mutant("parts are read before all blocks have them", WHOLE, CLUSTER, without, "cluster", DYNAMIC,
           "race:"),
    Mutant("blocks of a cluster end early", WHOLE, CLUSTER, without, "cluster", ONE_PASS,
           "may end before others have read its memory", -1),
    Mutant("a parameter is read past the last one", WHOLE, r"\tld\.param.*;", further(4096), "portable",
           DYNAMIC, "outside of the kernel's parameters"),
    Mutant("a sum has another sign", WHOLE, r"\tadd\.f32.*;", instead("add", "sub"), "portable", DYNAMIC,
           "FAILED"),
)  # fmt: skip


def run(scheme: str, cases: str, code: Path | None = None, **more: str) -> tuple[int, str]:
    """Conformance of the code in a folder, by default nvcc's own: its exit code and what it said."""
    own = build.built(90)
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance", "test", "--backend", f"cuda-kernels-{scheme}",
         "--dtype", "float32", "--filter", cases],
        env={**os.environ, **own.variables(code), **more}, cwd=build.ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@lru_cache(maxsize=8)
def executed(scheme: str, cases: str) -> frozenset[int]:
    """The lines of the PTX that a run executes."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "executed"
        run(scheme, cases, CAPSEDGE_PTX_EXECUTED=str(file))
        ranges = (line.split() for line in file.read_text().splitlines())
        return frozenset(
            line
            for _, first, last, _, runs in ranges
            if runs != "0"
            for line in range(int(first), int(last) + 1)
        )


def mutated(mutant: Mutant, folder: Path) -> Path:
    """The folder, with the changed PTX."""
    source = build.built(90).folder
    text = (source / "kernels.ptx").read_text()
    entry = re.search(rf"\.entry \w*{mutant.kernel}\w*\(.*?^\}}", text, re.S | re.M)
    assert entry, mutant.kernel
    ran = executed(mutant.scheme, mutant.cases)
    lines = text[: entry.start()].count("\n") + 1
    places = [
        m
        for m in re.finditer(mutant.pattern, entry[0])
        if lines + entry[0][: m.start()].count("\n") in ran
    ]
    place = places[mutant.number]
    changed = entry[0][: place.start()] + mutant.change(place) + entry[0][place.end() :]
    shutil.copy(source / "resources.txt", folder)
    (folder / "kernels.ptx").write_text(text[: entry.start()] + changed + text[entry.end() :])
    return folder
