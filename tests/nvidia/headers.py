"""The plugin library and libcapsedge, compiled against TensorRT's public headers.

The headers are in NVIDIA's public repository, and never in this one: CAPSEDGE_TENSORRT_INCLUDE names folders
that hold ``NvInferRuntime.h``, with ':' between. What needs them skips without.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.native.builds import ROOT, cmake_build

VARIABLE = "CAPSEDGE_TENSORRT_INCLUDE"
_MAJOR = re.compile(r"define (?:NV_TENSORRT_MAJOR|TRT_MAJOR_ENTERPRISE) +(\d+)")
_MINOR = re.compile(r"define (?:NV_TENSORRT_MINOR|TRT_MINOR_ENTERPRISE) +(\d+)")


def folders() -> list[Path]:
    """Those that the variable names, the oldest headers first."""
    named = [Path(name) for name in os.environ.get(VARIABLE, "").split(":") if name]
    for folder in named:
        assert (folder / "NvInferVersion.h").is_file(), f"{VARIABLE}: no headers in {folder}"
    return sorted(named, key=version)


def version(folder: Path) -> tuple[int, int]:
    """Of the headers in a folder: (10, 3)."""
    text = (folder / "NvInferVersion.h").read_text(encoding="utf-8")
    major, minor = _MAJOR.search(text), _MINOR.search(text)
    assert major is not None
    assert minor is not None
    return int(major[1]), int(minor[1])


def any_folders() -> list[Path]:
    """The same, or a skip that says what to do."""
    found = folders()
    if not found:
        pytest.skip(
            f"set {VARIABLE} to folders with TensorRT's public headers, 10.3 and the newest"
        )
    return found


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    """A folder to build in, for one process at a time."""
    folder = ROOT / "build" / "nvidia" / name
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def plugin_library(headers: Path) -> Path:
    """The plugins as capsedge-cuda has them, for the TensorRT of these headers."""
    numbers = version(headers)
    with _folder(".".join(map(str, numbers))) as folder:
        cmake_build(folder, "capsedge_tensorrt", f"-D{VARIABLE}={headers}")
        return folder / f"libcapsedge_tensorrt{numbers[0]}.so"


def libcapsedge_with_tensorrt(headers: Path) -> Path:
    """libcapsedge with TensorRT."""
    with _folder("libcapsedge") as folder:
        flags = ("-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1 -Werror")
        built = cmake_build(folder, "capsedge", *flags, f"-DCAPSEDGE_NVINFER={headers}")
        return built / "libcapsedge" / "libcapsedge.so"
