"""zig's Clang, which compiles the libraries of the distributions: for old Linux systems, and for Windows."""

from __future__ import annotations

from pathlib import Path

GLIBC = (2, 17)  # of 2012
PROCESSORS = ("x86_64", "aarch64")  # of Linux
WINDOWS = "windows"  # on x86-64
TARGETS = {
    **{p: f"{p}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}" for p in PROCESSORS},
    WINDOWS: "x86_64-windows-gnu",
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
        SystemExit: zig is not installed.
    """
    try:
        import ziglang
    except ModuleNotFoundError:
        raise SystemExit("Wheels are compiled with zig: pip install -e '.[release]'") from None
    return {
        "CAPSEDGE_ZIG": str(Path(ziglang.__file__).parent / "zig"),
        "CAPSEDGE_TARGET": TARGETS[kind],
    }
