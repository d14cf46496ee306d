"""Backends of ``capsedge.ops`` in ``fused()``: on a GPU, and without one on the libcudart of tools/ptx."""

from __future__ import annotations

import ctypes
import importlib
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.cuda_operators import find_cuda_operators
from tests.native import cuda_library
from tools.ptx import build

from .backends import Arrays, Torch
from .cases import OUTPUTS, Case
from .ptx import executor

if TYPE_CHECKING:
    import torch


class TorchFused(Torch):
    """Tensors on a GPU; every case that is not empty has to run as a CUDA kernel."""

    name = "torch-fused"

    def unavailable(self, operator: str) -> str:
        if lacking := super().unavailable(operator):
            return lacking
        import torch

        if not torch.cuda.is_available():
            return "torch sees no GPU"
        try:
            find_cuda_operators()
        except EnvironmentProblem as error:
            return f"{error.what} {error.why}"
        return ""

    def unsupported(self, case: Case, dtype: str) -> str:
        if reason := super().unsupported(case, dtype):
            return reason
        if case.operator not in cuda_library.OPERATORS:
            return f"no CUDA kernel for {case.operator}"
        if case.features & {"per image", "shared votes"}:
            return "no inputs per image and no shared votes in the kernels: PyTorch runs"
        return "" if dtype in ("float32", "float16") else f"no kernels for {dtype}"

    def prepare(self, case: Case, inputs: Arrays, dtype: str) -> Callable[[], Arrays]:
        import torch

        from capsedge.models import ops

        tensors = self._put(inputs)

        def run() -> Arrays:
            with torch.no_grad(), ops.fused() as ran:
                found = self._call(case, tensors)
            assert ran.kernels or "empty" in str(ran.others), ran.others
            values = found[: len(OUTPUTS[case.operator])]
            assert all(x.device.type == "meta" for x in found[len(values) :])
            return dict(zip(OUTPUTS[case.operator], self._get(values), strict=True))

        return run

    def _put(self, inputs: Arrays) -> Mapping[str, torch.Tensor]:
        import torch

        return {name: torch.from_numpy(array).cuda() for name, array in inputs.items()}

    def _get(self, outputs: Sequence[torch.Tensor]) -> list[Any]:
        return [x.cpu().numpy() for x in outputs]


class StandIn:
    """In place of ``_gpu`` in capsedge/models/ops/fused.py: tensors of torch's CPU, in device memory.

    Attributes:
        lends: whether memory that is no longer used is lent again at once, as torch's allocator does.
    """

    def __init__(self) -> None:
        self.executor = executor()
        self.memory = cuda_library.Gpu()
        self.lends = False
        self._free: dict[int, list[int]] = {}

    def has(self, x: torch.Tensor) -> bool:
        return x.device.type == "cpu"

    @contextmanager
    def on(self, device: torch.device) -> Iterator[int]:
        yield self.memory.stream()

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory of its own."""
        import torch

        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        lent = self._free.setdefault(size, [])
        address = lent.pop() if lent else self.memory.cuda.allocate(size)
        room = (ctypes.c_char * size).from_address(address)
        weakref.finalize(room, lent.append if self.lends else self.memory.cuda.free, address)
        return torch.frombuffer(room, dtype=dtype, count=math.prod(shape)).reshape(*shape)

    def put(self, array: np.ndarray) -> torch.Tensor:
        """A tensor in device memory with these values."""
        import torch

        source = np.ascontiguousarray(array)
        made = self.empty(source.shape, getattr(torch, source.dtype.name), torch.device("cpu"))
        self.memory.cuda.to_device(
            made.data_ptr(), source.ctypes.data, source.nbytes, self.memory.stream()
        )
        self.wait()
        return made

    def wait(self) -> None:
        """Until all work is done.

        Raises:
            AssertionError: a kernel's fault ended it.
        """
        try:
            self.memory.cuda.synchronize(self.memory.stream())
        except EnvironmentProblem as error:
            raise AssertionError(self.executor.fault() or str(error)) from error


class TorchFusedPtx(TorchFused):
    """The same on executed PTX, where the memory of a GPU is the host's."""

    name = "torch-fused-ptx"
    _stand_in: StandIn | None = None

    def unavailable(self, operator: str) -> str:
        return Torch.unavailable(self, operator) or build.unavailable()

    def _put(self, inputs: Arrays) -> Mapping[str, torch.Tensor]:
        gpu = self.stand_in()
        return {name: gpu.put(array) for name, array in inputs.items()}

    def _get(self, outputs: Sequence[torch.Tensor]) -> list[Any]:
        self.stand_in().wait()
        return [np.array(x) for x in outputs]

    def stand_in(self) -> StandIn:
        """Installed by the first call."""
        if self._stand_in is None:
            # Of the same name, the package has the function.
            module: Any = importlib.import_module("capsedge.models.ops.fused")
            self._stand_in = module._gpu = StandIn()
        return self._stand_in


BACKENDS = (TorchFused(), TorchFusedPtx())
