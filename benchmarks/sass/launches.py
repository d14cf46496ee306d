"""The launches of a routing layer, as the planner makes them on a GPU of a given size.

The kernels' host half is compiled with a launch that writes down its arguments (``record.cpp``): choice of
kernel, grid, threads and shared memory are those of ``plan.cu`` and ``launch.cu``, not a copy of their
rules.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.operators import Layer
from benchmarks.sass.cubin import BUILD, SOURCES, digest_of, host_tool, plain_name
from capsedge.errors import CapsedgeError
from tests.native import cuda_library

ALIGNMENT = 256  # bytes, of cudaMalloc
RECORDER = Path(__file__).with_name("record.cpp")


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        kernel: name, as :func:`benchmarks.sass.cubin.kernels` has it.
        grid: blocks in x and y.
        cluster: blocks in y that run together.
        shared: bytes of dynamic shared memory of a block.
        arguments: bytes of the parameters, laid out as on the device.
    """

    kernel: str
    grid: tuple[int, int]
    threads: int
    cluster: int
    shared: int
    arguments: bytes

    @property
    def blocks(self) -> int:
        """Of the whole grid."""
        return self.grid[0] * self.grid[1]


class _Device(cuda_library.Host):
    """Memory as cudaMalloc gives it: sectors touched depend on addresses."""

    def put(self, array: cuda_library.Array) -> cuda_library.Array:
        placed = self.empty(array.shape, str(array.dtype))
        placed[...] = array
        return placed

    def empty(self, shape: tuple[int, ...], dtype: str) -> cuda_library.Array:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        room = np.zeros(size + ALIGNMENT, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        return room[start : start + size].view(dtype).reshape(shape)


@lru_cache(maxsize=1)
def recorder() -> tuple[ctypes.CDLL, dict[int, str]]:
    """The library that records launches, and kernels' names by their place in it.

    Raises:
        CapsedgeError: g++ or nm is missing, or g++ refuses the source.
    """
    target = BUILD / f"recorder-{digest_of([*SOURCES.iterdir(), RECORDER])}.so"
    if not target.is_file():
        BUILD.mkdir(parents=True, exist_ok=True)
        made = target.with_name(f"{target.name}.{os.getpid()}")
        done = subprocess.run(
            [host_tool("g++"), "-std=c++17", "-O0", "-Wno-unknown-pragmas", "-shared", "-fPIC",
             "-fvisibility=hidden", "-DCAPSEDGE_EMULATE", f"-I{SOURCES}", str(RECORDER), "-o", str(made)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise CapsedgeError(f"g++ for the planner: {done.stderr.strip()[-2000:]}")
        made.replace(target)
    library = cuda_library.bind(target)
    library.capsedge_launch.argtypes = [ctypes.c_int32, ctypes.POINTER(ctypes.c_int64)]
    library.capsedge_arguments.restype = ctypes.c_void_p
    listing = subprocess.run(
        [host_tool("nm"), "-C", str(target)], capture_output=True, text=True, check=True
    ).stdout
    names, places = {}, {}
    for line in listing.splitlines():
        match = re.fullmatch(r"([0-9a-f]+) [tT] (.+)", line)
        if match:
            names[int(match[1], 16)] = plain_name(match[2])
            places[match[2]] = int(match[1], 16)
    base = ctypes.cast(library.capsedge_recorded, ctypes.c_void_p).value or 0
    start = base - places["capsedge_recorded"]
    return library, {start + place: name for place, name in names.items()}


def launches_of(layer: Layer, multiprocessors: int, *, clusters: bool) -> list[Launch]:
    """What runs a layer.

    Args:
        multiprocessors: of the GPU.
        clusters: whether the GPU has thread block clusters (compute capability 9.0).

    Raises:
        CapsedgeError: the recorder cannot be built.
    """
    library, names = recorder()
    library.capsedge_forget()
    route, _ = cuda_library.prepare(
        library, _Device(), layer.operator, layer.attributes, layer.inputs,
        scheme="auto" if clusters else "portable", multiprocessors=multiprocessors,
    )  # fmt: skip
    route()
    found = []
    for number in range(library.capsedge_recorded()):
        numbers = (ctypes.c_int64 * 7)()
        library.capsedge_launch(number, numbers)
        x, y, threads, cluster, shared, kernel, size = numbers
        arguments = ctypes.string_at(library.capsedge_arguments(number), size)
        found.append(Launch(names[kernel], (x, y), threads, cluster, shared, arguments))
    return found
