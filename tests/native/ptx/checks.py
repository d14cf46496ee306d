"""What executed PTX counts and how the libcudart of the tests fails.

``python -m tests.native.ptx.checks NAME``, each in a process of its own: a kernel's fault ends
all work of its process, as on a GPU.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from capsedge.runtime.backends.cuda import Cuda, CudaError
from tools.ptx import build

STRIDED, HUNGRY, ADD_ONE, DIVERGING = range(4)
INVALID_VALUE, INVALID_CONFIGURATION, NOT_SUPPORTED, OUT_OF_RESOURCES = 1, 9, 801, 701
ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_CLUSTER, LAUNCH_FAILURE = 700, 400, 912, 719
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_IMPLICIT = 900, 901, 906
FLOAT = 4


def compiled(architecture: int = 90) -> build.Built:
    """The kernels of ``probe.cu``."""
    return build.built(architecture, kernels=Path(__file__).parent)


class Probe:
    """The kernels of ``probe.cu`` on the executed code, with a stream and a few buffers."""

    def __init__(self) -> None:
        self.executor = build.Executor(Path(os.environ["CAPSEDGE_CUDART"]))
        self.cuda = Cuda()
        self.library = ctypes.CDLL(os.environ["CAPSEDGE_CUDA_LIBRARY"])
        size, address = ctypes.c_size_t, ctypes.c_void_p
        whole = ctypes.c_int
        self.library.probe.argtypes = [
            whole,
            whole,
            whole,
            whole,
            size,
            address,
            address,
            whole,
            address,
        ]
        self.library.probe_plainly.argtypes = [address] * 3
        self.stream = self.cuda.create_stream()

    def put(self, values: Any, stream: int | None = None) -> int:
        array = np.ascontiguousarray(values, np.float32)
        address = self.cuda.allocate(array.nbytes)
        self.cuda.to_device(
            address, array.ctypes.data, array.nbytes, self.stream if stream is None else stream
        )
        return address

    def get(self, address: int, count: int) -> np.ndarray:
        array = np.empty(count, np.float32)
        self.cuda.to_host(array.ctypes.data, address, array.nbytes, self.stream)
        return array

    def launch(
        self, kernel: int, source: int, target: int, number: int = 0, *, blocks: int = 1, threads: int = 32,
        cluster: int = 0, shared: int = 0, stream: int | None = None,
    ) -> int:  # fmt: skip
        """The error of the launch."""
        used = self.stream if stream is None else stream
        return int(
            self.library.probe(
                kernel, blocks, threads, cluster, shared, source, target, number, used
            )
        )

    def count(self, stride: int) -> Any:
        """What 32 threads do that access memory so many elements apart."""
        source, target = self.put(np.arange(32 * stride)), self.cuda.allocate(32 * FLOAT)
        self.executor.reset()
        assert self.launch(STRIDED, source, target, stride, shared=32 * stride * FLOAT) == 0
        np.testing.assert_array_equal(self.get(target, 32), np.arange(32) * stride)
        (found,) = self.executor.launches()
        return found


def refused(call: Callable[[], Any]) -> int:
    """The code of the error."""
    try:
        call()
    except CudaError as error:
        return error.code
    raise AssertionError("was not refused")


def counts(p: Probe) -> None:
    """Sectors of 32 bytes and turns of 32 banks are those of the addresses."""
    # A read and a write of global memory, each side by side 4 sectors; a write and a read of shared memory.
    for stride, sectors, turns in (
        (1, 4 + 4, 1),
        (2, 8 + 4, 2),
        (3, 12 + 4, 1),
        (8, 32 + 4, 8),
        (32, 32 + 4, 32),
        (33, 32 + 4, 1),
    ):
        found = p.count(stride)
        assert found["sectors"] == sectors, (stride, found)
        assert found["turns"] == 2 * turns, (stride, found)
        assert found["least_turns"] == found["shared_requests"] == found["global_requests"] == 2
        assert found["warps"]["load"] == found["warps"]["store"] == 2
        assert found["lanes"]["load"] == 64
        assert found["warps"]["barrier"] == 1
        assert found["divergent"] == 0


def divergence(p: Probe) -> None:
    """Lanes that went different ways meet again, and each has its own result."""
    values = np.arange(32, dtype=np.float32)
    source, target = p.put(values), p.cuda.allocate(32 * FLOAT)
    assert p.launch(DIVERGING, source, target, 5) == 0
    wanted = values.copy()
    for lane in range(1, 32, 2):
        for _ in range(lane % 5):
            wanted[lane] = wanted[lane] * 2 + 1
    np.testing.assert_array_equal(p.get(target, 32), wanted + wanted[np.arange(32) ^ 1])
    (found,) = p.executor.launches()
    assert found["divergent"] > 0
    assert found["lanes"]["arithmetic"] < 32 * found["warps"]["arithmetic"]


def limits(p: Probe) -> None:
    """A launch that the GPU has no room for is refused, and nothing is lost by it."""
    source, target = p.put(np.zeros(96 * 1024)), p.cuda.allocate(1024 * FLOAT)
    registers = next(n for n in map(int, _resources().values()) if n > 64)
    assert registers * 1024 > 65536
    assert p.launch(HUNGRY, source, target, 1024, threads=1024) == OUT_OF_RESOURCES
    assert p.launch(HUNGRY, source, target, 1024, threads=512) == 0
    assert p.launch(ADD_ONE, source, target, threads=1025) == INVALID_CONFIGURATION
    assert p.launch(ADD_ONE, source, target, blocks=65536) == INVALID_CONFIGURATION
    assert p.launch(ADD_ONE, source, target, shared=49153) == INVALID_VALUE
    assert p.library.probe_leave(ADD_ONE, 64 << 10) == 0
    assert p.launch(ADD_ONE, source, target, shared=49153) == 0
    assert p.library.probe_leave(ADD_ONE, 1 << 20) == INVALID_VALUE
    assert p.launch(ADD_ONE, source, target, stream=12345) == INVALID_HANDLE
    clusters = p.cuda.compute_capability(0) >= "9.0"
    wanted = {3: INVALID_CLUSTER, 16: INVALID_CLUSTER} if clusters else {2: NOT_SUPPORTED}
    for cluster, code in wanted.items():
        assert p.launch(ADD_ONE, source, target, blocks=16, cluster=cluster) == code
    p.cuda.synchronize(p.stream)


def _resources() -> dict[str, str]:
    lines = (Path(os.environ["CAPSEDGE_PTX"]) / "resources.txt").read_text().splitlines()
    return {line.split()[0]: line.split()[1] for line in lines}


def plain_launch(p: Probe) -> None:
    """A launch by <<<>>> takes nvcc's own stub."""
    source, target = p.put(np.arange(32)), p.cuda.allocate(32 * FLOAT)
    assert p.library.probe_plainly(source, target, p.stream) == 0
    np.testing.assert_array_equal(p.get(target, 32), np.arange(32) + 1)


def faults_stay(p: Probe) -> None:
    """After an illegal access, which only waiting reports, every call fails with it."""
    source = p.put(np.zeros(32))
    target = p.cuda.allocate(31 * FLOAT)
    assert p.launch(ADD_ONE, source, target) == 0
    assert refused(lambda: p.cuda.synchronize(p.stream)) == ILLEGAL_ADDRESS
    assert "byte 124 of an allocation of 124 bytes" in p.executor.fault()
    assert refused(lambda: p.cuda.allocate(1)) == ILLEGAL_ADDRESS
    assert refused(p.cuda.create_stream) == ILLEGAL_ADDRESS


def unwritten_memory(p: Probe) -> None:
    source, target = p.cuda.allocate(32 * FLOAT), p.cuda.allocate(32 * FLOAT)
    assert p.launch(ADD_ONE, source, target) == 0
    assert refused(lambda: p.cuda.synchronize(p.stream)) == LAUNCH_FAILURE
    assert "memory that nobody has written" in p.executor.fault()


def freed_memory(p: Probe) -> None:
    source, target = p.put(np.zeros(32)), p.cuda.allocate(32 * FLOAT)
    p.cuda.free(source)
    assert p.launch(ADD_ONE, source, target) == 0
    assert refused(lambda: p.cuda.synchronize(p.stream)) == ILLEGAL_ADDRESS


def racing_blocks(p: Probe) -> None:
    """Two blocks write the same memory."""
    source, target = p.put(np.zeros(32)), p.cuda.allocate(32 * FLOAT)
    assert p.launch(ADD_ONE, source, target, blocks=2) == 0
    assert refused(lambda: p.cuda.synchronize(p.stream)) == LAUNCH_FAILURE
    assert "race: writes what was written by" in p.executor.fault()


def streams(p: Probe) -> None:
    """Work of another stream is not there until it is waited for, and an event is enough for that."""
    other, pinned = p.cuda.create_stream(), p.cuda.allocate_host(32 * FLOAT)
    target, early = p.cuda.allocate(32 * FLOAT), p.put(np.zeros(32))
    p.cuda.synchronize(p.stream)
    ctypes.memset(pinned, 0, 32 * FLOAT)
    source = p.cuda.allocate(32 * FLOAT)
    values = np.arange(32, dtype=np.float32)
    p.cuda.to_device(source, values.ctypes.data, values.nbytes, other)
    assert p.launch(ADD_ONE, source, target, stream=other) == 0
    p.cuda.on_device(early, early, 0, p.stream)
    p.cuda.to_host(pinned, early, 32 * FLOAT, p.stream)
    p.cuda.synchronize(p.stream)
    assert not np.ctypeslib.as_array((ctypes.c_float * 32).from_address(pinned)).any()
    p.cuda.wait(p.stream, other)
    p.cuda.to_host(pinned, target, 32 * FLOAT, p.stream)
    p.cuda.synchronize(p.stream)
    found = np.ctypeslib.as_array((ctypes.c_float * 32).from_address(pinned))
    np.testing.assert_array_equal(found, values + 1)
    p.cuda.destroy_stream(other)
    assert refused(lambda: p.cuda.synchronize(other)) == INVALID_HANDLE


def a_missing_wait(p: Probe) -> None:
    """Without the event, a stream reads what another one has not written yet."""
    other, target = p.cuda.create_stream(), p.cuda.allocate(32 * FLOAT)
    source = p.cuda.allocate(32 * FLOAT)
    values = np.arange(32, dtype=np.float32)
    p.cuda.to_device(source, values.ctypes.data, values.nbytes, other)
    assert p.launch(ADD_ONE, source, target) == 0
    assert refused(lambda: p.cuda.synchronize(p.stream)) == LAUNCH_FAILURE
    assert "memory that nobody has written" in p.executor.fault()


def graphs(p: Probe) -> None:
    """A capture runs nothing; a launch of its graph runs all of it, every time."""
    a, b, c = p.put(np.zeros(32)), p.put(np.zeros(32)), p.cuda.allocate(32 * FLOAT)
    p.cuda.synchronize(p.stream)

    def enqueue() -> bool:
        return p.launch(ADD_ONE, a, b) == 0 and p.launch(ADD_ONE, b, c) == 0

    graph, why = p.cuda.capture(p.stream, enqueue)
    assert graph, why
    assert not p.get(b, 32).any()
    for start in (0.0, 5.0):
        values = np.full(32, start, np.float32)
        p.cuda.to_device(a, values.ctypes.data, values.nbytes, p.stream)
        p.cuda.launch(graph, p.stream)
        np.testing.assert_array_equal(p.get(c, 32), values + 2)
    p.cuda.destroy_graph(graph)
    assert refused(lambda: p.cuda.launch(graph, p.stream)) == INVALID_VALUE


def unsafe_in_a_capture(p: Probe) -> None:
    """Allocating, freeing and waiting spoil a capture; the stream can be used afterwards."""
    kept = p.cuda.allocate(4)

    def also(call: Callable[[], Any], code: int) -> None:
        def enqueue() -> bool:
            assert refused(call) == code
            return True

        graph, why = p.cuda.capture(p.stream, enqueue)
        assert not graph
        assert "previous error" in why

    also(lambda: p.cuda.allocate(4), CAPTURE_UNSUPPORTED)
    also(lambda: p.cuda.free(kept), CAPTURE_UNSUPPORTED)
    also(lambda: p.cuda.allocate_host(4), CAPTURE_UNSUPPORTED)
    also(lambda: p.cuda.synchronize(p.stream), CAPTURE_UNSUPPORTED)
    p.cuda.synchronize(p.stream)


def copies(p: Probe) -> None:
    """Copies end where their memory does."""
    device, host = p.cuda.allocate(64), np.zeros(32, np.float32)
    assert (
        refused(lambda: p.cuda.to_device(device, host.ctypes.data, 65, p.stream)) == INVALID_VALUE
    )
    assert (
        refused(lambda: p.cuda.to_device(host.ctypes.data, device, 64, p.stream)) == INVALID_VALUE
    )
    assert refused(lambda: p.cuda.free(device + 4)) == INVALID_VALUE
    assert p.cuda.memory(device) == (2, 0)
    assert p.cuda.memory(host.ctypes.data)[0] == 0
    assert refused(lambda: p.cuda.allocate(1 << 40)) == 2
    p.cuda.free(device)


CHECKS = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__annotations__", {}).get("p") == "Probe"
}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](Probe())
