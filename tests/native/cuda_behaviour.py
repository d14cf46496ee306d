"""What the CUDA kernels promise beyond right results: ``python -m tests.native.cuda_behaviour NAME``.

Equal bits on every run, in CUDA graphs, on several streams and in several processes at once; batches beyond
the limits of a grid; clusters where they are asked for. Needs a GPU and no package but numpy.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from capsedge.runtime.backends.cuda import load_cuda
from tests.conformance.cases import ON_GPU, Case, make
from tests.native import cuda_library
from tests.native.cuda_library import Gpu, prepare

RUNS = 20
PROCESSES = 3
STREAMS = 4


def library() -> ctypes.CDLL:
    """The kernels for this machine's GPU.

    Raises:
        FileNotFoundError: they are not built.
    """
    path = cuda_library.gpu_library()
    if path is None:
        raise FileNotFoundError("the CUDA kernels are not built: `make cuda` where nvcc is")
    return cuda_library.bind(path)


def first(operator: str, **dims: int) -> Case:
    """The operator's first case with these sizes and at least one image."""
    for case in ON_GPU:
        wanted = all(case.dims.get(name) == size for name, size in dims.items())
        if case.operator == operator and wanted and case.dims.get("N", 1) > 0:
            return case
    raise LookupError(f"no case of {operator} with {dims}")


def schemes(operator: str) -> Iterator[str]:
    """Those that the operator has: squash has one."""
    yield from ("auto",) if operator == "Squash" else cuda_library.SCHEMES


def _bits(memory: Gpu, outputs: list[Any]) -> bytes:
    return b"".join(memory.get(tensor).tobytes() for tensor in outputs)


def _everything() -> Iterator[tuple[str, Case, str]]:
    for operator in cuda_library.OPERATORS:
        case = first(operator)
        for scheme in schemes(operator):
            yield f"{operator} {scheme}", case, scheme


def determinism() -> list[str]:
    """Runs with the same inputs give the same bits."""
    kernels, failed = library(), []
    for name, case, scheme in _everything():
        memory, inputs = Gpu(), make(case, "float32").inputs
        call, outputs = prepare(
            kernels, memory, case.operator, case.attributes, inputs, scheme=scheme
        )
        seen = set()
        for _ in range(RUNS):
            call()
            seen.add(_bits(memory, outputs))
        if len(seen) != 1:
            failed.append(f"{name}: {len(seen)} different results in {RUNS} runs")
    return failed


def graphs() -> list[str]:
    """A captured call gives, replayed, the bits of the call itself."""
    kernels, failed = library(), []
    for name, case, scheme in _everything():
        memory, inputs = Gpu(), make(case, "float32").inputs
        call, outputs = prepare(
            kernels, memory, case.operator, case.attributes, inputs, scheme=scheme
        )
        call()
        wanted = _bits(memory, outputs)
        launch = memory.captured(call)
        for tensor in outputs:
            memory.fill(tensor, float("nan"))
        launch()
        if _bits(memory, outputs) != wanted:
            failed.append(f"{name}: the graph's results differ from the call's")
    return failed


def streams() -> list[str]:
    """Calls of several threads, each on a stream of its own, do not disturb each other."""
    kernels, failed = library(), []
    for name, case, scheme in _everything():
        inputs = make(case, "float32").inputs
        found: list[set[bytes]] = [set() for _ in range(STREAMS)]
        ready = threading.Barrier(STREAMS)

        def run(
            mine: set[bytes], case: Case = case, inputs: Any = inputs, scheme: str = scheme,
            ready: threading.Barrier = ready,
        ) -> None:  # fmt: skip
            memory = Gpu()
            call, outputs = prepare(
                kernels, memory, case.operator, case.attributes, inputs, scheme=scheme
            )
            ready.wait()
            for _ in range(RUNS):
                call()
            mine.add(_bits(memory, outputs))

        workers = [threading.Thread(target=run, args=(mine,)) for mine in found]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if len(set().union(*found)) != 1 or not all(found):
            failed.append(f"{name}: {STREAMS} streams at once differ")
    return failed


def contexts() -> list[str]:
    """Processes, each with a context of its own, get the same bits at the same time."""
    command = [sys.executable, "-m", "tests.native.cuda_behaviour", "digest"]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    found = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        return ["a process failed; its message is above"]
    return [] if len(set(found)) == 1 else [f"{PROCESSES} processes at once differ"]


def digest() -> list[str]:
    """Prints a number that follows from the bits of all results; `contexts` compares it."""
    kernels, number = library(), 0
    for _, case, scheme in _everything():
        memory, inputs = Gpu(), make(case, "float32").inputs
        call, outputs = prepare(
            kernels, memory, case.operator, case.attributes, inputs, scheme=scheme
        )
        call()
        number = zlib.crc32(_bits(memory, outputs), number)
    print(number)
    return []


def large_batch() -> list[str]:
    """Each image of a batch of 70,000 gets what it gets alone: no grid ends at 65,535."""
    case = first("DynamicRouting", N=7, I=128)
    example, memory = make(case, "float32"), Gpu()
    inputs = {**example.inputs, "u": np.tile(example.inputs["u"], (10_000, 1, 1))}
    call, outputs = prepare(library(), memory, case.operator, case.attributes, inputs)
    call()
    found = memory.get(outputs[0]).reshape(10_000, *example.wanted["v"].shape)
    if not (found == found[:1]).all():
        return ["images of the batch differ although their inputs are equal"]
    excess = example.tolerances["v"].excess(found[0], example.wanted["v"])
    return [] if excess <= 1 else [f"the error is {excess:.3g} times the tolerance"]


def clusters() -> list[str]:
    """Asked for, they are what runs, on GPUs that have them: the tests of their scheme would pass without."""
    if float(load_cuda().compute_capability(0)) < 9:
        return []
    kernels, failed = library(), []
    for case in (first("DynamicRouting", N=7, I=128), first("EMRouting", C=8, M=8)):
        layer = cuda_library.layer_of(case.operator, case.attributes, make(case, "float32").inputs)
        layer.scheme = cuda_library.SCHEMES["cluster"]
        words = kernels.capsedge_cuda_describe(ctypes.byref(layer)).decode()
        if "a cluster" not in words:
            failed.append(f"{case.operator}: {words}")
    return failed


BEHAVIOURS: dict[str, Callable[[], list[str]]] = {
    function.__name__: function
    for function in (determinism, graphs, streams, contexts, large_batch, clusters)
}


def main() -> int:
    """Print what failed as JSON; exit code 1 if anything did."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=[*BEHAVIOURS, "digest"])
    name = parser.parse_args().name
    if name == "digest":
        digest()
        return 0
    failed = BEHAVIOURS[name]()
    print(json.dumps({"behaviour": name, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
