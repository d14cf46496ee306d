"""zig's Clang, which compiles the libraries of the distributions for an old C library and both processors."""

from __future__ import annotations

from pathlib import Path

GLIBC = (2, 17)  # of 2012
PROCESSORS = ("x86_64", "aarch64")
TOOLCHAIN = (
    Path(__file__).resolve().parent.parent
    / "capsedge"
    / "runtime"
    / "native"
    / "cmake"
    / "zig.cmake"
)


def variables(processor: str) -> dict[str, str]:
    """The environment variables that `TOOLCHAIN` reads.

    Raises:
        SystemExit: zig is not installed.
    """
    try:
        import ziglang
    except ModuleNotFoundError:
        raise SystemExit("Wheels are compiled with zig: pip install -e '.[release]'") from None
    return {
        "CAPSEDGE_ZIG": str(Path(ziglang.__file__).parent / "zig"),
        "CAPSEDGE_TARGET": f"{processor}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}",
    }
