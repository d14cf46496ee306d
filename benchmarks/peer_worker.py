"""One peer in a process of its own: loads, answers, times itself. Driven by peers.py over its pipes.

A process a peer keeps memory apart and lets the driver interleave the peers' rounds. Every line in and out is
one JSON document.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Outputs = dict[str, NDArray[Any]]
Run = Callable[[NDArray[np.float32]], Outputs]


def _capsedge(path: Path, threads: int, ops: str) -> tuple[Run, str]:
    import onnxruntime

    import capsedge

    session = capsedge.load(path, threads=threads, ops=ops)
    return session.run, f"capsedge {capsedge.__version__}, onnxruntime {onnxruntime.__version__}"


def _onnxruntime(path: Path, threads: int) -> tuple[Run, str]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return (
        lambda x: dict(zip(names, session.run(names, {"images": x}), strict=True)),
        f"onnxruntime {onnxruntime.__version__}",
    )


def _openvino(path: Path, threads: int, precision: str) -> tuple[Run, str]:
    import openvino

    core = openvino.Core()
    config: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if precision != "default":
        config["INFERENCE_PRECISION_HINT"] = precision
    compiled = core.compile_model(str(path), "CPU", config)
    request = compiled.create_infer_request()

    # A tensor may carry other names beside the output's.
    outputs = {
        n: o for o in compiled.outputs for n in ("lengths", "logits", "poses") if n in o.names
    }

    def run(x: NDArray[np.float32]) -> Outputs:
        request.infer({"images": x})
        return {n: request.get_tensor(o).data for n, o in outputs.items()}

    used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    return run, f"openvino {openvino.__version__.split('-')[0]}, {used}"


def torch_model(checkpoint: Path, threads: int, compiled: bool) -> tuple[Run, str]:
    """A checkpoint in PyTorch, eager or through ``torch.compile``."""
    import torch

    from capsedge.checkpoint import load_checkpoint
    from capsedge.ops import attention_routing, dynamic_routing, em_routing, squash

    torch.set_num_threads(threads)
    # The peer gets the operators' definitions in plain PyTorch, which a compiler can fuse, instead
    # of the registered operators, which it cannot look into.
    for function in (attention_routing, dynamic_routing, em_routing, squash):
        module = sys.modules[function.__module__]
        module._op = module._define  # type: ignore[attr-defined]
    model: Any = load_checkpoint(checkpoint)
    score = model.score_name
    if compiled:
        model = torch.compile(model, fullgraph=True, dynamic=False)

    def run(x: NDArray[np.float32]) -> Outputs:
        with torch.inference_mode():
            out = model(torch.from_numpy(x))
        return {score: out.scores.numpy(), "poses": out.poses.numpy()}

    return run, f"torch {torch.__version__}"


def load(peer: str, folder: Path, threads: int) -> tuple[Run, str]:
    """The peer's function and what it is, with its version."""
    auto, plain, checkpoint = (
        folder / name for name in ("auto.onnx", "plain.onnx", "model.safetensors")
    )
    rewritten = folder / "rewritten.onnx"
    return {
        "capsedge fused": lambda: _capsedge(auto, threads, "fused"),
        "capsedge portable": lambda: _capsedge(rewritten, threads, "portable"),
        "onnxruntime, plain export": lambda: _onnxruntime(plain, threads),
        "openvino fp32, plain export": lambda: _openvino(plain, threads, "f32"),
        "openvino default, plain export": lambda: _openvino(plain, threads, "default"),
        "openvino fp32, rewritten export": lambda: _openvino(rewritten, threads, "f32"),
        "torch eager": lambda: torch_model(checkpoint, threads, compiled=False),
        "torch.compile": lambda: torch_model(checkpoint, threads, compiled=True),
    }[peer]()


def _peak() -> int:
    """Peak resident memory of this process in bytes.

    Not getrusage's: that one starts with what the parent had when it made this process.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def _resident() -> int:
    """Resident memory of this process now, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    """Answer the driver until its pipe closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("peer")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    run, version = load(options.peer, options.folder, options.threads)
    x = np.load(options.folder / "input.npy")[: options.batch]
    loaded = _resident()
    outputs = run(x)
    answer = options.folder / f"answer-{options.peer.replace(' ', '_')}.npz"
    np.savez(answer, **{k: np.asarray(v) for k, v in outputs.items()})
    first = {"version": version, "loaded": loaded, "answer": str(answer)}
    print(json.dumps(first), flush=True)
    for line in sys.stdin:
        seconds = []
        # Caches and clocks are still the last peer's.
        warm = time.perf_counter() + 0.1 * float(line)
        while time.perf_counter() < warm:
            run(x)
        until = time.perf_counter() + float(line)
        while not seconds or time.perf_counter() < until:
            start = time.perf_counter()
            run(x)
            seconds.append(time.perf_counter() - start)
        print(json.dumps({"seconds": seconds, "peak": _peak()}), flush=True)


if __name__ == "__main__":
    main()
