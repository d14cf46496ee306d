"""Where libcapsedge, its headers and its CMake package are, for builds of C and C++ programs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.native_library import installed

LIBRARY = "libcapsedge.so"


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
        """The linker's flag by which programs find the library at its present path."""
        return [f"-Wl,-rpath,{self.library.parent}"]

    @property
    def libs(self) -> list[str]:
        """Flags for the linker, `rpath` included."""
        return [f"-L{self.library.parent}", "-lcapsedge", *self.rpath]

    @property
    def version(self) -> str:
        """The version that the header states.

        Raises:
            EnvironmentProblem: the header is missing or states none.
        """
        header = self.include / "capsedge.h"
        try:
            stated = re.search(
                r'#define CAPSEDGE_VERSION "([^"]+)"', header.read_text(encoding="utf-8")
            )
        except OSError as error:
            raise EnvironmentProblem(
                f"{header} cannot be read.", f"{error}.", "pip install --force-reinstall capsedge"
            ) from error
        if stated is None:
            raise EnvironmentProblem(
                f"{header} states no version.", "", "pip install --force-reinstall capsedge"
            )
        return stated[1]


def find_embedding() -> Embedding:
    """The installed interface.

    Raises:
        EnvironmentProblem: it was not built when capsedge was installed.
    """
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
        "It is compiled when capsedge is installed on a Linux machine with a C++17 compiler.",
        "Install a compiler (Debian: apt-get install g++), then "
        "`pip install --force-reinstall --no-deps capsedge`.",
    )
