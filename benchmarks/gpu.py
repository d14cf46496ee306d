"""Routing layers on an NVIDIA GPU compared with torch and with the GPU's own floors, in one run.

    make cuda                                   # on a machine with nvcc: the kernels in build/cuda
    python -m benchmarks.gpu -o gpu.json        # everything; also prints a table
    python -m benchmarks.gpu --batches 1 --filter Table --compile reduce-overhead

Every layer's results are compared with torch before it is timed; a wrong one is reported and not timed. A
time is the median of ten rounds of many calls on one stream, on the host's clock, from the first call to the
end of the last. The kernels and torch run as CUDA graphs; torch also runs without one. `torch.compile` starts
afresh for each row, with fixed shapes; a row in which it recorded no graph counts as a failure. `nvidia-smi`
samples clocks and power during each row.

The floor of a layer is the larger of two times: that of its multiply-adds at the rate of a large FP32 matrix
product without TF32, and that of transferring its inputs, weights and outputs once each at the rate of a
large copy. Both rates are measured in the same run. Inputs may stay in the cache between calls, so a small
layer can beat the copy.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import operators
from benchmarks.common import machine
from benchmarks.operators import Layer
from capsedge.errors import CapsedgeError
from capsedge.runtime.backends.cuda import device_name, load_cuda
from capsedge.runtime.files.writing import write_bytes
from tests.conformance.backends import Torch
from tests.conformance.cases import OUTPUTS, Case
from tests.native import cuda_library

ROUNDS = 10
SECONDS = 0.03  # approximate duration of one round
TOLERANCE = {"float32": 1e-3, "float16": 2e-2}  # relative to torch in FP32, which also rounds
KERNELS, HALF, EAGER = "capsedge FP32", "capsedge FP16", "torch eager"
GRAPH, COMPILED = "torch eager, CUDA graph", "torch.compile"
SENSORS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")


def layers(batches: list[int]) -> Iterator[tuple[int, Layer]]:
    """The routing layers of the published models."""
    for n in batches:
        yield n, operators._squash("CapsNet-MNIST primary capsules", n * 1152, 8)
        yield n, operators._dynamic("CapsNet-MNIST digit capsules", n, 1152, 10, 8, 16)
        yield n, operators._em("smallNORB convolutional capsules 14 to 6", n, 14, 3, 2, 32)
        yield n, operators._em("smallNORB convolutional capsules 6 to 4", n, 6, 3, 1, 32)
        yield n, operators._em("EM convolutional capsules 16 to 7", n, 16, 3, 2, 32)
        yield n, operators._em("smallNORB class capsules", n, 4, 1, 1, 5, shared=True)
        yield n, operators._attention("Table 8 convolutional capsules 16 to 7", n, 16, 32, 3, 2, 32)
        yield n, operators._attention("Table 8 convolutional capsules 7 to 5", n, 7, 32, 3, 1, 32)
        yield n, operators._attention("Table 8 class capsules", n, 1, 800, 1, 1, 10)
        yield n, operators._self_attention("Efficient-CapsNet class capsules", n, 16, 10, 8, 16)


class Sensors:
    """Clocks (MHz), power (W) and temperature (°C) of the GPU, read by `nvidia-smi` while a block runs.

    No setting is changed. If `nvidia-smi` is missing, as on a Jetson, nothing is read.
    """

    def __enter__(self) -> Sensors:
        self.medians: dict[str, float] = {}
        command = ["nvidia-smi", f"--query-gpu={','.join(SENSORS)}", "-i", "0"]
        command += ["--format=csv,noheader,nounits", "-lms", "100"]
        self._process: subprocess.Popen[str] | None = None
        with suppress(OSError):
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        rows = [line.split(", ") for line in self._process.communicate()[0].splitlines()]
        rows = [row for row in rows if len(row) == len(SENSORS)]
        for column, name in enumerate(SENSORS):
            with suppress(ValueError):  # a GPU without this sensor: no rows, or "[N/A]"
                self.medians[name] = statistics.median(float(row[column]) for row in rows)


def timed(call: Callable[[], object], wait: Callable[[], object]) -> dict[str, float]:
    """The median, best and worst time of a call in milliseconds.

    Args:
        call: enqueues work on a stream.
        wait: returns when that work is done.
    """

    def take(calls: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        return 1e3 * (time.perf_counter() - start) / calls

    take(3)
    calls = max(1, math.ceil(1e3 * SECONDS / max(take(3), 1e-3)))
    times = [take(calls) for _ in range(ROUNDS)]
    return {
        "median_ms": float(np.median(times)),
        "min_ms": min(times),
        "max_ms": max(times),
        "calls": calls,
    }


def on_torch(call: Callable[[], object]) -> dict[str, float]:
    """Time a torch call on its current stream."""
    import torch

    with torch.no_grad():
        return timed(call, torch.cuda.synchronize)


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    """Torch's work as a CUDA graph, as a runtime would launch it."""
    import torch

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.no_grad(), torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        call()
    return graph.replay


def compiled(function: Callable[[], object], mode: str) -> dict[str, Any]:
    """Time a function under `torch.compile`, and count the graphs it recorded.

    Each row starts afresh: torch stops compiling a function after eight shapes. The compiler is given the
    operators' definitions; the registered operators themselves would be opaque to it.
    """
    import torch
    from torch._dynamo.utils import counters

    from capsedge.models.ops.registration import TorchOperator

    torch._dynamo.reset()
    counters.clear()
    start = time.perf_counter()
    fast = torch.compile(function, mode=mode, dynamic=False, fullgraph=True)
    with mock.patch.object(TorchOperator, "__call__", lambda self, *args: self._definition(*args)):
        with torch.no_grad():
            for _ in range(4):  # compiles, warms up, records the CUDA graph, replays it
                fast()
        graphs = int(counters["stats"]["unique_graphs"])
        if not graphs:
            return {"failed": "torch.compile recorded no graph"}
        seconds = time.perf_counter() - start
        return {**on_torch(fast), "graphs": graphs, "compile_s": seconds, "mode": mode}


def floors() -> dict[str, float]:
    """This GPU's multiply-adds and bytes per second."""
    import torch

    size = 8192
    a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
    product = on_torch(lambda: torch.mm(a, b))["min_ms"]
    source = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    copy = on_torch(lambda: target.copy_(source))["min_ms"]
    return {
        "multiply_adds_per_second": size**3 / (product * 1e-3),
        "bytes_per_second": 2 * source.nbytes / (copy * 1e-3),
    }


def guarded(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The measurement, or the reason why there is none."""
    import torch

    try:
        return measure()
    except torch.cuda.OutOfMemoryError:
        return {"failed": "out of memory"}
    except Exception as error:  # a peer's failure is a result in the table, in its own words
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    finally:
        torch.cuda.empty_cache()


def kernels(layer: Layer, dtype: str, wanted: Callable[[], tuple[Any, ...]]) -> dict[str, Any]:
    """Time the layer's kernels as a graph, if they agree with torch."""
    import torch

    path = cuda_library.gpu_library()
    if path is None:
        return {"failed": "the CUDA kernels are not built: `make cuda`"}
    memory = cuda_library.Gpu()
    inputs = {name: x.astype(dtype) for name, x in layer.inputs.items()}
    call, outputs = cuda_library.prepare(
        cuda_library.bind(path), memory, layer.operator, layer.attributes, inputs
    )
    launch = memory.captured(call)
    launch()
    found = [torch.from_numpy(memory.get(x).astype(np.float32)) for x in outputs]
    limit = TOLERANCE[dtype]
    try:
        with torch.no_grad():
            right = [x.cpu() for x in wanted()]
    except torch.cuda.OutOfMemoryError:
        compared = "torch ran out of memory"
    else:
        worst = max(
            float(((x - w).abs() / (limit + limit * w.abs())).max())
            for x, w in zip(found, right, strict=True)
        )
        if not worst <= 1:
            return {"failed": f"differs from torch by {worst:.3g} times the tolerance"}
        compared = f"{worst:.3g} of the tolerance"
    times = timed(launch, lambda: memory.cuda.synchronize(memory.stream()))
    return {**times, "compared": compared}


def operator_row(batch: int, layer: Layer, rates: dict[str, float], mode: str) -> dict[str, Any]:
    """One layer measured with every peer.

    Args:
        mode: mode of `torch.compile`, which is left out if empty.
    """
    import torch

    case = Case(layer.operator, {}, layer.attributes)
    tensors = {k: torch.from_numpy(x).cuda() for k, x in layer.inputs.items()}

    def eager() -> tuple[Any, ...]:
        found = Torch._call(case, tensors)
        return tuple(found[: len(OUTPUTS[layer.operator])])

    times = {}
    with Sensors() as sensors:
        times[KERNELS] = guarded(lambda: kernels(layer, "float32", eager))
        times[HALF] = guarded(lambda: kernels(layer, "float16", eager))
        times[EAGER] = guarded(lambda: on_torch(eager))
        times[GRAPH] = guarded(lambda: on_torch(graphed(eager)))
        if mode:
            times[COMPILED] = guarded(lambda: compiled(eager, mode))
    arithmetic = 1e3 * layer.multiply_adds / rates["multiply_adds_per_second"]
    traffic = 1e3 * layer.bytes / rates["bytes_per_second"]
    return {
        "layer": layer.name,
        "operator": layer.operator,
        "batch": batch,
        "times": times,
        "floor_ms": max(arithmetic, traffic),
        "floor_of": "arithmetic" if arithmetic > traffic else "traffic",
        "sensors": sensors.medians,
    }


def markdown(document: dict[str, Any]) -> str:
    """The document as a table."""
    lines = [
        f"{document['gpu']}, {document['versions']}: "
        f"{document['floors']['multiply_adds_per_second'] / 1e12:.1f} trillion FP32 multiply-adds and "
        f"{document['floors']['bytes_per_second'] / 1e9:.0f} GB per second",
        "",
        "| layer | batch | FP32 ms | FP16 ms | floor ms | of | FP32 / floor | eager / FP32 "
        "| eager in a graph / FP32 | compile / FP32 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in document["operators"]:
        times = row["times"]
        mine = times[KERNELS].get("median_ms")
        cells = [row["layer"], str(row["batch"])]
        cells += [f"{mine:.4f}" if mine else times[KERNELS]["failed"]]
        half = times.get(HALF, {"failed": "-"})
        cells += [f"{half['median_ms']:.4f}" if "median_ms" in half else half["failed"]]
        cells += [f"{row['floor_ms']:.4f}", row["floor_of"]]
        cells += [f"{mine / row['floor_ms']:.2f}" if mine else "-"]
        cells += [_ratio(times.get(p, {"failed": "-"}), mine) for p in (EAGER, GRAPH, COMPILED)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(peer: dict[str, Any], mine: float | None) -> str:
    if "failed" in peer:
        return str(peer["failed"])
    return f"{peer['median_ms'] / mine:.1f}" if mine else "-"


def header() -> dict[str, Any]:
    """The beginning of every GPU document; turns TF32 off for the rest of the run.

    Raises:
        SystemExit: torch is missing, or sees no GPU.
    """
    try:
        import torch
    except ImportError as error:
        sys.exit(f"{error}: the peers need torch")
    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU here")
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return {
        "machine": machine(),
        "gpu": device_name(0),
        "compute_capability": load_cuda().compute_capability(0),
        "versions": f"torch {torch.__version__}, CUDA {torch.version.cuda}",
        "command": " ".join(["python -m", f"benchmarks.{Path(sys.argv[0]).stem}", *words]),
    }


def main() -> None:
    """Print the table; if requested, write JSON after every row, so that an interrupted run loses nothing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write everything there too")
    parser.add_argument("--batches", default="1,8,32,128")
    parser.add_argument("--filter", default="", help="only layers with this in their name")
    parser.add_argument(
        "--compile", default="", metavar="MODE", help="torch.compile too, e.g. max-autotune"
    )
    options = parser.parse_args()
    document: dict[str, Any] = {**header(), "floors": floors(), "operators": []}
    for batch, layer in layers([int(b) for b in options.batches.split(",")]):
        if options.filter not in layer.name:
            continue
        row = operator_row(batch, layer, document["floors"], options.compile)
        document["operators"].append(row)
        print(f"{layer.name}, batch {batch}: {row['times']}", file=sys.stderr, flush=True)
        if options.output:
            write_bytes(options.output, (json.dumps(document, indent=1) + "\n").encode())
    print(markdown(document))


if __name__ == "__main__":
    try:
        main()
    except CapsedgeError as error:
        sys.exit(str(error))
