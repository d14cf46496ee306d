"""Measure a C folder: an upper bound on its stack, and instructions per layer on boards emulated by QEMU."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from capsedge.errors import EnvironmentProblem
from capsedge.exporters.c import toolchain
from capsedge.runtime.files.writing import temporary_folder, write_bytes

FLAGS = ("-std=c99", "-O2", "-ffp-contract=off")  # as the folder's CMakeLists.txt has them
# What is not called is left out, as by the folder's build files: a decoder may not fit the board.
SECTIONS = ("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections")
SECONDS = 300  # limit for a compiler or QEMU
STACK = 1 << 16  # bytes of a board's stack
_ARM = "arm-none-eabi-gcc"
_PACKAGES = {
    _ARM: "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "qemu-system-arm": "qemu-system-arm",
    "riscv64-unknown-elf-gcc": "gcc-riscv64-unknown-elf",
    "qemu-system-riscv32": "qemu-system-misc",
    "qemu-system-riscv64": "qemu-system-misc",
}


@dataclass(frozen=True)
class Board:
    """A board that QEMU emulates.

    Attributes:
        core: its processor, in words.
        compiler, flags: compiler and flags that compile for it.
        emulator, machine: QEMU's names.
        rom, ram: addresses of the vectors and code, and of variables.
        constants: address of the weights; None for behind the code.
    """

    core: str
    compiler: str
    flags: tuple[str, ...]
    emulator: str
    machine: tuple[str, ...]
    rom: int
    ram: int
    constants: int | None = None

    def missing(self) -> list[str]:
        """The Debian packages that it needs but that are not installed."""
        return [
            _PACKAGES[tool] for tool in (self.compiler, self.emulator) if not shutil.which(tool)
        ]


def _arm(core: str, flags: str, machine: str, *memory: int) -> Board:
    words = (f"-mcpu={core.lower()}", "-mthumb", *flags.split())
    return Board(
        core, _ARM, words, "qemu-system-arm", ("-machine", machine, "-semihosting"), *memory
    )


def _riscv(core: str, march: str, abi: str, bits: int) -> Board:
    flags = (f"-march={march}", "-misa-spec=2.2", f"-mabi={abi}", "-mcmodel=medany", "-nostdlib",
             "-ffreestanding", "-fno-tree-loop-distribute-patterns")  # fmt: skip
    emulator = f"qemu-system-riscv{bits}"
    machine = ("-machine", "virt", "-m", "64M", "-bios", "none")
    return Board(core, "riscv64-unknown-elf-gcc", flags, emulator, machine, 0x80000000, 0x81000000)


_HARD = "-mfloat-abi=hard -mfpu="
BOARDS: dict[str, Board] = {
    "cortex-m3": _arm("Cortex-M3", "", "mps2-an385", 0, 0x20000000),
    "cortex-m4": _arm("Cortex-M4", f"{_HARD}fpv4-sp-d16", "mps2-an386", 0, 0x20000000),
    "cortex-m7": _arm("Cortex-M7", f"{_HARD}fpv5-sp-d16", "mps2-an500", 0, 0x20000000),
    "cortex-m33": _arm("Cortex-M33", f"{_HARD}fpv5-sp-d16", "mps2-an505", 0x10000000, 0x38000000),
    "cortex-m55": _arm("Cortex-M55", f"{_HARD}auto", "mps3-an547", 0, 0x31000000, 0x70000000),
    "rv32imac": _riscv("RISC-V RV32IMAC", "rv32imac", "ilp32", 32),
    "rv64gc": _riscv("RISC-V RV64GC", "rv64gc", "lp64d", 64),
}
REPORTED = ("cortex-m7", "cortex-m55")  # what `capsedge build --measure` compiles for


@dataclass(frozen=True)
class Counted:
    """The result of a run on a board with one input.

    Attributes:
        hash: hash of the bits of all results, eight hexadecimal digits.
        layers: instructions of every layer, in the order of ``NAME.json``.
    """

    hash: str
    layers: list[int]

    @property
    def total(self) -> int:
        """Instructions per call."""
        return sum(self.layers)


def count(
    files: Mapping[str, bytes],
    description: Mapping[str, Any],
    board: Board,
    flags: Sequence[str] = FLAGS,
    stack: int = STACK,
) -> Counted:
    """Run a network on a board.

    Args:
        files: those of `write_c.generate_c_folder`.
        description: the contents of ``NAME.json``.
        flags: flags of the compiler, besides those of the board.
        stack: bytes that the board reserves.

    Raises:
        EnvironmentProblem: a tool is missing or fails.
    """
    if missing := board.missing():
        raise EnvironmentProblem(
            f"The tools for {board.core} are not installed.",
            "Instructions are counted by QEMU.",
            f"On Debian: apt install {' '.join(missing)}",
        )
    with temporary_folder() as folder:
        words = [*flags, *SECTIONS, *board.flags, *_defines(files, description, folder)]
        words.append("-nostartfiles")
        write_bytes(folder / "board.ld", _linker_script(board, stack).encode())
        libraries = ["-lm", "-lgcc"] if board.compiler == _ARM else ["-lgcc"]
        _tool([board.compiler, *words, *libraries, "-T", "board.ld", "-o", "board.elf"], folder)
        image = ("-display", "none", "-serial", "stdio", "-monitor", "none")
        ran = _tool(
            [board.emulator, *board.machine, *image, "-icount", "shift=0", "-kernel", "board.elf"],
            folder,
        )
    printed = re.findall(r"[0-9a-f]{8}", ran.stdout + ran.stderr)
    if len(printed) != len(description["layers"]) + 4:
        raise EnvironmentProblem(
            f"{board.emulator} did not run the network.",
            f"It printed {(ran.stdout + ran.stderr).strip()[:200]!r}.",
            "Use QEMU 7.2 or later.",
        )
    clock, loop, *counts = (int(word, 16) for word in printed[1:])
    # SysTick has 24 bits, and ticks every 30 to 50 instructions.
    wrap = 1 << 24 if board.compiler == _ARM else 1 << 32
    ticks = [(b - a) % wrap for a, b in pairwise(counts)]
    return Counted(printed[0], [round(n * loop / (clock % wrap)) for n in ticks])


@dataclass(frozen=True)
class MeasuredC:
    """Measurements of a network on one core; the fields are those of ``NAME.json``.

    Attributes:
        core: its name, or that of this machine's compiler.
        compiler: its name, version and flags.
        stack_bytes: a bound for ``NAME_run``, without `memcpy`, `memset` and interrupts; None if recursion or
            variable-size stack memory makes a bound impossible.
        emulator: the emulator that counted the instructions, with its version; empty if none is installed.
        instructions: instructions of every layer; empty without an emulator.
    """

    core: str
    compiler: str
    stack_bytes: int | None
    emulator: str
    instructions: list[int]


def measure(
    files: Mapping[str, bytes], description: Mapping[str, Any]
) -> tuple[list[MeasuredC], list[str]]:
    """Measure a network with the tools that are installed.

    Args:
        files: those of `write_c.generate_c_folder`.
        description: the contents of ``NAME.json``.

    Returns:
        The measurements, and the packages to install for those that are missing.

    Raises:
        EnvironmentProblem: there is no C compiler at all, or a tool fails.
    """
    if not shutil.which(_ARM):
        compiler = next(filter(None, map(shutil.which, ("gcc", "cc"))), None)
        if compiler is None:
            raise EnvironmentProblem(
                "No C compiler was found.",
                "--measure compiles the network for Cortex-M, or at least for this machine.",
                "On Debian: apt install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm",
            )
        known = f"{tool_version(compiler)} {' '.join(FLAGS)}"
        stack = stack_bound(files, description["name"], [compiler, *FLAGS])
        return [MeasuredC("this machine", known, stack, "", [])], BOARDS[REPORTED[0]].missing()
    found: list[MeasuredC] = []
    packages: list[str] = []
    for board in map(BOARDS.__getitem__, REPORTED):
        words = [board.compiler, *FLAGS, *board.flags]
        stack = stack_bound(files, description["name"], words)
        known = f"{tool_version(board.compiler)} {' '.join(words[1:])}"
        if missing := board.missing():
            packages = missing
            found.append(MeasuredC(board.core, known, stack, "", []))
            continue
        counted = count(files, description, board)
        found.append(
            MeasuredC(board.core, known, stack, tool_version(board.emulator), counted.layers)
        )
    return found, packages


def tool_version(tool: str) -> str:
    """The first line of a tool's version message."""
    done = toolchain.run([tool, "--version"], Path())
    return next(iter(done.stdout.splitlines()), Path(tool).name)


def stack_bound(files: Mapping[str, bytes], name: str, words: Sequence[str]) -> int | None:
    """Upper bound on the stack of ``NAME_run``, in bytes; None if there is none.

    Args:
        files: those of `write_c.generate_c_folder`.
        words: a compiler and its flags; one that does not know ``-fcallgraph-info`` leaves no bound.
    """
    with temporary_folder() as folder:
        for file in (f"{name}.h", f"{name}.c"):
            write_bytes(folder / file, files[file])
        try:
            _tool([*words, "-fcallgraph-info=su", "-c", "-o", f"{name}.o", f"{name}.c"], folder)
            graph = (folder / f"{name}.ci").read_text(errors="replace")
        except (EnvironmentProblem, OSError):
            return None
    return deepest(graph, f"{name}_run")


def deepest(graph: str, start: str) -> int | None:
    """The largest sum of stack frames along the calls of a function; None if there is none.

    Args:
        graph: what GCC writes with ``-fcallgraph-info=su``.
        start: the function.
    """
    frames: dict[str, int | None] = {}
    for title, label in re.findall(r'node: \{ title: "([^"]*)" label: "([^"]*)"', graph):
        size = re.search(r"(\d+) bytes \((\w+)", label)
        if size is not None:
            frames[title] = int(size[1]) if size[2] == "static" else None
        else:
            frames.setdefault(title, 0)  # of another library: memcpy and memset
    calls: dict[str, set[str]] = {}
    for caller, called in re.findall(
        r'edge: \{ sourcename: "([^"]*)" targetname: "([^"]*)"', graph
    ):
        calls.setdefault(caller, set()).add(called)

    def below(function: str, above: tuple[str, ...]) -> int | None:
        own = frames.get(function)
        depths = [
            None if called in above else below(called, (*above, called))
            for called in calls.get(function, ())
        ]
        if own is None or None in depths:
            return None
        return own + max((d for d in depths if d is not None), default=0)

    return below(start, (start,))


def hash_here(
    files: Mapping[str, bytes], description: Mapping[str, Any], words: Sequence[str]
) -> str:
    """The hash of a network's results when compiled and run on this machine.

    Args:
        words: the compiler and its flags.
    """
    with temporary_folder() as folder:
        _tool([*words, *_defines(files, description, folder), "-o", "here"], folder)
        return _tool([str(folder / "here")], folder).stdout.strip()


def _defines(files: Mapping[str, bytes], description: Mapping[str, Any], folder: Path) -> list[str]:
    """Write the sources, and return the command line that compiles them."""
    name = description["name"]
    own = resources.files("capsedge.exporters.c") / "boards"
    for file in ("program.c", "step.h"):
        write_bytes(folder / file, (own / file).read_bytes())
    for file in (f"{name}.h", f"{name}.c"):
        write_bytes(folder / file, files[file])
    sizes = [math.prod(output["shape"]) for output in description["outputs"]]
    numbers = {
        "HEADER": f'"{name}.h"',
        "NAME": name,
        "STEPS": len(description["layers"]) + 1,
        "ARENA": description["memory"]["arena_bytes"],
        "RESULTS": sum(sizes),
        "SIZES": ",".join(map(str, sizes)),
    }
    # X-macros: X(type, name, elements) for each input, then the arguments.
    inputs = description["inputs"]
    arrays = "".join(f"X({i['type']},{i['parameter']},{i['size']})" for i in inputs)
    numbers |= {"ARRAYS(X)": arrays, "ARGUMENTS": ",".join(i["parameter"] for i in inputs)}
    defines = [f"-DCAPS_{key}={value}" for key, value in numbers.items()]
    return [*defines, "-include", "step.h", "program.c", f"{name}.c"]


def _linker_script(board: Board, stack: int) -> str:
    constants = "" if board.constants is None else f"  . = {board.constants:#x};\n"
    return (
        "ENTRY(caps_reset)\nSECTIONS {\n"
        f"  . = {board.rom:#x};\n  .text : {{ KEEP(*(.vectors)) *(.text*) }}\n"
        f"{constants}  .rodata : {{ *(.rodata* .srodata*) }}\n"
        f"  . = {board.ram:#x};\n  .data : {{ *(.data* .sdata*) }}\n  .bss : {{ *(.bss* .sbss* COMMON) }}\n"
        f"  . = ALIGN(16);\n  . += {stack};\n  caps_stack_end = .;\n"
        "  /DISCARD/ : { *(.ARM.exidx* .ARM.extab* .eh_frame*) }\n}\n"
    )


def _tool(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a compiler or QEMU.

    Raises:
        EnvironmentProblem: it fails, or takes too long.
    """
    try:
        done = toolchain.run(words, folder, seconds=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblem(
            f"{Path(words[0]).name} took more than {SECONDS} s.", "", "Try a smaller network."
        ) from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise EnvironmentProblem(
            f"{Path(words[0]).name} failed.",
            next((line for line in lines if "error" in line), (lines or ["It printed nothing"])[0]),
            "Install a current version of it.",
        )
    return done
