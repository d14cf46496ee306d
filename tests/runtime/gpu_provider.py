"""ONNX Runtime's CUDA provider under capsedge: ``python -m tests.runtime.gpu_provider RESULT.json``.

The zoo's models against the CPU: with kernels and with function bodies, with and without CUDA graphs, from
one thread and from several; and what a session adds to the time. Needs a GPU, onnxruntime-gpu and the
libraries that it asks for (cuDNN and cuBLAS; torch brings them), and capsedge-cuda for the kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import capsedge
from capsedge.errors import CapsedgeError
from capsedge.runtime.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend
from capsedge.runtime.files.writing import write_bytes
from capsedge.runtime.zoo import MODELS, zoo_model
from tests.conftest import ROOT

SAMPLES = sorted((ROOT / "capsedge" / "zoo" / "samples").glob("*.png"))
BATCHES = (1, 3, 32, 100)
LIMIT = 1e-4  # of the largest value of an output: FP32 in another order of sums
THREADS, RUNS = 4, 20
CALLS = 3  # of a batch size: the second is captured, the third replays
WAYS = tuple((ops, graphs) for ops in ("fused", "portable") for graphs in (False, True))


def inputs(session: capsedge.Session, count: int) -> dict[str, NDArray[Any]]:
    """Sample images and noise, prepared: ``[count, C, H, W]``."""
    random = np.random.default_rng(count)
    samples = np.stack([session.prepare(path) for path in SAMPLES])[:count]
    noise = random.random((count - len(samples), *samples.shape[1:]), dtype=np.float32)
    return {session.backend.inputs[0].name: np.concatenate([samples, noise.astype(samples.dtype)])}


def difference(found: dict[str, NDArray[Any]], wanted: dict[str, NDArray[Any]]) -> float:
    """The largest, relative to the largest value of its output."""
    worst = 0.0
    for name, right in wanted.items():
        scale = max(1e-6, float(np.abs(right).max(initial=0)))
        worst = max(worst, float(np.abs(found[name] - right).max(initial=0)) / scale)
    return worst


def checks(path: Path, ops: str, graphs: bool) -> Iterator[tuple[str, Any]]:
    """What was found for a model, by name; a word that begins with "wrong" is a failure."""
    cpu = capsedge.load(path, ops="portable")
    try:
        gpu = capsedge.load(path, device="cuda", ops=ops, graphs=graphs)
    except CapsedgeError as error:
        yield "refused", " ".join(str(error).replace(str(path), path.name).splitlines())
        return
    yield "operators", gpu.backend.ops if gpu.backend.ops == ops else f"wrong: {gpu.backend.ops}"
    for count in BATCHES:
        feeds = inputs(cpu, count)
        wanted = cpu.run(feeds)
        first = gpu.run(feeds)
        for _ in range(CALLS - 1):
            found = gpu.run(feeds)
        if any(not np.array_equal(found[key], first[key]) for key in first):
            yield f"repeated at {count}", f"wrong: other bits, by {difference(found, first):.3g}"
        kept = {key: value.copy() for key, value in found.items()}
        again = gpu.run({key: np.zeros_like(value) for key, value in feeds.items()})
        if any(not np.array_equal(found[key], kept[key], equal_nan=True) for key in kept):
            yield "reuse", f"wrong: the next call overwrote an answer of {count} images"
        del again
        worst = difference(found, wanted)
        yield (
            f"difference at {count}",
            float(f"{worst:.2g}") if worst <= LIMIT else f"wrong: {worst:.3g}",
        )
    yield "graphs", graphs(gpu, inputs(cpu, 3))
    found, right = ([answer(session, path) for path in SAMPLES] for session in (gpu, cpu))
    yield "answers", "equal" if found == right else f"wrong: {found}, not {right}"
    yield "threads", threads(gpu, cpu)
    if graphs:
        yield "graphs", gpu.backend.no_graph_reason or f"{gpu.backend.captured} captured"  # type: ignore[attr-defined]
    yield "times", {str(count): times(gpu, inputs(cpu, count)) for count in (1, 32)}
    gpu.close()


def answer(session: capsedge.Session, path: Path) -> str | tuple[int, ...]:
    """The class of an image; of a segmentation, the pixels of each class."""
    (found,) = session.predict(path)
    return tuple(area.pixels for area in found.areas) if found.mask is not None else found.label


def graphs(gpu: capsedge.Session, feeds: dict[str, NDArray[Any]]) -> str:
    """Whether calls replay graphs, with the bits of a session without them."""
    backend = gpu.backend
    assert isinstance(backend, OnnxRuntimeCudaBackend)
    with capsedge.load(gpu.path, device="cuda", graphs=False) as without:
        wanted = without.run(feeds)
    worst = max(difference(gpu.run(feeds), wanted) for _ in range(5))
    if worst > LIMIT or backend.no_graph_reason or not backend.captured:
        return f"wrong: {worst:.3g}, {backend.captured} captured; {backend.no_graph_reason}"
    return f"{backend.captured} shapes captured; from the session without: {worst:.3g}"


def threads(gpu: capsedge.Session, cpu: capsedge.Session) -> str:
    """Several threads get the answers of their own inputs, at batches that differ."""
    feeds = [inputs(cpu, count) for count in (1, 5, 8, 17)[:THREADS]]
    wanted = [cpu.run(each) for each in feeds]

    def work(number: int) -> float:
        return max(difference(gpu.run(feeds[number]), wanted[number]) for _ in range(RUNS))

    with ThreadPoolExecutor(THREADS) as pool:
        worst = max(pool.map(work, range(THREADS)))
    return f"{THREADS} at once, {worst:.3g}" if worst <= LIMIT else f"wrong: {worst:.3g}"


def times(gpu: capsedge.Session, feeds: dict[str, NDArray[Any]]) -> dict[str, float]:
    """Milliseconds per call (median), of the session, without graphs, and of ONNX Runtime alone; in turns."""
    assert isinstance(gpu.backend, OnnxRuntimeCudaBackend)
    without = capsedge.load(gpu.path, device="cuda", graphs=False)
    plain, names = gpu.backend.session, [port.name for port in gpu.backend.outputs]
    ways: dict[str, Callable[[], Any]] = {
        "session_ms": lambda: gpu.run(feeds),
        "without_graphs_ms": lambda: without.run(feeds),
        "onnxruntime_ms": lambda: plain.run(names, feeds),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(60):
        for way, call in ways.items():
            start = time.perf_counter()
            call()
            if turn >= 10:
                found[way].append(1e3 * (time.perf_counter() - start))
    return {way: round(float(np.median(each)), 4) for way, each in found.items()}


def main() -> int:
    """Write what was found; exit code 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("result", type=Path)
    target = parser.parse_args().result
    found: dict[str, dict[str, Any]] = {}
    for name in MODELS:
        path = zoo_model(name)
        assert path is not None
        for ops, graphs in WAYS:
            row = f"{name}, {ops}{', graph' if graphs else ''}"
            found[row] = dict(checks(path, ops, graphs))
            print(row, json.dumps(found[row]), file=sys.stderr)
    write_bytes(target, (json.dumps({"provider": found}, indent=1) + "\n").encode())
    wrong = [f"{name}: {key}" for name, row in found.items() for key, value in row.items()
             if str(value).startswith("wrong")]  # fmt: skip
    print("; ".join(wrong) or "all right", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
