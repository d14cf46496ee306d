"""Which libcudart is taken: the first that the driver runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends import cuda
from tests.tensorrt.fixtures import compile_cudart


def libraries(folder: Path, driver: int) -> list[str]:
    folder.mkdir()
    return [
        str(compile_cudart(folder / f"libcudart.so.{version // 1000}", version, driver))
        for version in (13020, 12080)
    ]


@pytest.mark.parametrize(
    ("driver", "taken"),
    [(13000, "13.2"), (12060, "12.8"), (12000, "12.8"), (14000, "13.2"), (0, "13.2")],
)
def test_the_driver_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: int, taken: str
) -> None:
    """The newest would fail with error 35 on an older driver, although the other is there."""
    found = ["/nowhere/libcudart.so.13", *libraries(tmp_path / "cuda", driver)]
    monkeypatch.setattr(cuda, "candidates", lambda: found)
    assert cuda.Cuda().runtime_version() == taken


def test_none_for_this_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    newest = libraries(tmp_path / "cuda", 12060)[0]
    monkeypatch.setenv(cuda.VARIABLE, newest)
    with pytest.raises(EnvironmentProblem, match="works with this driver") as refused:
        cuda.Cuda()
    assert refused.value.why == f"The driver supports CUDA 12.6; {newest} is CUDA 13.2."
    assert "nvidia-cuda-runtime-cu12" in refused.value.fix
    monkeypatch.setenv(cuda.VARIABLE, "/nowhere/libcudart.so")
    with pytest.raises(EnvironmentProblem, match="was not found"):
        cuda.Cuda()


@pytest.mark.parametrize(("code", "words"), [(100, "no CUDA-capable device"), (35, "driver")])
@pytest.mark.parametrize("function", ["cudaGetDeviceCount", "cudaSetDevice", "cudaMalloc"])
def test_without_a_gpu_the_advice_is_the_onnx_file(code: int, words: str, function: str) -> None:
    """Whatever call finds it first."""
    error = cuda.CudaError(function, code, words)
    assert "no NVIDIA GPU" in error.what
    assert function not in error.what
    assert function in error.why
    assert "ONNX file" in error.fix
    assert error.code == code


def test_other_errors_name_the_call() -> None:
    assert "cudaMalloc" in cuda.CudaError("cudaMalloc", 2, "out of memory").what
