"""zig's Clang, which compiles the libraries of the distributions: for old Linux, for Windows and macOS."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tools.macos import link

GLIBC = (2, 17)  # of 2012
PROCESSORS = ("x86_64", "aarch64")  # of Linux
WINDOWS = "windows"  # on x86-64
MACOS = "macos"  # on Apple's processors
TARGETS = {
    **{p: f"{p}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}" for p in PROCESSORS},
    WINDOWS: "x86_64-windows-gnu",
    MACOS: f"aarch64-macos.{link.OLDEST}",
}
TOOLCHAIN = (
    Path(__file__).resolve().parent.parent
    / "capsedge"
    / "runtime"
    / "native"
    / "cmake"
    / "zig.cmake"
)


def variables(kind: str) -> dict[str, str]:
    """The environment variables that `TOOLCHAIN` reads.

    Args:
        kind: of `TARGETS`.

    Raises:
        SystemExit: zig is not installed, or, for macOS, LLVM's linker.
    """
    try:
        import ziglang
    except ModuleNotFoundError:
        raise SystemExit("Wheels are compiled with zig: pip install -e '.[release]'") from None
    linking = {}
    if kind == MACOS:
        command = shlex.join([sys.executable, link.__file__])
        linking = {link.VARIABLE: link.linker(), "CAPSEDGE_LINK": command}
    return {
        **linking,
        "CAPSEDGE_ZIG": str(Path(ziglang.__file__).parent / "zig"),
        "CAPSEDGE_TARGET": TARGETS[kind],
    }
