"""Locate the compiled libraries, the CUDA kernels, the headers and the CMake package of capsedge."""

from __future__ import annotations

import ctypes
import importlib
import itertools
import os
import re
import sys
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.spec.version import VERSION

if TYPE_CHECKING:
    from capsedge.runtime.onnx_file.summary import OnnxSummary


# --- The operator library and the files that it runs ---

_VERSION = re.compile(r"[0-9.]{1,19}")
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
NAME = f"libcapsedge_ort{SUFFIX}"
VARIABLE = "CAPSEDGE_OPS_LIBRARY"


def find_library() -> Path | None:
    """The operator library: the one that CAPSEDGE_OPS_LIBRARY names, else the installed one, else None.

    On macOS, where nobody has run it yet, an installed one that does not open counts as missing, with a
    warning: else no model would run. Elsewhere, loading it is an error.
    """
    library = named_library(VARIABLE, "operator library")
    if library is not None:
        return library
    library = installed(NAME)
    if sys.platform == "darwin" and library is not None and (why := refusal(library)):
        warnings.warn(
            f"The operator library of capsedge does not open, so function bodies run instead: same results, "
            f"several times slower. {why}",
            stacklevel=2,
        )
        return None
    return library


@lru_cache(maxsize=4)
def refusal(library: Path) -> str:
    """Why the system does not open a library; empty if it does."""
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error)
    return ""


def levels_of(library: Path) -> list[str]:
    """The SIMD levels that an operator library finds on this machine, slowest first: ``plain``, ``avx2``.

    Raises:
        OSError: it does not open.
        AttributeError: it is another library.
    """
    ask = ctypes.CDLL(str(library)).capsedge_kernel_levels
    ask.restype = ctypes.c_char_p
    said: bytes = ask()
    return said.decode().split(",")


def named_library(variable: str, what: str) -> Path | None:
    """The library of ours that an environment variable names; None if it names none."""
    named = os.environ.get(variable)
    if not named:
        return None
    if not Path(named).is_file():
        raise EnvironmentProblem(
            f"The {what} {named} does not exist.",
            f"The environment variable {variable} names it.",
            f"Correct the variable, or remove it: `{unset_command(variable)}`.",
        )
    return Path(named).resolve()


def unset_command(variable: str) -> str:
    """The command that removes an environment variable, in the shell that most people have (PowerShell)."""
    return f"Remove-Item Env:{variable}" if sys.platform == "win32" else f"unset {variable}"


def how_to_get_libraries() -> str:
    """What to do where the compiled libraries are missing, as commands for this system."""
    again = "`pip install --force-reinstall --no-deps capsedge`"
    return {
        "win32": f"Install capsedge from its wheel for 64-bit Windows: {again}. To build it, set CXX "
        "to Clang for MinGW (llvm-mingw); Visual C++ does not compile it.",
        "darwin": f"Install a compiler (`xcode-select --install`), then {again}.",
    }.get(sys.platform, f"Install a C++17 compiler (Debian: apt-get install g++), then {again}.")


def installed(*parts: str) -> Path | None:
    """A file that the native build installed, by its path below the libraries; None if it is missing."""
    import capsedge.runtime

    # The package may come from its sources while the build installed the library elsewhere: an editable
    # install has both folders, and in the root of a checkout the sources hide the installed package.
    elsewhere = (Path(folder, "capsedge", "runtime") for folder in sys.path)
    for place in itertools.chain(map(Path, capsedge.runtime.__path__), elsewhere):
        file = place.joinpath("_native", *parts)
        if file.is_file():
            return file
    return None


def library_for(path: Path, summary: OnnxSummary, ops: str) -> Path | None:
    """The library that runs the operators of a file; None if their function bodies run."""
    if not check_nodes(path, summary, ops):
        return None
    library = None if ops == "portable" else find_library()
    if library is not None:
        return library
    if ops == "fused":
        raise no_library()
    if summary.missing_functions:
        raise EnvironmentProblem(
            f"{path} runs only with the operator library of capsedge.",
            f"Its {', '.join(summary.missing_functions)} nodes have no function body, and "
            + ("ops is 'portable'." if ops == "portable" else "the library is not installed."),
            "Export it again with `capsedge export --ops auto`, or load it where the library is installed.",
        )
    return None


def check_nodes(path: Path, summary: OnnxSummary, ops: str) -> bool:
    """Whether a file has nodes for the operator library; refuses operators that it does not know."""
    _known_operators(path, summary)
    if summary.capsedge_nodes or ops != "fused":
        return bool(summary.capsedge_nodes)
    raise UsageError(
        f"{path} has no capsedge nodes for the operator library.",
        "It was exported with `--ops portable`, or by another tool.",
        "Load it with ops 'auto', or export it again with `capsedge export --ops auto`.",
    )


def no_library() -> EnvironmentProblem:
    """The error where the operator library is required, and `find_library` finds none."""
    broken = installed(NAME)
    if broken is not None and (why := refusal(broken)):  # on macOS
        return EnvironmentProblem(
            f"The operator library {broken} does not open.",
            f"{why}.",
            "Report it with what `capsedge doctor --report` prints; or use ops 'auto'.",
        )
    return EnvironmentProblem(
        "The operator library of capsedge is not installed.",
        "Wheels for Linux, Windows and macOS contain it; or it is compiled when capsedge is installed.",
        f"{how_to_get_libraries()} Or use ops 'auto'.",
    )


def _known_operators(path: Path, summary: OnnxSummary) -> None:
    """Refuse operators of a later version of capsedge that have no function body."""
    if not summary.unknown_operators:
        return
    ours = summary.producer == "capsedge" and _VERSION.fullmatch(summary.producer_version)
    wrote = f"The file was written by capsedge {summary.producer_version}. " if ours else ""
    wanted = f"'capsedge>={summary.producer_version}'" if ours else "capsedge"
    raise EnvironmentProblem(
        f"{path} needs operators that this version of capsedge does not have: "
        f"{', '.join(summary.unknown_operators)}.",
        f"{wrote}This is capsedge {VERSION}, and the nodes have no function bodies that could "
        "run instead.",
        f"Install a later version, `pip install --upgrade {wanted}`, or export the file again with "
        "`capsedge export --ops auto`, which writes the bodies.",
    )


# --- libcapsedge, for builds of C and C++ programs ---

LIBRARY = f"libcapsedge{SUFFIX}"


@dataclass(frozen=True)
class Embedding:
    """The installed C and C++ interface (docs/how-to/libcapsedge.md).

    Attributes:
        include: folder of capsedge.h and capsedge.hpp.
        library: the shared library.
        cmake: folder of capsedgeConfig.cmake.
        pkgconfig: folder of capsedge.pc.
        examples: folder of classify.cpp and the other examples.
    """

    include: Path
    library: Path
    cmake: Path
    pkgconfig: Path
    examples: Path

    @property
    def cflags(self) -> list[str]:
        """Flags for the compiler."""
        return [f"-I{self.include}"]

    @property
    def rpath(self) -> list[str]:
        """The linker's flag by which programs find the library at its present path.

        None on Windows: a DLL is found beside the program, or on PATH.
        """
        return [] if sys.platform == "win32" else [f"-Wl,-rpath,{self.library.parent}"]

    @property
    def libs(self) -> list[str]:
        """Flags for the linker, `rpath` included."""
        return [f"-L{self.library.parent}", "-lcapsedge", *self.rpath]

    @property
    def version(self) -> str:
        """The version that the header states."""
        header = self.include / "capsedge.h"
        try:
            declared = re.search(
                r'#define CAPSEDGE_VERSION "([^"]+)"', header.read_text(encoding="utf-8")
            )
        except OSError as error:
            raise EnvironmentProblem(
                f"{header} cannot be read.", f"{error}.", "pip install --force-reinstall capsedge"
            ) from error
        if declared is None:
            raise EnvironmentProblem(
                f"{header} states no version.", "", "pip install --force-reinstall capsedge"
            )
        return declared[1]


def find_embedding() -> Embedding:
    """The installed interface. Raises EnvironmentProblem if it was not built when capsedge was installed."""
    library = installed("lib", LIBRARY)
    if library is not None:
        folder, root = library.parent, library.parents[1]
        return Embedding(
            include=root / "include",
            library=library,
            cmake=folder / "cmake" / "capsedge",
            pkgconfig=folder / "pkgconfig",
            examples=root / "share" / "capsedge" / "examples",
        )
    raise EnvironmentProblem(
        "The C and C++ library of capsedge is not installed.",
        "Wheels for Linux, Windows and macOS contain it; or it is compiled when capsedge is installed.",
        how_to_get_libraries(),
    )


KERNELS_VARIABLE = "CAPSEDGE_CUDA_KERNELS"
CUDA = 13  # whose compiler makes the kernels: an older driver does not know its machine code
_MODULE = "capsedge_cuda"
_FILE = "kernels.fatbin"
# It is on no package index yet.
HOW_TO_GET_KERNELS = (
    "In a checkout of this version: `make cuda-wheel`, then `pip install dist/capsedge_cuda-*.whl`."
)


def find_cuda_kernels() -> Path | None:
    """The file that CAPSEDGE_CUDA_KERNELS names, else that of the package capsedge-cuda, else None."""
    named = os.environ.get(KERNELS_VARIABLE)
    if named:
        return _named(Path(named))
    folder = find_package()
    if folder is None:
        return None
    file = folder / _FILE
    if not file.is_file():
        raise EnvironmentProblem(
            "The package capsedge-cuda is damaged.",
            f"{file} is missing.",
            HOW_TO_GET_KERNELS,
        )
    return file


def find_package() -> Path | None:
    """The folder of the package capsedge-cuda, or None."""
    try:
        module = importlib.import_module(_MODULE)
    except ModuleNotFoundError:
        return None
    version = getattr(module, "__version__", "unknown")
    if version != VERSION:
        raise EnvironmentProblem(
            "The installed CUDA kernels are of another version than capsedge.",
            f"capsedge-cuda is {version}, and capsedge is {VERSION}.",
            HOW_TO_GET_KERNELS,
        )
    return Path(str(module.__file__)).parent


def code_for(kernels: Path, driver: str, compute_capability: str) -> Path | None:
    """The file that a GPU's driver takes, as the loader chooses it; None if the driver is too old for all.

    Args:
        kernels: the file with the code for every GPU, as `find_cuda_kernels` returns it.
        driver: newest CUDA that the driver supports, such as ``"12.6"``.
        compute_capability: of the GPU, such as ``"8.7"``.
    """
    major = int(driver.split(".")[0])
    if major >= CUDA:
        return kernels
    own = kernels.with_suffix(f".cuda12.sm{compute_capability.replace('.', '')}.cubin")
    return own if major == CUDA - 1 and own.is_file() else None


def _named(path: Path) -> Path:
    if not path.is_file():
        raise EnvironmentProblem(
            f"The file of CUDA kernels {path} does not exist.",
            f"The environment variable {KERNELS_VARIABLE} names it.",
            f"Correct the variable, or remove it: `{unset_command(KERNELS_VARIABLE)}`.",
        )
    return path.resolve()
