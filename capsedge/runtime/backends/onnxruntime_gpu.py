"""Run ONNX Runtime's sessions on a GPU for arrays in host memory: with IO binding, through pinned memory.

`InferenceSession.run` would copy from and to the caller's pageable memory, which the driver copies once more.
ONNX Runtime's Python package has no pinned memory to give (1.19 to 1.31), so the CUDA runtime gives it.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.backend import Feeds, Port
from capsedge.runtime.backends.cuda import Cuda, load_cuda


class _Pinned:
    """A piece of pinned memory, freed when no array is in it any more."""

    def __init__(self, cuda: Cuda, size: int) -> None:
        self.size, address = size, cuda.allocate_host(size)
        self.memory = (ctypes.c_uint8 * max(1, size)).from_address(address)
        _free_with(self.memory, cuda, cuda.free_host, address)


def _free_with(owner: object, cuda: Cuda, free: Callable[[int], None], handle: int) -> None:
    def release() -> None:
        with suppress(EnvironmentProblem):  # the process ends, or the GPU is lost
            free(handle)

    weakref.finalize(owner, cuda.when_allowed, release)


class _Staging:
    """The pinned arrays of one call, and its stream; kept for the next one."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self._pieces = cuda, dict[tuple[str, str], _Pinned]()
        self.stream = cuda.create_stream()
        _free_with(self, cuda, cuda.destroy_stream, self.stream)

    def array(
        self, kind: str, name: str, shape: Sequence[int], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Pinned memory for an input or an output, until the next call of the same name."""
        size = math.prod(shape) * dtype.itemsize
        piece = self._pieces.get((kind, name))
        if piece is None or piece.size < size:
            piece = self._pieces[kind, name] = _Pinned(self._cuda, size)
        array: NDArray[Any] = np.ctypeslib.as_array(piece.memory)[:size].view(dtype)
        return array.reshape(shape)


class PinnedRuns:
    """Runs of a session on a GPU. Several threads may call it, each with pinned memory of its own.

    Args:
        gpu: number of the GPU.
        outputs: the session's.

    Raises:
        EnvironmentProblem: there is no CUDA runtime library that works with the driver.
    """

    def __init__(self, gpu: int, outputs: Sequence[Port]) -> None:
        self._cuda, self._gpu = load_cuda(), gpu
        self._dtypes = {port.name: port.dtype for port in outputs}
        self._free: list[_Staging] = []  # `pop` and `append` are atomic
        self._closed = False

    def run(
        self,
        session: Any,
        names: Sequence[str],
        feeds: Feeds,
        options: Any,
    ) -> list[NDArray[Any]]:
        """The named outputs, as `InferenceSession.run` gives them."""
        cuda = self._cuda
        with cuda.on(self._gpu):
            staging = self._free.pop() if self._free else _Staging(cuda)
            binding = session.io_binding()
            for name, given in feeds.items():
                pinned = staging.array("input", name, given.shape, given.dtype)
                pinned[...] = given
                binding.bind_cpu_input(name, pinned)
            for name in names:
                binding.bind_output(name, "cuda", self._gpu)
            session.run_with_iobinding(binding, options)  # returns when the outputs are there
            found = []
            for name, value in zip(names, binding.get_outputs(), strict=True):
                target = staging.array("output", name, value.shape(), np.dtype(self._dtypes[name]))
                cuda.to_host(target.ctypes.data, value.data_ptr(), target.nbytes, staging.stream)
                found.append(target)
            cuda.synchronize(staging.stream)
            copies = [array.copy() for array in found]
        if not self._closed:
            self._free.append(
                staging
            )  # not that of a call that failed: ONNX Runtime may still read it
        return copies

    def close(self) -> None:
        """Free the memory that no call uses; calls that still run free theirs at their end."""
        self._closed = True
        self._free.clear()
