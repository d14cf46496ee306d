"""TensorRT and CUDA as libcapsedge opens them, on a machine that has neither: see tests/tensorrt."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path

from tests.tensorrt.fixtures import SOURCE

from . import libcapsedge
from .builds import NATIVE, cmake_build

MOCK = NATIVE / "tensorrt" / "mock"
INCLUDE = NATIVE / "libcapsedge" / "include"
DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int* handle, int device) { *handle = device; return 0; }
int cuDeviceGetName(char* name, int size, int device) { (void)device; strncpy(name, "Orin", size); return 0; }
"""


def compiled(compiler: str, *words: str) -> None:
    done = subprocess.run([compiler, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def nvinfer(target: Path, *flags: str) -> Path:
    """The stand-in for libnvinfer."""
    source = SOURCE.with_name("nvinfer.cpp")
    compiled(
        "g++", "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
        f"-I{MOCK}", f"-I{INCLUDE}", *flags, str(source), "-o", str(target),
    )  # fmt: skip
    return target


def stand_ins_in(folder: Path, library: Path, *flags: str) -> dict[str, str]:
    """libcudart, libnvinfer and libcuda, and the variables that name them."""
    compiled("gcc", "-shared", "-fPIC", *flags, str(SOURCE), "-o", str(folder / "libcudart.so"))
    nvinfer(folder / "libnvinfer.so.10", "-Wl,-soname,libnvinfer.so.10", *flags)
    driver = folder / "driver.c"
    driver.write_text(DRIVER)
    name = "-Wl,-soname,libcuda.so.1"
    compiled("gcc", "-shared", "-fPIC", name, str(driver), "-o", str(folder / "libcuda.so.1"))
    return {
        "CAPSEDGE_TENSORRT": str(folder),
        "CAPSEDGE_CUDART": str(folder / "libcudart.so"),
        "CAPSEDGE_MOCK_RUNTIME": str(library),
        "CAPSEDGE_ONNXRUNTIME": str(libcapsedge.onnxruntime_library()),
    }


class Machine:
    """libcapsedge with TensorRT, and the stand-ins that it opens.

    Attributes:
        library: libcapsedge.
        variables: what tells it, and the stand-ins, where everything is.
        nvinfer, cudart: the stand-ins, with their knobs.
    """

    def __init__(self, folder: Path, library: Path) -> None:
        self.library = library
        self.variables = stand_ins_in(folder, library)
        self.folder = folder
        self.nvinfer = ctypes.CDLL(str(folder / "libnvinfer.so.10"))
        self.cudart = ctypes.CDLL(str(folder / "libcudart.so"))
        self.cudart.fake_set.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
        self._driver = ctypes.CDLL(str(folder / "libcuda.so.1"))

    def counts(self, *what: str) -> dict[str, int]:
        return {name: self.nvinfer.mock_count(name.encode()) for name in what}

    def held(self) -> list[int]:
        """Device and host buffers, streams, graphs; engines and contexts."""
        return [self.cudart.fake_count(k) for k in range(4)] + list(
            self.counts("engines", "contexts").values()
        )


@cache
def only_machine(folder: Path, library: Path) -> Machine:
    """The machine of this process, in a new folder: libcapsedge keeps the TensorRT that it opened first.

    A fixture alone makes one more for each module that imports it, unaware of the streams of the first.
    """
    folder.mkdir()
    return Machine(folder, library)


def build(folder: Path, target: str, *options: str) -> Path:
    """libcapsedge over the interface mock; returns the build folder of it."""
    headers = (f"-DCAPSEDGE_NVINFER={MOCK}", f"-DCAPSEDGE_CUDART_INCLUDE={MOCK}")
    # -O1 takes half as long again.
    flags = ("-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O0 -Werror")
    return cmake_build(folder, target, *flags, *headers, *options) / "libcapsedge"
