"""Compile a folder with the compiler of this machine and call it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capsedge.exporters.c.write_c import CReport, write_c

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O2", "-ffp-contract=off")

Floats = NDArray[np.float32]


def compiler() -> str:
    """A C compiler; without one the test is skipped."""
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("needs a C compiler (Debian: gcc)")
    return found


class Compiled:
    """A folder, compiled and loaded."""

    def __init__(
        self, source: Path, folder: Path, flags: Sequence[str] = (), batch: int | None = None
    ) -> None:
        self.report: CReport = write_c(source, folder, name="net", batch=batch)
        self._folder = folder
        self._load(flags)

    def again(self, *flags: str) -> None:
        """Compile the same folder in another way."""
        self._load(flags)

    def _load(self, flags: Sequence[str]) -> None:
        folder = self._folder
        self.description = self.report.description
        library = folder.with_name(f"{folder.name}{len(list(folder.parent.glob('*.so')))}.so")
        words = [
            compiler(),
            *STRICT,
            *flags,
            "-shared",
            "-fPIC",
            "-o",
            str(library),
            str(folder / "net.c"),
        ]
        subprocess.run(words, check=True)
        self._library = ctypes.CDLL(str(library))
        raw = np.zeros(self.description["memory"]["arena_bytes"] + 32, np.uint8)
        start = -raw.ctypes.data % 16
        self._raw, self._end = raw, start + self.description["memory"]["arena_bytes"]
        self._arena = ctypes.c_void_p(raw.ctypes.data + start)
        raw[self._end :] = 0xA5

    def run(self, *inputs: NDArray[Any]) -> dict[str, Floats]:
        """All outputs for the inputs in their order; the bytes behind the arena must stay as they are."""
        given = [
            np.ascontiguousarray(x, known["type"])
            for x, known in zip(inputs, self.description["inputs"], strict=True)
        ]
        outputs = self.description["outputs"]
        results = {o["name"]: np.full(o["shape"], np.nan, np.float32) for o in outputs}
        pointers = (ctypes.c_void_p * len(results))(*(r.ctypes.data for r in results.values()))
        addresses = [ctypes.c_void_p(x.ctypes.data) for x in given]
        self._library.net_run(self._arena, *addresses, pointers)
        assert (self._raw[self._end :] == 0xA5).all()
        return results

    def prepare(self, pixels: NDArray[np.uint8]) -> Floats:
        """Pixels as the network's input."""
        result = np.full(self.description["inputs"][0]["shape"], np.nan, np.float32)
        pixels = np.ascontiguousarray(pixels)
        self._library.net_prepare(
            ctypes.c_void_p(pixels.ctypes.data), ctypes.c_void_p(result.ctypes.data)
        )
        return result

    def reconstruct(self, poses: Floats, index: int) -> Floats:
        """The picture of a class."""
        result = np.full(self.description["reconstruction"]["picture"], np.nan, np.float32)
        poses = np.ascontiguousarray(poses)
        pointers = (ctypes.c_void_p(poses.ctypes.data), index, ctypes.c_void_p(result.ctypes.data))
        self._library.net_reconstruct(self._arena, *pointers)
        return result
