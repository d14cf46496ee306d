"""``FastConv`` against ONNX Runtime's own ``Conv``: ``python -m benchmarks.convolutions [--json FILE]``.

Layers, one node per file, with the largest error of both against FP64; then whole networks: the plain
export, the file as it is exported, and the same with its convolutions as ``Conv``. All run in ONNX Runtime in
one process, interleaved, and are compared by their best times. With ``--threads 1``, the time is the
processor's, which other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import capsedge
from benchmarks.common import machine
from capsedge.exporters.export_options import REWRITES
from capsedge.graph.rewrites import FAST_CONV, write_standard_convolutions
from capsedge.models import build
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.files.writing import write_bytes
from capsedge.spec.operators import DOMAIN

Arrays = NDArray[np.float32]


class Layer(NamedTuple):
    """Channels, side of the image, output channels, side of the window, stride, padding."""

    channels: int
    size: int
    outputs: int
    window: int
    stride: int
    pad: int = 0

    def __str__(self) -> str:
        padded = f", padding {self.pad}" if self.pad else ""
        return (
            f"{self.channels} to {self.outputs} channels, {self.size}x{self.size}, "
            f"{self.window}x{self.window} stride {self.stride}{padded}"
        )


LAYERS = (
    Layer(256, 20, 256, 9, 2),  # CapsNet on MNIST
    Layer(256, 24, 256, 9, 2),  # on CIFAR-10
    Layer(128, 24, 128, 9, 2),
    Layer(128, 12, 128, 5, 1, 2),
    Layer(256, 12, 256, 5, 2),
    Layer(64, 20, 64, 9, 2),  # not written by the exporter, like those below
    Layer(64, 14, 64, 5, 2, 2),
    Layer(3, 32, 256, 9, 1),
    Layer(1, 28, 256, 9, 1),
)


class Cifar(nn.Module):
    """The classic CapsNet for images of 3x32x32: two 9x9 convolutions and dynamic routing."""

    def __init__(self, width: int, types: int) -> None:
        super().__init__()
        self.types = types
        self.conv1 = nn.Conv2d(3, width, 9)
        self.primary = nn.Conv2d(width, types * 8, 9, stride=2)
        self.weight = nn.Parameter(0.05 * torch.randn(types * 64, 10, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        u = self.primary(torch.relu(self.conv1(x))).view(-1, self.types, 8, 64)
        u = capsedge.ops.squash(u.permute(0, 1, 3, 2).reshape(-1, self.types * 64, 8))
        prior, bias = torch.zeros(self.weight.shape[:2]), torch.zeros(self.weight.shape[1:3])
        v, _ = capsedge.ops.dynamic_routing(u, self.weight, prior, bias, iterations=3)
        return v.norm(dim=-1)


def session(model: bytes, threads: int, ours: bool) -> onnxruntime.InferenceSession:
    """A session, with the operator library or without."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if ours:
        options.register_custom_ops_library(str(find_library()))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def layer_file(layer: Layer, weight: Arrays, fast: bool) -> bytes:
    """A file of one node."""
    attributes: dict[str, Any] = {"strides": [layer.stride] * 2, "pads": [layer.pad] * 4}
    kind, domain = (FAST_CONV, DOMAIN) if fast else ("Conv", "")
    node = helper.make_node(kind, ["x", "w"], ["y"], domain=domain, **attributes)
    shape: list[str | int] = ["N", layer.channels, layer.size, layer.size]
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


def best_times(
    entrants: Mapping[str, onnxruntime.InferenceSession], x: Arrays, rounds: int, threads: int
) -> tuple[dict[str, float], dict[str, Arrays]]:
    """Best milliseconds of each, and its first output."""
    clock: Callable[[], float] = time.process_time if threads == 1 else time.perf_counter
    best, outputs = dict.fromkeys(entrants, float("inf")), {}
    for _ in range(rounds):
        for name, entrant in entrants.items():
            given = {entrant.get_inputs()[0].name: x}
            outputs[name] = entrant.run(None, given)[0]  # fills the caches
            for _ in range(max(1, 8 // len(x))):
                start = clock()
                entrant.run(None, given)
                best[name] = min(best[name], 1e3 * (clock() - start))
    return best, outputs


def layer_example(layer: Layer, batch: int) -> tuple[Arrays, Arrays]:
    """Weights of unit variance in the outputs, and inputs as after a ReLU."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((layer.outputs, layer.channels, layer.window, layer.window))
    weight /= (layer.channels * layer.window**2) ** 0.5
    x = rng.standard_normal((batch, layer.channels, layer.size, layer.size))
    return weight.astype(np.float32), np.maximum(x, 0).astype(np.float32)


def measure_layer(layer: Layer, batch: int, rounds: int, threads: int) -> dict[str, Any]:
    """One row."""
    stored, x = layer_example(layer, batch)
    entrants = {
        name: session(layer_file(layer, stored, name == FAST_CONV), threads, name == FAST_CONV)
        for name in ("Conv", FAST_CONV)
    }
    best, outputs = best_times(entrants, x, rounds, threads)
    exact = nn.functional.conv2d(
        torch.from_numpy(x).double(),
        torch.from_numpy(stored).double(),
        None,
        layer.stride,
        layer.pad,
    ).numpy()
    errors = {name: float(np.abs(y - exact).max()) for name, y in outputs.items()}
    return {
        "layer": str(layer), "batch": batch, "ms": best, "times_as_fast": best["Conv"] / best[FAST_CONV],
        "largest_error": errors, "largest_output": float(np.abs(exact).max()),
    }  # fmt: skip


def network_files(module: nn.Module, example: Tensor | None, folder: Path) -> dict[str, bytes]:
    """The plain export, ours, and ours with standard convolutions."""
    options: dict[str, dict[str, Any]] = {
        "plain": {"ops": "portable", "no_rewrite": tuple(REWRITES)},
        "capsedge": {},
    }
    for name, more in options.items():
        capsedge.export(module, folder / f"{name}.onnx", example=example, **more)
    ours = (folder / "capsedge.onnx").read_bytes()
    standard = onnx.load_model_from_string(ours)
    write_standard_convolutions(standard)
    return {
        "plain export": (folder / "plain.onnx").read_bytes(),
        "capsedge, Conv": bytes(standard.SerializeToString()),
        "capsedge": ours,
    }


def measure_network(
    name: str, files: Mapping[str, bytes], shape: tuple[int, ...], batch: int, args: Any
) -> dict[str, Any]:
    """One row."""
    entrants = {k: session(data, args.threads, k != "plain export") for k, data in files.items()}
    x = np.random.default_rng(0).random((batch, *shape), dtype=np.float32)
    best, _ = best_times(entrants, x, args.rounds, args.threads)
    times = {k: best["plain export"] / ms for k, ms in best.items()}
    return {"network": name, "batch": batch, "ms": best, "times_as_fast": times}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convolutions")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--layers", type=int, default=len(LAYERS), help="how many, the first ones")
    parser.add_argument("--width", type=int, default=256, help="channels of the networks; 0: none")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)

    for layer in LAYERS[: args.layers]:
        for batch in args.batches:
            add(measure_layer(layer, batch, args.rounds, args.threads))
    torch.manual_seed(0)
    networks: dict[str, tuple[nn.Module, tuple[int, ...]]] = {}
    if args.width:
        networks["CapsNet-MNIST"] = build("capsnet-mnist", iterations=3), (1, 28, 28)
        networks["CapsNet, 3x32x32"] = Cifar(args.width, args.width // 8), (3, 32, 32)
    for name, (module, shape) in networks.items():
        with tempfile.TemporaryDirectory() as folder:
            example = torch.rand(1, *shape) if isinstance(module, Cifar) else None
            files = network_files(module.eval(), example, Path(folder))
        for batch in args.batches:
            add(measure_network(name, files, shape, batch, args))
    document = {
        "machine": machine(),
        "onnxruntime": onnxruntime.__version__,
        "threads": args.threads,
    }
    if args.json:
        write_bytes(args.json, (json.dumps(document | {"rows": rows}, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
