"""Backends of the CUDA kernels: on a GPU, and their source compiled for the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.cuda import load_cuda
from tests.native import cuda_library

from .cases import OUTPUTS, Case

Arrays = Mapping[str, NDArray[Any]]


class CudaKernels:
    """The kernels on a GPU, without TensorRT.

    Args:
        scheme: of ``cuda_library.SCHEMES``; all but ``auto`` are for tests.
    """

    _family = "cuda-kernels"

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self.name = f"{self._family}-{scheme}"

    def unavailable(self, operator: str) -> str:
        try:
            load_cuda().device_count()
        except EnvironmentProblem as error:
            return f"no GPU: {error.why or error.what}"
        if cuda_library.gpu_library() is None:
            return "the CUDA kernels are not built: `make cuda` where nvcc is"
        return ""

    def unsupported(self, case: Case, dtype: str) -> str:
        if self.scheme != "auto" and case.operator == "Squash":
            return "squash has one scheme"
        return case.gap("cuda", dtype)

    def prepare(self, case: Case, inputs: Arrays, dtype: str) -> Callable[[], Arrays]:
        path = cuda_library.gpu_library()
        assert path is not None
        return self._prepare(path, cuda_library.Gpu(), case, inputs)

    def _prepare(
        self, path: Any, memory: cuda_library.Memory, case: Case, inputs: Arrays
    ) -> Callable[[], Arrays]:
        call, outputs = cuda_library.prepare(
            cuda_library.bind(path),
            memory,
            case.operator,
            case.attributes,
            inputs,
            scheme=self.scheme,
        )

        def run() -> Arrays:
            call()
            found = [np.array(memory.get(tensor)) for tensor in outputs]
            return dict(zip(OUTPUTS[case.operator], found, strict=True))

        return run


class CudaEmulated(CudaKernels):
    """The same source compiled for the host, threads being fibers: arithmetic, indices, barriers."""

    _family = "cuda-emulated"

    def unavailable(self, operator: str) -> str:
        if cuda_library.host_library() is None:
            return "the emulation of the CUDA kernels needs g++ on Linux"
        return ""

    def prepare(self, case: Case, inputs: Arrays, dtype: str) -> Callable[[], Arrays]:
        path = cuda_library.host_library()
        assert path is not None
        return self._prepare(path, cuda_library.Host(), case, inputs)


BACKENDS = tuple(
    kind(scheme) for kind in (CudaKernels, CudaEmulated) for scheme in cuda_library.SCHEMES
)
