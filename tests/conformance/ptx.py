"""Backends of nvcc's own code: the unmodified library of the CUDA kernels over the libcudart of tools/ptx."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.cuda import load_cuda
from tests.native import cuda_library
from tools.ptx import build

from .cases import Case
from .cuda import Arrays, CudaKernels

ARCHITECTURE = "CAPSEDGE_PTX_ARCHITECTURE"  # such as 87


def architecture() -> int:
    """The one that the variable names, by default 90."""
    return int(os.environ.get(ARCHITECTURE, "90"))


@lru_cache(maxsize=1)
def executor() -> build.Executor:
    """The executed code in place of a GPU."""
    assert not load_cuda.cache_info().currsize, "this process has loaded another libcudart"
    return build.use(architecture())


class CudaPtx(CudaKernels):
    """The compiled kernels, executed on the CPU from their PTX, which is checked while it runs."""

    _family = "cuda-ptx"

    def unavailable(self, operator: str) -> str:
        return build.unavailable()

    def prepare(self, case: Case, inputs: Arrays, dtype: str) -> Callable[[], Arrays]:
        own = executor()
        run = super().prepare(case, inputs, dtype)

        def checked() -> Arrays:
            try:
                return run()
            except EnvironmentProblem as error:
                raise AssertionError(own.fault() or str(error)) from error

        return checked


BACKENDS = tuple(CudaPtx(scheme) for scheme in cuda_library.SCHEMES)
