"""Link a library for macOS from objects that zig compiled, with LLVM's linker.

CMake calls it in place of the compiler (cmake/systems.cmake). zig's own linker ignores
``-exported_symbols_list`` and puts its libc++ into the library; with it, ``operator new`` of one library
could replace that of the whole program. What the library may need of the system is a list of names
(`symbols.txt`), from which the stubs of libSystem and libc++ are written: another name is an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

OLDEST = "14.0"  # as of ONNX Runtime's wheels
SYMBOLS = Path(__file__).with_name("symbols.txt")
PROGRAMS = ("ld64.lld", *(f"ld64.lld-{version}" for version in range(30, 18, -1)))  # 19 and later
VARIABLE = "CAPSEDGE_LLD"
INSTALL = "apt-get install lld-19"
_LIBRARIES = {"libSystem": "/usr/lib/libSystem.B.dylib", "libc++": "/usr/lib/libc++.1.dylib"}


def linker() -> str:
    """LLVM's linker for macOS.

    Raises:
        SystemExit: it is not installed.
    """
    found = os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise SystemExit(
            "error: Libraries for macOS are linked by LLVM's ld64.lld, 19 or later. It is not installed.\n"
            f"Debian: {INSTALL}; macOS: brew install lld; or name it: {VARIABLE}=/path/ld64.lld"
        )
    return found


def allowed() -> dict[str, list[str]]:
    """The names that a library may need, by the system's library that has them."""
    found: dict[str, list[str]] = {name: [] for name in _LIBRARIES}
    library = ""
    for line in SYMBOLS.read_text(encoding="ascii").splitlines():
        if line.startswith("["):
            library = line.strip("[]")
        elif line and not line.startswith("#"):
            found[library].append(line)
    return found


def stub(library: str) -> str:
    """A library of the system for the linker: its place, and the names that ours may need."""
    names = ", ".join(f"'{name}'" for name in allowed()[library])
    return (
        "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\n"
        f"install-name: '{_LIBRARIES[library]}'\n"
        f"exports:\n  - targets: [ arm64-macos ]\n    symbols: [ {names} ]\n...\n"
    )


def arguments(words: list[str]) -> list[str]:
    """The compiler's words as the linker's: without ``-Wl,``, and without ``-s``, which it does not know."""
    found: list[str] = []
    for word in words:
        if word.startswith("-Wl,"):
            found += word.split(",")[1:]
        elif word != "-s":
            found.append(word)
    return found


def main(words: list[str]) -> int:
    """Link; returns the linker's exit code."""
    with tempfile.TemporaryDirectory(prefix="capsedge-link-") as name:
        folder = Path(name, "usr", "lib")
        folder.mkdir(parents=True)
        for library in _LIBRARIES:
            (folder / f"{library}.tbd").write_text(stub(library), encoding="ascii")
        command = [
            linker(), "-arch", "arm64", "-platform_version", "macos", OLDEST, OLDEST, "-syslibroot", name,
            "-dylib", "-dead_strip", "-x", "-adhoc_codesign", "--error-limit=0", *arguments(words),
            "-lSystem", "-lc++",
        ]  # fmt: skip
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
