"""Routing on an NVIDIA GPU: operators and whole models, against torch and the GPU's own floors, in one run.

    make cuda                                   # where nvcc is: the kernels in build/cuda
    python -m benchmarks.gpu -o gpu.json        # everything; prints a table too
    python -m benchmarks.gpu --batches 1 --filter Table --skip-models

Every operator is compared with torch before it is timed: a wrong one is reported and not timed. Times are
CUDA events around many calls on one stream, the median of ten rounds; a peer that runs out of memory says so.
The floor of a layer is the larger of two times: its multiply-adds at the rate of a large FP32 matrix product
without TF32, and its inputs, weights and outputs, once each, at the rate of a large copy. Both rates are
measured in the same run. Inputs may stay in the cache between calls, so a small layer can beat the copy.

Whole models: torch eager, torch.compile (max-autotune, with CUDA graphs), ONNX Runtime's CUDA provider and
TensorRT engines (native; fused where the plugin library is), each where it is installed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import operators
from benchmarks.common import machine
from benchmarks.operators import Layer
from benchmarks.peers import MODELS
from capsedge.errors import CapsedgeError
from capsedge.runtime.files.writing import write_bytes
from tests.conformance.backends import Torch
from tests.conformance.cases import OUTPUTS, Case
from tests.native import cuda_library

ROUNDS = 10
SECONDS = 0.05  # of one round, about
ATOL, RTOL = 1e-3, 1e-3  # against torch in FP32, which has rounding errors of its own
KERNELS, EAGER, COMPILED = "capsedge kernels", "torch eager", "torch.compile max-autotune"


def layers(batches: list[int]) -> Iterator[tuple[int, Layer]]:
    """Routing layers of the published models."""
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


def milliseconds(call: Callable[[], object]) -> dict[str, float]:
    """Median, best and worst time of a call on the current stream."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def take(calls: int) -> float:
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / calls

    return in_rounds(take)


def in_rounds(take: Callable[[int], float]) -> dict[str, float]:
    """Median, best and worst time of a call in milliseconds.

    Args:
        take: the milliseconds of a call, of so many in a row.
    """
    take(3)
    calls = max(1, math.ceil(1e3 * SECONDS / max(take(1), 1e-3)))
    times = [take(calls) for _ in range(ROUNDS)]
    return {
        "median_ms": float(np.median(times)),
        "min_ms": min(times),
        "max_ms": max(times),
        "calls": calls,
    }


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph, as a runtime would launch it."""
    import torch

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def floors() -> dict[str, float]:
    """Multiply-adds and bytes a second of this GPU."""
    import torch

    size = 8192
    a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
    product = milliseconds(lambda: torch.mm(a, b))["min_ms"]
    source = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    copy = milliseconds(lambda: target.copy_(source))["min_ms"]
    return {
        "multiply_adds_per_second": size**3 / (product * 1e-3),
        "bytes_per_second": 2 * source.nbytes / (copy * 1e-3),
    }


def guarded(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A measurement, or why there is none."""
    import torch

    try:
        return measure()
    except torch.cuda.OutOfMemoryError:
        return {"failed": "out of memory"}
    except Exception as error:  # a peer's failure is a result of the table, in its own words
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    finally:
        torch.cuda.empty_cache()


def operator_row(
    batch: int, layer: Layer, rates: dict[str, float], compiled: bool
) -> dict[str, Any]:
    """One layer through every peer."""
    import torch

    path = cuda_library.gpu_library()
    if path is None:
        sys.exit("the CUDA kernels are not built: `make cuda`")
    library = cuda_library.bind(path)
    case = Case(layer.operator, {}, layer.attributes)
    tensors = {k: torch.from_numpy(x).cuda() for k, x in layer.inputs.items()}

    def eager() -> tuple[Any, ...]:
        found = Torch._call(case, tensors)
        return tuple(found[: len(OUTPUTS[layer.operator])])

    def kernels() -> dict[str, Any]:
        call, outputs = cuda_library.prepare(
            library, cuda_library.Gpu(), layer.operator, layer.attributes, layer.inputs
        )
        call()
        torch.cuda.synchronize()
        try:
            with torch.no_grad():
                wanted = eager()
        except torch.cuda.OutOfMemoryError:
            return {**milliseconds(graphed(call)), "compared": "torch ran out of memory"}
        worst = max(
            float(((x - w).abs() / (ATOL + RTOL * w.abs())).max())
            for x, w in zip(outputs, wanted, strict=True)
        )
        del wanted
        if not worst <= 1:
            return {"failed": f"differs from torch by {worst:.3g} times the tolerance"}
        return {**milliseconds(graphed(call)), "compared": f"{worst:.3g} of the tolerance"}

    def peer(function: Callable[[], object]) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            with torch.no_grad():
                return milliseconds(function)

        return run

    times = {KERNELS: guarded(kernels), EAGER: guarded(peer(eager))}
    if compiled:
        times[COMPILED] = guarded(peer(torch.compile(eager, mode="max-autotune")))
    arithmetic = 1e3 * layer.multiply_adds / rates["multiply_adds_per_second"]
    traffic = 1e3 * layer.bytes / rates["bytes_per_second"]
    return {
        "layer": layer.name,
        "operator": layer.operator,
        "batch": batch,
        "times": times,
        "floor_ms": max(arithmetic, traffic),
        "floor_of": "arithmetic" if arithmetic > traffic else "traffic",
    }


def model_rows(model: str, batches: list[int], folder: Path) -> Iterator[dict[str, Any]]:
    """A whole model through every peer that is here."""
    import torch

    from capsedge.exporters.export import export
    from capsedge.models import build, get_config

    name, _, iterations = model.partition(":")
    torch.manual_seed(0)
    network = build(get_config(name), iterations=int(iterations)).eval()
    file = folder / f"{name}-{iterations}.onnx"
    export(network, file)
    network = network.cuda()
    shape = (network.config.preprocessing.channels, network.config.preprocessing.height,
             network.config.preprocessing.width)  # fmt: skip
    for batch in batches:
        images = torch.randn(batch, *shape, device="cuda")

        def eager(images: Any = images) -> object:
            with torch.no_grad():
                return network(images)

        times = {EAGER: guarded(lambda run=eager: milliseconds(run))}
        compiled = torch.compile(network, mode="max-autotune")

        def fast(images: Any = images, compiled: Any = compiled) -> object:
            with torch.no_grad():
                return compiled(images)

        times[COMPILED] = guarded(lambda run=fast: milliseconds(run))
        times["ONNX Runtime, CUDA"] = guarded(lambda b=batch: on_provider(file, b, shape))
        for plugin in ("native", "fused"):
            times[f"TensorRT, {plugin}"] = guarded(
                lambda p=plugin, b=batch, x=images: on_tensorrt(file, folder, p, b, x)
            )
        yield {"model": model, "batch": batch, "times": times}


def on_provider(file: Path, batch: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """ONNX Runtime with its CUDA provider; input and output stay on the GPU."""
    import onnxruntime

    import capsedge
    from capsedge.runtime.backends.onnxruntime_backend import OnnxRuntimeBackend

    backend = capsedge.load(file, device="cuda").backend
    assert isinstance(backend, OnnxRuntimeBackend)
    session = backend.session
    image = np.random.default_rng(0).standard_normal((batch, *shape), dtype=np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input(
        session.get_inputs()[0].name, onnxruntime.OrtValue.ortvalue_from_numpy(image, "cuda", 0)
    )
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda")

    def take(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return 1e3 * (time.perf_counter() - start) / calls

    return in_rounds(take)


def on_tensorrt(file: Path, folder: Path, plugin: str, batch: int, images: Any) -> dict[str, Any]:
    """A TensorRT engine through the session, its input and outputs on the GPU."""
    import capsedge
    from capsedge.exporters.tensorrt.build import BuildOptions
    from capsedge.exporters.tensorrt.build import write_engine as build

    target = folder / f"{file.stem}-{plugin}-{batch}.engine"
    options = BuildOptions(plugin=plugin, batch=(batch,) * 3, timing_cache=folder / "timings")
    build(file, target, options, lambda *_: None)
    session = capsedge.load(target)
    given = {session.inputs[0].name: images}

    def take(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            session.run_on_device(given)
        return 1e3 * (time.perf_counter() - start) / calls

    return in_rounds(take)


def markdown(document: dict[str, Any]) -> str:
    """The document as two tables."""
    lines = [
        f"{document['gpu']}, {document['versions']}: "
        f"{document['floors']['multiply_adds_per_second'] / 1e12:.1f} trillion FP32 multiply-adds and "
        f"{document['floors']['bytes_per_second'] / 1e9:.0f} GB a second",
        "",
        "| layer | batch | kernels ms | floor ms | of | kernels / floor | eager / kernels "
        "| compile / kernels |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in document["operators"]:
        mine = row["times"][KERNELS].get("median_ms")
        cells = [row["layer"], str(row["batch"])]
        cells += [f"{mine:.4f}" if mine else row["times"][KERNELS]["failed"]]
        cells += [f"{row['floor_ms']:.4f}", row["floor_of"]]
        cells += [f"{mine / row['floor_ms']:.2f}" if mine else "-"]
        cells += [
            _ratio(row["times"].get(peer, {"failed": "-"}), mine) for peer in (EAGER, COMPILED)
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for row in document["models"]:
        shown = "; ".join(
            f"{peer} {t['median_ms']:.3f} ms" if "median_ms" in t else f"{peer}: {t['failed']}"
            for peer, t in row["times"].items()
        )
        lines.append(f"\n{row['model']}, batch {row['batch']}: {shown}")
    return "\n".join(lines)


def _ratio(peer: dict[str, Any], mine: float | None) -> str:
    if "failed" in peer:
        return str(peer["failed"])
    return f"{peer['median_ms'] / mine:.1f}" if mine else "-"


def main() -> None:
    """Print the tables; write JSON where asked, after every part, so that an interrupted run is not lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write everything there too")
    parser.add_argument("--batches", default="1,32,128,256")
    parser.add_argument("--filter", default="", help="only layers with this in their name")
    parser.add_argument("--skip-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--skip-models", action="store_true", help="operators only")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU here")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    batches = [int(b) for b in options.batches.split(",")]
    document: dict[str, Any] = {
        "machine": machine(),
        "gpu": torch.cuda.get_device_name(),
        "versions": f"torch {torch.__version__}, CUDA {torch.version.cuda}",
        "command": " ".join(sys.argv),
        "floors": floors(),
        "operators": [],
        "models": [],
    }

    def save() -> None:
        if options.output:
            write_bytes(options.output, (json.dumps(document, indent=1) + "\n").encode())

    for batch, layer in layers(batches):
        if options.filter in layer.name:
            row = operator_row(batch, layer, document["floors"], not options.skip_compile)
            document["operators"].append(row)
            print(f"{layer.name}, batch {batch}: {row['times']}", file=sys.stderr, flush=True)
            save()
    if not options.skip_models:
        with tempfile.TemporaryDirectory() as folder:
            for model in MODELS:
                for row in model_rows(model, [b for b in batches if b != 128], Path(folder)):
                    document["models"].append(row)
                    save()
    print(markdown(document))


if __name__ == "__main__":
    try:
        main()
    except CapsedgeError as error:
        sys.exit(str(error))
