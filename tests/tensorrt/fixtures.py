"""TensorRT and CUDA as a machine without a GPU can have them: see fake.py and cudart.c."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capsedge.runtime import cuda
from tests.tensorrt import fake

SOURCE = Path(__file__).with_name("cudart.c")
ANY_AMOUNT = 2**63


@pytest.fixture(scope="session")
def cudart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libcudart."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the stand-in for libcudart needs a C compiler: apt-get install gcc")
    path = tmp_path_factory.mktemp("cudart") / "libcudart.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", str(SOURCE), "-o", str(path)], check=True
    )
    return path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, cudart: Path) -> Iterator[Any]:
    """A GPU and TensorRT, both stand-ins; yields the library with its knobs."""
    monkeypatch.setenv(cuda.VARIABLE, str(cudart))
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    monkeypatch.setattr("capsedge.runtime.tensorrt_library.device_name", lambda device: "Orin")
    cuda.load_cuda.cache_clear()
    library = ctypes.CDLL(str(cudart))
    library.fake_set.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
    library.fake_set(1, 87, 0, ANY_AMOUNT)
    fake.reset()
    kept = fake.install(library)
    yield library
    del kept
    cuda.load_cuda.cache_clear()
    fake.reset()
