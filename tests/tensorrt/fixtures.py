"""TensorRT and CUDA as a machine without a GPU can have them: see fake.py and cudart.c."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from capsedge.runtime.backends import cuda
from capsedge.runtime.backends.device_array import CUDA, CUDA_HOST, DeviceArray
from tests.tensorrt import fake

SOURCE = Path(__file__).with_name("cudart.c")
ANY_AMOUNT = 2**63


@pytest.fixture(scope="session")
def cudart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libcudart."""
    return compile_cudart(tmp_path_factory.mktemp("cudart") / "libcudart.so")


def compile_cudart(path: Path, runtime: int = 13000, driver: int = 13000) -> Path:
    """The stand-in of a CUDA version, over a driver of another."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the stand-in for libcudart needs a C compiler: apt-get install gcc")
    versions = [f"-DFAKE_RUNTIME={runtime}", f"-DFAKE_DRIVER={driver}"]
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *versions, str(SOURCE), "-o", str(path)],
        check=True,
    )
    return path


class OnGpu:
    """An array in the stand-in's memory, as a library without DLPack hands it over."""

    def __init__(self, cudart: Any, array: NDArray[Any], pinned: bool = False) -> None:
        self._cudart, self._pinned = cudart, pinned
        address = ctypes.c_void_p()
        allocate = cudart.cudaHostAlloc if pinned else cudart.cudaMalloc
        assert not allocate(ctypes.byref(address), ctypes.c_size_t(array.nbytes), 0)
        self.address, self.bytes = int(address.value or 0), array.nbytes
        ctypes.memmove(self.address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "version": 2,
            "data": (self.address, False),
        }  # fmt: skip

    def told(self, **facts: Any) -> OnGpu:
        """With more in its description."""
        self.__cuda_array_interface__ |= facts
        return self

    @property
    def values(self) -> NDArray[Any]:
        """What its memory holds now."""
        told = self.__cuda_array_interface__
        raw = (ctypes.c_uint8 * self.bytes).from_address(self.address)
        return np.ctypeslib.as_array(raw).view(told["typestr"]).reshape(told["shape"])

    def __del__(self) -> None:
        free = self._cudart.cudaFreeHost if self._pinned else self._cudart.cudaFree
        free(ctypes.c_void_p(self.address))


class ByDlpack:
    """The same, by DLPack alone, as torch hands it over: its stream is the one that it is written on."""

    def __init__(self, array: OnGpu, stream: int = 0, device: tuple[int, int] = (CUDA, 0)) -> None:
        self.array, self.stream, self.device = array, stream, device
        self.asked: list[int | None] = []
        self.requires_grad = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.asked.append(stream)
        told = self.array.__cuda_array_interface__
        kind, number = self.device
        same = DeviceArray(
            self.array.address, told["shape"], np.dtype(told["typestr"]).name, number,
            on_host=kind == CUDA_HOST, keep=self.array,
        )  # fmt: skip
        if self.stream:
            same.written_on(self.stream, cuda.load_cuda())
        return same.__dlpack__(stream=stream)


def on_gpu(cudart: Any, array: NDArray[Any]) -> OnGpu:
    """A copy of an array on the stand-in's GPU."""
    return OnGpu(cudart, array)


class _Once:
    """What the builder does before TensorRT, once for each file: most tests build the same few."""

    def __init__(self) -> None:
        self._checked: dict[bytes, bytes] = {}
        self._inlined: dict[bytes, bytes] = {}

    def checked(self, data: bytes, name: str) -> bytes:
        from capsedge.graph.check import checked

        if data not in self._checked:
            self._checked[data] = checked(data, name)
        return self._checked[data]

    def inline_functions(self, model: onnx.ModelProto) -> onnx.ModelProto:
        from capsedge.graph.functions import inline_functions

        data = model.SerializeToString(deterministic=True)
        if data not in self._inlined:
            self._inlined[data] = inline_functions(model).SerializeToString()
        return onnx.load_model_from_string(self._inlined[data])


_ONCE = _Once()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, cudart: Path) -> Iterator[Any]:
    """A GPU and TensorRT, both stand-ins; yields the library with its knobs."""
    monkeypatch.setenv(cuda.VARIABLE, str(cudart))
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    monkeypatch.setattr(
        "capsedge.runtime.backends.tensorrt_library.device_name", lambda device: "Orin"
    )
    cuda.load_cuda.cache_clear()
    library = ctypes.CDLL(str(cudart))
    library.fake_set.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
    library.fake_set(1, 87, 0, ANY_AMOUNT)
    library.fake_driver(13000)
    library.fake_multiprocessors(8)
    fake.reset()
    kept = fake.install(library)
    monkeypatch.setattr(
        "capsedge.exporters.tensorrt.lowering.inline_functions", _ONCE.inline_functions
    )
    monkeypatch.setattr("capsedge.exporters.tensorrt.write_engine.checked", _ONCE.checked)
    yield library
    del kept
    cuda.load_cuda.cache_clear()
    fake.reset()
