"""Each fused CPU operator against its floor: ``python -m benchmarks.operators [--threads 2] [--json FILE]``.

The floor of a layer is the larger of two times: that of its multiply-adds at this machine's rate for
multiply-adds on registers, and that of reading its inputs, weights and outputs once each at its memory
bandwidth. Both rates are measured in the same run by capsedge/runtime/native/tests/floor.cpp, with the same
number of threads. Multiply-adds are those of the procedure: every vote once, and what routing does with it in
every iteration. Kernels compute votes several times rather than store them; that counts against them.

Layers run in ONNX Runtime with the operator library, one node per file. The best of many runs is compared
with the floor, because the floor is also a best value; the median is given too. A layer can be faster than
reading its weights from memory, since they stay in the last-level cache between runs.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import machine, statistics
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.files.writing import write_bytes
from capsedge.spec.operators import OPERATORS

ROOT = Path(__file__).resolve().parent.parent
Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Layer:
    """One node with inputs in the sizes of a published model."""

    name: str
    operator: str
    attributes: dict[str, Any]
    inputs: Arrays
    multiply_adds: float
    output_floats: int

    @property
    def bytes(self) -> int:
        """The size of inputs, weights and outputs, each counted once."""
        return sum(x.nbytes for x in self.inputs.values()) + 4 * self.output_floats


def _normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(math.prod(shape)).standard_normal(shape, dtype=np.float32)


def _squash(name: str, rows: int, size: int) -> Layer:
    attributes = {"axis": -1, "epsilon": 1e-8}
    x = _normal(rows, size)
    return Layer(name, "Squash", attributes, {"x": x}, 2.0 * x.size, x.size)


def _dynamic(name: str, n: int, i: int, j: int, pin: int, pout: int, iterations: int = 3) -> Layer:
    inputs = {
        "u": _normal(n, i, pin),
        "weight": 0.1 * _normal(i, j, pout, pin),
        "log_prior": np.zeros((i, j), np.float32),
        "bias": _normal(j, pout),
    }
    attributes = {"iterations": iterations, "leaky": 0, "epsilon": 1e-8}
    per_vote = pin + iterations + (iterations - 1)
    outputs = n * j * pout
    return Layer(name, "DynamicRouting", attributes, inputs, n * i * j * pout * per_vote, outputs)


def _em(
    name: str, n: int, side: int, kernel: int, stride: int, m: int, shared: bool = False
) -> Layer:
    c, p, iterations = 32, 16, 3
    grid = 1 if shared else (side - kernel) // stride + 1
    children = side * side * c if shared else kernel * kernel * c
    inputs: Arrays = {
        "pose": _normal(n, side, side, c, p),
        "a": (1 / (1 + np.exp(-_normal(n, side, side, c)))).astype(np.float32),
        "weight": 0.5 * _normal(kernel, kernel, c, m, 4, 4),
        "beta_u": 0.1 * _normal(m),
        "beta_a": 0.1 * _normal(m),
    }
    attributes = {
        "iterations": iterations,
        "strides": [stride, stride],
        "inverse_temperatures": [0.0005, 0.000975, 0.00142625],
        "coordinate_addition": int(shared),
        "shared": int(shared),
        "epsilon": 1e-6,
    }
    # An M-step weights a vote and adds it and its square; an E-step squares a deviation and weights it.
    per_vote = 4 + 3 * iterations + 2 * (iterations - 1)
    votes = n * grid * grid * children * m * p
    return Layer(name, "EMRouting", attributes, inputs, votes * per_vote, n * grid * grid * m * 17)


def _attention(name: str, n: int, side: int, c: int, kernel: int, stride: int, m: int) -> Layer:
    grid, p = (side - kernel) // stride + 1, 16
    inputs: Arrays = {
        "pose": _normal(n, side, side, c, p),
        "parent": _normal(n, grid, grid, m, p),
        "weight": 0.5 * _normal(kernel, kernel, c, m, 4, 4),
        "scale": _normal(p),
        "bias": _normal(p),
    }
    attributes = {
        "strides": [stride, stride],
        "matrix_pose": 1,
        "agreement_scale": 0.25,
        "epsilon": 1e-5,
    }
    outputs = n * grid * grid * m * p
    return Layer(
        name,
        "AttentionRouting",
        attributes,
        inputs,
        outputs * kernel * kernel * c * (4 + 2),
        outputs,
    )


def _self_attention(name: str, n: int, i: int, j: int, pin: int, pout: int) -> Layer:
    inputs = {
        "u": _normal(n, i, pin),
        "weight": 0.1 * _normal(i, j, pout, pin),
        "bias": 0.1 * _normal(i, j),
    }
    outputs = n * j * pout
    # A vote is summed, compared with the sum, and weighted.
    per_vote = pin + 3
    return Layer(
        name, "SelfAttentionRouting", {"epsilon": 1e-20}, inputs, i * outputs * per_vote, outputs
    )


def layers() -> Iterator[Layer]:
    """The routing layers of the published models, at batch sizes 1 and 16."""
    for n in (1, 16):
        yield _squash(f"CapsNet-MNIST primary capsules, batch {n}", n * 1152, 8)
        yield _dynamic(f"CapsNet-MNIST digit capsules, batch {n}", n, 1152, 10, 8, 16)
        yield _em(f"smallNORB convolutional capsules 14 to 6, batch {n}", n, 14, 3, 2, 32)
        yield _em(f"smallNORB convolutional capsules 6 to 4, batch {n}", n, 6, 3, 1, 32)
        yield _em(f"smallNORB class capsules, batch {n}", n, 4, 1, 1, 5, shared=True)
        yield _attention(f"Table 8 convolutional capsules 16 to 7, batch {n}", n, 16, 32, 3, 2, 32)
        yield _attention(f"Table 8 convolutional capsules 7 to 5, batch {n}", n, 7, 32, 3, 1, 32)
        yield _attention(f"Table 8 class capsules, batch {n}", n, 1, 800, 1, 1, 10)
        yield _self_attention(f"Efficient-CapsNet class capsules, batch {n}", n, 16, 10, 8, 16)
    yield _em("7x7 positions, 288 children, 32 parents, batch 1", 1, 16, 3, 2, 32)


def session_of(layer: Layer, threads: int) -> tuple[Any, Arrays]:
    """A session for the layer with its weights in the file, and its inputs."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    free = [value.name for value in OPERATORS[layer.operator].inputs if value.batched]
    outputs = ["out_pose", "out_a"] if layer.operator == "EMRouting" else ["out"]
    node = helper.make_node(
        layer.operator, list(layer.inputs), outputs, domain="capsedge", **layer.attributes
    )
    graph = helper.make_graph(
        [node],
        "layer",
        [
            helper.make_tensor_value_info(k, TensorProto.FLOAT, ["N", *x.shape[1:]])
            for k, x in layer.inputs.items()
            if k in free
        ],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in outputs],
        [numpy_helper.from_array(x, k) for k, x in layer.inputs.items() if k not in free],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("capsedge", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(str(find_library()))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session, {k: x for k, x in layer.inputs.items() if k in free}


def measure(layer: Layer, threads: int, seconds: float) -> dict[str, float]:
    """Median, spread and best of as many runs as fit into ``seconds``, but at least ten."""
    session, feed = session_of(layer, threads)
    session.run(None, feed)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 10 or time.perf_counter() < end:
        start = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - start)
    return statistics(times)


def measure_floor(program: Path, threads: int) -> dict[str, float]:
    """The machine's multiply-adds and bytes per second."""
    found = subprocess.run([program, str(threads)], capture_output=True, text=True, check=True)
    return dict(json.loads(found.stdout))


def build_floor(folder: Path) -> Path:
    """Compile floor.cpp."""
    compiler = shutil.which("c++")
    if compiler is None:
        sys.exit("no C++ compiler to measure the floor with: apt-get install g++")
    program = folder / "floor"
    native = ROOT / "capsedge" / "runtime" / "native"
    command = [
        compiler, "-std=c++17", "-O3", "-w", "-pthread", f"-I{native / 'kernels' / 'cpu'}",
        str(native / "tests" / "floor.cpp"), "-o", str(program),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return program


def run(threads: int, seconds: float, matching: str) -> dict[str, Any]:
    """Measure everything, as one document."""
    with tempfile.TemporaryDirectory() as folder:
        program = build_floor(Path(folder))
        before = measure_floor(program, threads)
        measured = [
            (layer, measure(layer, threads, seconds))
            for layer in layers()
            if matching in layer.name
        ]
        after = measure_floor(program, threads)
    rate, bandwidth = (
        max(before[k], after[k]) for k in ("multiply_adds_per_second", "bytes_per_second")
    )
    rows = []
    for layer, times in measured:
        arithmetic, traffic = 1e3 * layer.multiply_adds / rate, 1e3 * layer.bytes / bandwidth
        floor = max(arithmetic, traffic)
        rows.append(
            {
                "layer": layer.name,
                "operator": layer.operator,
                **times,
                "floor_ms": floor,
                "floor_of": "arithmetic" if arithmetic > traffic else "traffic",
                "best_over_floor": times["min_ms"] / floor,
                "median_over_floor": times["median_ms"] / floor,
            }
        )
    return {
        "machine": machine(),
        "threads": threads,
        "multiply_adds_per_second": rate,
        "bytes_per_second": bandwidth,
        "rows": rows,
    }


def markdown(document: dict[str, Any]) -> str:
    """The document as a table, with the machine described above it."""
    lines = [
        f"{document['machine']['cpu']}, {document['threads']} threads: "
        f"{document['multiply_adds_per_second'] / 1e9:.1f} billion multiply-adds and "
        f"{document['bytes_per_second'] / 1e9:.1f} GB a second",
        "",
        "| operator | layer | best ms | median ms | floor ms | of | best / floor | median / floor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['operator']} | {r['layer']} | {r['min_ms']:.3f} | {r['median_ms']:.3f} "
        f"| {r['floor_ms']:.3f} | {r['floor_of']} | {r['best_over_floor']:.2f} "
        f"| {r['median_over_floor']:.2f} |"
        for r in document["rows"]
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table; write JSON if requested."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each layer")
    parser.add_argument("--filter", default="", help="only layers with this in their name")
    parser.add_argument("--json", type=Path, help="write everything there too")
    options = parser.parse_args()
    if find_library() is None:
        sys.exit("the native library is not built: pip install -e . with a C++ compiler")
    document = run(options.threads, options.seconds, options.filter)
    print(markdown(document))
    if options.json:
        write_bytes(options.json, (json.dumps(document, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
