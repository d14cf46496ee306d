"""The TensorRT plugin libraries of ``capsedge-cuda``: both major versions of TensorRT, for both processors.

CAPSEDGE_TENSORRT_INCLUDE names the folders of TensorRT's headers, with ':' between: of 10.3, the oldest that
is supported, and of 11. They are in NVIDIA's public repository (``include`` of github.com/NVIDIA/TensorRT).
A library takes TensorRT from the process that loads it, and the CUDA kernels from the file beside it; nothing
of TensorRT or CUDA is linked or contained.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools import zig

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "CAPSEDGE_TENSORRT_INCLUDE"
MAJORS = (10, 11)
_MAJOR = re.compile(r"define (?:NV_TENSORRT_MAJOR|TRT_MAJOR_ENTERPRISE) +(\d+)")


def headers(value: str | None = None) -> dict[int, Path]:
    """The folders of TensorRT's headers by major version.

    Args:
        value: folders with ':' between; by default those that CAPSEDGE_TENSORRT_INCLUDE names.

    Raises:
        SystemExit: a folder has none, those of an unknown version, or of the same as another.
    """
    named = os.environ.get(VARIABLE, "") if value is None else value
    found: dict[int, Path] = {}
    for folder in (Path(name).resolve() for name in named.split(":") if name):
        file = folder / "NvInferVersion.h"
        major = _MAJOR.search(file.read_text(encoding="utf-8")) if file.is_file() else None
        if major is None:
            raise SystemExit(f"error: {VARIABLE} names {folder}, which has no headers of TensorRT")
        number = int(major[1])
        if number not in MAJORS or number in found:
            what = "two folders with" if number in found else "a folder with"
            raise SystemExit(f"error: {VARIABLE} names {what} headers of TensorRT {number}")
        found[number] = folder
    return found


def left_out(given: Mapping[int, Path]) -> str:
    """What a build with these headers leaves out, as a sentence; empty if nothing."""
    missing = [str(major) for major in MAJORS if major not in given]
    if not missing:
        return ""
    return (
        f"The TensorRT plugin libraries for TensorRT {' and '.join(missing)} are left out: "
        f"{VARIABLE} names no folder of its headers."
    )


def names(major: int) -> tuple[str, str]:
    """The library that TensorRT loads, and the one that registers its plugins when it is loaded."""
    return f"libcapsedge_tensorrt{major}.so", f"libcapsedge_tensorrt{major}_static.so"


def make(given: Mapping[int, Path], processor: str, folder: Path) -> list[Path]:
    """Compile the libraries for a processor.

    Args:
        folder: where to build.

    Raises:
        SystemExit: zig or CMake is not installed.
        subprocess.CalledProcessError: the compiler refuses them; its messages are on stderr.
    """
    environment = {**os.environ, **zig.variables(processor)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    cmake = shutil.which("cmake", path=environment["PATH"])
    if cmake is None:
        raise SystemExit("error: CMake is not installed: pip install cmake")
    options = [
        f"-DCMAKE_TOOLCHAIN_FILE={zig.TOOLCHAIN}",
        f"-DCAPSEDGE_TENSORRT_INCLUDE={';'.join(str(given[m]) for m in sorted(given))}",
        "-DCAPSEDGE_TENSORRT=OFF",  # libcapsedge's part of it is not built here
    ]
    source = ROOT / "capsedge" / "runtime" / "native"
    steps: tuple[list[str | Path], ...] = (
        ["-S", source, "-B", folder, *options],
        ["--build", folder, "--target", "capsedge_tensorrt", "-j", str(os.cpu_count() or 1)],
    )
    for words in steps:
        subprocess.run([cmake, *words], env=environment, stdout=sys.stderr, check=True)
    return [folder / name for major in sorted(given) for name in names(major)]
