"""Build the kernels' library, its PTX and the libcudart that executes it, once per state of the sources."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from capsedge.errors import EnvironmentProblem

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "ptx"
NATIVE = Path(__file__).with_name("native")
SOURCES = ROOT / "capsedge" / "runtime" / "native"
KERNELS = SOURCES / "kernels" / "cuda"
SYSTEM = SOURCES / "system"  # how libraries are opened here
ARCHITECTURES = (75, 87, 90)
# Vectors of eight for the lanes of a warp; no option that changes results.
HOST = "-fPIC,-O3,-mavx2,-mfma,-mf16c,-fno-math-errno,-fno-trapping-math,-Wall,-Wextra"


@dataclass(frozen=True)
class Built:
    """A compilation for one architecture.

    Attributes:
        folder: the folder with the kernels: ``kernels.ptx``, ``kernels.fatbin``, ``kernels.o`` of nvcc, and
            ``resources.txt``, the registers and spilled bytes of each.
        library: the host's library, which loads the fat binary; or, where all code is nvcc's, has it inside.
        cudart: the libcudart that executes the PTX.
    """

    folder: Path
    library: Path
    cudart: Path

    def variables(self, code: Path | None = None) -> dict[str, str]:
        """The environment variables by which the project finds all three; `code`: a folder with other PTX."""
        paths = [str(self.cudart.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {
            "LD_LIBRARY_PATH": ":".join(paths),  # before any libcudart of the system
            "CAPSEDGE_PTX": str(code or self.folder),
            "CAPSEDGE_CUDART": str(self.cudart),
            "CAPSEDGE_CUDA_LIBRARY": str(self.library),
            "CAPSEDGE_CUDA_KERNELS": str(self.folder / "kernels.fatbin"),
            "CAPSEDGE_CUDA_FILL": "0",  # memory that no kernel wrote stays unwritten
        }


@lru_cache(maxsize=1)
def nvcc() -> str | None:
    """The path of the compiler, or None."""
    return shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")


@lru_cache(maxsize=1)
def unavailable() -> str:
    """What this machine lacks; empty if it lacks nothing."""
    if nvcc() is None:
        return "needs nvcc: install CUDA 13"
    if shutil.which("g++") is None:
        return "the libcudart of the tests needs g++"
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    if not re.search(r"\bavx2\b.*", flags) or not re.search(r"\bf16c\b", flags):
        return "the libcudart of the tests needs a processor with AVX2"
    if not version().startswith("nvcc 13"):
        return "needs nvcc of CUDA 13: its code calls other functions of libcudart than CUDA 12's"
    return ""


@lru_cache(maxsize=1)
def version() -> str:
    """The version of nvcc, as in "nvcc 13.0.88"; empty without it."""
    if nvcc() is None:
        return ""
    said = subprocess.run([str(nvcc()), "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\bV([\d.]+)", said)
    return f"nvcc {found[1] if found else '?'}"


def _digest(files: Iterable[Path], *words: str) -> str:
    made = hashlib.sha256("\0".join((version(), *words)).encode())
    for file in sorted(files):
        made.update(file.name.encode() + b"\0" + file.read_bytes())
    return made.hexdigest()[:16]


def _run(*words: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        ["nice", "-n", "10", *words], capture_output=True, text=True, check=False, cwd=cwd
    )
    if done.returncode:
        raise EnvironmentProblem(
            "The GPU's code could not be compiled.", f"{done.stdout[-1000:]}{done.stderr[-3000:]}",
            "Look at the compiler's message.",
        )  # fmt: skip
    return done.stdout + done.stderr


@contextmanager
def once(target: Path) -> Any:
    """Yield a folder to fill, or None if the target exists; processes wait for each other."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            yield None
            return
        with TemporaryDirectory(dir=target.parent) as name:
            made = Path(name) / "made"
            made.mkdir()
            yield made
            made.replace(target)


def cudart(*flags: str, version: str = "13.0") -> Path:
    """The libcudart that executes PTX.

    Args:
        flags: additional flags for the host compiler, such as those of gcov.
        version: the CUDA version that it has, which names the file and the versions of its symbols. Before
            12.8, it has no functions that load files; libcuda.so.1 beside it has.
    """
    major, minor = version.split(".")
    old = (int(major), int(minor)) < (12, 8)
    name, listed = f"libcudart.so.{major}", "before_12_8.map" if old else "exports.map"
    target = BUILD / f"cudart-{_digest(NATIVE.iterdir(), HOST, version, *flags)}"
    with once(target) as made:
        if made:
            exports = made / "exports.map"
            exports.write_text((NATIVE / listed).read_text().replace("@SONAME@", name))
            _run(
                str(nvcc()), "-std=c++17", "-cudart", "none", "-shared", "-Xcompiler", HOST, *flags,
                f"-DCAPSEDGE_PTX_VERSION={major}{int(minor):02}0",
                "-Xlinker", f"-soname={name}",
                "-Xlinker", f"--version-script={exports}",
                *map(str, sorted(NATIVE.glob("*.cpp"))), "-o", str(made / name),
            )  # fmt: skip
            if old:
                (made / "libcuda.so.1").symlink_to(name)  # one file, so that both are one library
    return target / name


def resources(said: str) -> dict[str, tuple[int, int]]:
    """Registers and spilled bytes of each kernel, from the report of ``ptxas -v``."""
    found, name, spilled = {}, "", 0
    for line in said.splitlines():
        if match := re.search(r"Function properties for (\S+)", line):
            name = match[1]
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(match[1]) + int(match[2])
        elif match := re.search(r"Used (\d+) registers", line):
            found[name] = int(match[1]), spilled
    return found


def sources(kernels: Path = KERNELS) -> list[Path]:
    """The files that are compiled."""
    return [file for file in kernels.iterdir() if file.suffix in (".cpp", ".cu", ".h")]


def _included(units: list[Path]) -> list[Path]:
    """Files with all that they include from their own folder."""
    found, left = set(units), list(units)
    while left:
        file = left.pop()
        names = re.findall(r'^#include "([\w.]+)"', file.read_text(), re.M)
        new = {file.with_name(name) for name in names} - found
        found |= new
        left += new
    return sorted(found)


def built(architecture: int, *, kernels: Path = KERNELS, flags: str = "") -> Built:
    """The kernels for an architecture such as 90, compiled in a minute and a half if they have changed.

    Args:
        flags: additional flags for the host compiler, separated by commas, such as those of gcov.

    Raises:
        EnvironmentProblem: the compiler refuses them.
    """
    files = sources(kernels)
    device = _included([file for file in files if file.suffix == ".cu"])
    alone = not any(file.suffix == ".cpp" for file in files)
    folder = BUILD / f"sm{architecture}-{_digest(device, str(architecture))}"
    with once(folder) as made:
        if made:
            _compile(architecture, device, made, library=alone)
    library = folder / "libcapsedge_cuda.so" if alone else host(files, flags)
    return Built(folder, library, cudart())


def host(files: list[Path], flags: str = "") -> Path:
    """The host's library, by g++ and without CUDA's headers."""
    name = "libcapsedge_cuda.so"
    files = [*files, *SYSTEM.iterdir()]
    target = BUILD / f"host-{_digest(files, flags)}"
    with once(target) as made:
        if made:
            units = [str(file) for file in sorted(files) if file.suffix == ".cpp"]
            options = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
            options.append(f"-I{SOURCES}")
            options += [flag for flag in flags.split(",") if flag]
            _run("g++", *options, "-shared", *units, "-o", str(made / name), cwd=made)
    return target / name


def _compile(architecture: int, files: list[Path], target: Path, *, library: bool) -> None:
    """The kernels for one architecture, and a library of them alone where it is asked for."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        copied = folder / "cuda"
        copied.mkdir()
        for file in files:  # a copy of the current sources, which may change while nvcc works
            shutil.copy(file, copied)
        (unit,) = copied.glob("*.cu")
        common = [str(nvcc()), "-std=c++17", f"-arch=sm_{architecture}", f"-I{copied}"]
        common += ["-Werror", "all-warnings"]
        common += ["-cudart", "shared", "-Xcompiler", "-fPIC,-fvisibility=hidden"]
        keep = ("-Xptxas=-v", "--keep", f"--keep-dir={folder}")
        found = resources(_run(*common, *keep, "-c", str(unit), "-o", str(target / "kernels.o")))
        shutil.copy(folder / f"{unit.stem}.ptx", target / "kernels.ptx")
        shutil.copy(folder / f"{unit.stem}.fatbin", target / "kernels.fatbin")
        lines = (
            f"{kernel} {used} {spilled}\n" for kernel, (used, spilled) in sorted(found.items())
        )
        (target / "resources.txt").write_text("".join(lines))
        if library:
            _run(
                *common,
                "-shared",
                str(target / "kernels.o"),
                "-o",
                str(target / "libcapsedge_cuda.so"),
            )


class Executor:
    """The tests' libcudart in this process, with its functions beyond CUDA."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.ptx_fault.restype = self.library.ptx_counts.restype = ctypes.c_char_p
        self.library.ptx_refuse.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]

    def fault(self) -> str:
        """The fault that ended all work, if any: reason, kernel, thread and line of the PTX."""
        return str(self.library.ptx_fault().decode())

    def kernels(self) -> int:
        """Number of kernels in the PTX."""
        return int(self.library.ptx_kernels())

    def refuse(self, call: str, code: int, after: int = 0) -> None:
        """Make one call of the CUDA runtime fail after a number of calls."""
        self.library.ptx_refuse(call.encode(), after, code)

    def memory(self, size: int) -> None:
        """Give each GPU so many bytes of memory, less than it uses included."""
        self.library.ptx_memory(ctypes.c_ulonglong(size))

    def reset(self) -> None:
        """Forget the launches so far."""
        self.library.ptx_reset()

    def launches(self) -> list[Mapping[str, Any]]:
        """Every launch since the last reset with its counts."""
        made: list[Mapping[str, Any]] = json.loads(self.library.ptx_counts())
        return made


def use(architecture: int, code: Path | None = None, version: str = "13.0") -> Executor:
    """Make this process use the executed code instead of a GPU; call it before anything loads CUDA.

    Args:
        code: a folder with other PTX than that of the current sources.
        version: the CUDA version of the libcudart.
    """
    own = replace(built(architecture), cudart=cudart(version=version))
    os.environ.update(own.variables(code))
    return Executor(own.cudart)
