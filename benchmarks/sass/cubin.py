"""Device code as the compiler emits it: cubins, their instructions, and what ptxas says of each kernel."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from capsedge.errors import CapsedgeError

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "capsedge" / "runtime" / "native" / "kernels" / "cuda"
BUILD = ROOT / "build" / "cuda-static"
SLOT = 16  # bytes of an instruction, from Volta on


@dataclass(frozen=True)
class Instruction:
    """One machine instruction; its address is its index times 16 bytes.

    Attributes:
        guard: the predicate it is executed under, as in ``!P0``; empty if always.
        opcode: with its modifiers, as in ``IMAD.WIDE.U32``.
        operands: as nvdisasm writes them, without ``.reuse``.
    """

    guard: str
    opcode: str
    operands: tuple[str, ...]

    @cached_property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class Kernel:
    """One ``__global__`` function of a cubin.

    Attributes:
        name: demangled, without namespaces and parameters.
        code: its instructions and those of the subroutines behind them.
        entries: indices of the subroutines' first instructions, by symbol.
        tables: bytes of the kernel's own constant banks (jump tables), by bank.
        registers: of a thread.
        stack: bytes of a thread in local memory.
        spills: bytes of spill stores and loads in the code.
        shared: bytes of static shared memory of a block.
    """

    name: str
    architecture: int
    code: tuple[Instruction, ...]
    entries: dict[str, int]
    tables: dict[int, bytes]
    registers: int
    stack: int
    spills: int
    shared: int


def find_nvcc() -> str:
    """Path of nvcc.

    Raises:
        CapsedgeError: there is none.
    """
    found = shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if found is None:
        raise CapsedgeError(
            "no nvcc was found: install CUDA 12.8 or newer, or put nvcc on the PATH"
        )
    return found


def find_nvdisasm() -> str:
    """Path of nvdisasm: on the PATH, beside nvcc, or from NVIDIA's package.

    Raises:
        CapsedgeError: there is none.
    """
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    folders = [
        *sorted(packages.glob("cu*/bin"), reverse=True),
        *os.environ.get("PATH", "").split(":"),
    ]
    found = shutil.which("nvdisasm", path=":".join(map(str, [*folders, "/usr/local/cuda/bin"])))
    if found is None:
        raise CapsedgeError("no nvdisasm was found: pip install nvidia-cuda-nvdisasm")
    return found


def host_tool(name: str) -> str:
    """Path of g++, nm or c++filt.

    Raises:
        CapsedgeError: it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise CapsedgeError(f"no {name} was found: sudo apt-get install g++ binutils")
    return found


def digest_of(files: Iterable[Path]) -> str:
    """Digest of some files' names and contents: what a cached result belongs to."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=1)
def compiler_version() -> str:
    """The compiler that makes the code, as in ``nvcc 13.0.88``.

    Raises:
        CapsedgeError: there is no nvcc.
    """
    text = subprocess.run(
        [find_nvcc(), "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"\bV(\d[\d.]+)", text)
    return f"nvcc {found[1] if found else 'of an unknown version'}"


def compile_cubin(architecture: int) -> tuple[Path, str]:
    """``kernels.cu`` for one architecture, and what ``ptxas -v`` printed; cached by the sources' digest.

    Raises:
        CapsedgeError: there is no nvcc, or it refuses the source or the architecture.
    """
    version = compiler_version().replace(" ", "-")
    cubin = BUILD / f"kernels-{digest_of(SOURCES.iterdir())}-{version}-sm{architecture}.cubin"
    log = cubin.with_suffix(".log")
    if cubin.is_file() and log.is_file():
        return cubin, log.read_text()
    BUILD.mkdir(parents=True, exist_ok=True)
    made = cubin.with_name(f"{cubin.name}.{os.getpid()}")
    done = subprocess.run(
        [find_nvcc(), "-std=c++17", f"-arch=sm_{architecture}", "-cubin", "-Xptxas", "-v",
         str(SOURCES / "kernels.cu"), "-o", str(made)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise CapsedgeError(f"nvcc for sm_{architecture}: {done.stderr.strip()[-2000:]}")
    log.write_text(done.stderr)
    made.replace(cubin)
    return cubin, done.stderr


def _demangled(names: list[str]) -> dict[str, str]:
    """Names as in ``tiled_kernel<1, 16, 2, false, float, float>``."""
    text = subprocess.run(
        [host_tool("c++filt")], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout
    return dict(zip(names, map(plain_name, text.splitlines()), strict=True))


def plain_name(demangled: str) -> str:
    """A function's name and template arguments, without namespaces, return type and parameters."""
    bare = re.sub(
        r"\b(capsedge|cuda)::|\(anonymous namespace\)::|_GLOBAL__N__\w+::|^void ", "", demangled
    )
    return (
        re.sub(r"\([^()]*\)$", "", bare.strip())
        .replace("(bool)0", "false")
        .replace("(bool)1", "true")
    )


_RESOURCES = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes "
    r"spill stores, (?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


def _resources(log: str) -> dict[str, dict[str, int]]:
    """Registers, stack, spills and static shared memory of every kernel, from ``ptxas -v``."""
    found = {}
    for match in _RESOURCES.finditer(log):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        found[match["name"]] = {
            "registers": int(match["registers"]),
            "stack": int(match["stack"]),
            "spills": int(match["stores"]) + int(match["loads"]),
            "shared": int(shared[1]) if shared else 0,
        }
    return found


class _Elf:
    """Sections and symbols of a little-endian 64-bit ELF file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        start, size, count, names = struct.unpack_from("<Q10xHHH", data, 0x28)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + k * size) for k in range(count)]
        text = headers[names]
        self.sections = [
            (self._string(text[4] + h[0]), data[h[4] : h[4] + h[5]] if h[1] != 8 else b"", h)
            for h in headers
        ]

    def _string(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode()

    def symbols(self) -> list[tuple[str, int, int]]:
        """Name, section and value of every symbol."""
        found = []
        for _, content, header in self.sections:
            if header[1] != 2:
                continue
            strings = self.sections[header[6]][2][4]
            for at in range(0, len(content), 24):
                name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", content, at)
                found.append((self._string(strings + name), section, value))
        return found


def _parsed(entry: dict[str, object]) -> Instruction:
    text = str(entry.get("operands", ""))
    operands = tuple(part.replace(".reuse", "") for part in text.split(",")) if text else ()
    guard = str(entry.get("predicate", "")).removeprefix("@")
    if guard == "PR":  # P2R's operand, which nvdisasm takes for a predicate
        return Instruction("", str(entry["opcode"]), (operands[0], "PR", *operands[1:]))
    return Instruction(guard, str(entry["opcode"]), operands)


@lru_cache(maxsize=4)
def kernels(architecture: int) -> dict[str, Kernel]:
    """All kernels of ``kernels.cu`` for one architecture, by their names.

    Raises:
        CapsedgeError: nvcc or nvdisasm is missing or fails.
    """
    cubin, log = compile_cubin(architecture)
    done = subprocess.run(
        [find_nvdisasm(), "-c", "-json", str(cubin)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CapsedgeError(f"nvdisasm: {done.stderr.strip()[-500:]}")
    functions = {f["function-name"]: f["sass-instructions"] for f in json.loads(done.stdout)[1]}
    resources, names = _resources(log), _demangled(list(functions))
    elf = _Elf(cubin.read_bytes())
    section_of = {name: k for k, (name, _, _) in enumerate(elf.sections)}
    symbols = elf.symbols()
    found = {}
    for mangled, listing in functions.items():
        section = section_of[f".text.{mangled}"]
        tables = {
            int(match[1]): content
            for name, content, _ in elf.sections
            if (match := re.fullmatch(rf"\.nv\.constant(\d+)\.{re.escape(mangled)}", name))
        }
        found[names[mangled]] = Kernel(
            name=names[mangled],
            architecture=architecture,
            code=tuple(map(_parsed, listing)),
            entries={name: value // SLOT for name, at, value in symbols if at == section},
            tables=tables,
            **resources[mangled],
        )
    return found
