"""Measure the limits of this machine: multiply-adds, memory traffic, and the cost of timing.

A chain of operators on one number shows what timing an operator costs; a matrix product shows what
the machine can do. The device has no ``onnx`` package, so both files are written field by field.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.backends.backend import Feeds
from capsedge.runtime.backends.onnxruntime_backend import ProfiledSession
from capsedge.runtime.backends.onnxruntime_session import SessionSettings
from capsedge.runtime.files.protobuf import length_delimited, message, number_field
from capsedge.spec import onnx_wire

# --- Two tiny ONNX files ---

_FLOAT = 1
_IR_VERSION, _OPSET = 8, 13


def chain(length: int) -> bytes:
    """``length`` absolute values in a row, of a tensor ``x`` with one element."""
    names = ["x", *(f"v{k}" for k in range(1, length)), "y"]
    nodes = [_node("Abs", [a], [b]) for a, b in pairwise(names)]
    return _model(nodes, [_value("x", (1,))], [_value("y", (1,))])


def matrix_product(size: int) -> bytes:
    """``y = a b`` with square matrices."""
    shape = (size, size)
    node = _node("MatMul", ["a", "b"], ["y"])
    return _model([node], [_value("a", shape), _value("b", shape)], [_value("y", shape)])


def _model(nodes: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes]) -> bytes:
    graph = message(
        [
            *((onnx_wire.GRAPH_NODE, node) for node in nodes),
            (onnx_wire.GRAPH_NAME, b"probe"),
            *((onnx_wire.GRAPH_INPUT, value) for value in inputs),
            *((onnx_wire.GRAPH_OUTPUT, value) for value in outputs),
        ]
    )
    opset = number_field(2, _OPSET)
    return number_field(onnx_wire.MODEL_IR, _IR_VERSION) + message(
        [(onnx_wire.MODEL_GRAPH, graph), (onnx_wire.MODEL_OPSET, opset)]
    )


def _node(kind: str, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    return message(
        [
            *((onnx_wire.NODE_INPUT, name.encode()) for name in inputs),
            *((onnx_wire.NODE_OUTPUT, name.encode()) for name in outputs),
            (onnx_wire.NODE_TYPE, kind.encode()),
        ]
    )


def _value(name: str, shape: Sequence[int]) -> bytes:
    dimensions = message((1, number_field(1, size)) for size in shape)
    tensor = number_field(1, _FLOAT) + length_delimited(2, dimensions)
    return message([(1, name.encode()), (2, length_delimited(1, tensor))])


# --- The measurements ---

MATRIX = 384  # side; its three matrices stay in the caches, and the result needs no new pages
MATRIX_SECONDS, COPY_SECONDS = 0.4, 0.3
LEAST = 10  # attempts, even on a busy machine
COPY_FLOATS = 16 << 20  # 64 MiB are copied to 64 MiB
CHAIN = 128
CHAIN_RUNS, CHAIN_LEAST, CHAIN_SECONDS = 200, 10, 2.0


@dataclass(frozen=True)
class Peaks:
    """The best measurements, with as many threads as the model uses.

    Attributes:
        operations: FP32 operations per second (a multiply-add is two) of a large matrix product in ONNX
            Runtime.
        bandwidth: bytes per second read and written by a copy too large for the caches.
    """

    operations: float
    bandwidth: float
    threads: int


def measure_peaks(threads: int) -> Peaks:
    """Measure both; takes less than a second."""
    return Peaks(_operations(threads), _bandwidth(threads), threads)


def _operations(threads: int) -> float:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(
        matrix_product(MATRIX), options, providers=["CPUExecutionProvider"]
    )
    a = np.full((MATRIX, MATRIX), 0.5, np.float32)
    return 2.0 * MATRIX**3 / _best(lambda: session.run(None, {"a": a, "b": a}), MATRIX_SECONDS)


def _bandwidth(threads: int) -> float:
    source, target = np.ones(COPY_FLOATS, np.float32), np.zeros(COPY_FLOATS, np.float32)
    parts = [
        (target[k], source[k])
        for k in (
            slice(i * COPY_FLOATS // threads, (i + 1) * COPY_FLOATS // threads)
            for i in range(threads)
        )
    ]
    with ThreadPoolExecutor(
        threads
    ) as pool:  # numpy releases the interpreter's lock while it copies
        seconds = _best(lambda: list(pool.map(lambda p: np.copyto(*p), parts)), COPY_SECONDS)
    return 2.0 * source.nbytes / seconds


def _best(run: Any, seconds: float) -> float:
    best, until, count = np.inf, time.perf_counter() + seconds, 0
    while count < LEAST or time.perf_counter() < until:
        count += 1
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return float(best)


@dataclass(frozen=True)
class Overheads:
    """Time that operators do not account for.

    Attributes:
        call_ms: time of calling ONNX Runtime with one input and fetching one output.
        timing_us: time that its profiler adds to the reported time of an operator.
    """

    call_ms: float
    timing_us: float


def overheads(threads: int) -> Overheads:
    """Measure both, with a chain of operators that do nearly nothing.

    The profiler's own bookkeeping is included in the times that it reports, several microseconds per
    operator. The chain is run with and without it; the difference per operator is the cost. The real time
    of an operator, including its dispatch, is not subtracted. A chain of one operator gives the cost of the
    call.
    """
    import onnxruntime as ort

    x = {"x": np.ones(1, np.float32)}
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    one, many = (
        ort.InferenceSession(chain(length), options, providers=["CPUExecutionProvider"])
        for length in (1, CHAIN + 1)
    )
    short, long = np.empty(CHAIN_RUNS), np.empty(CHAIN_RUNS)
    with ProfiledSession(
        chain(CHAIN + 1), SessionSettings(threads), x, lambda: many.run(None, x), keep_graph=False
    ) as session:
        until, count = time.perf_counter() + CHAIN_SECONDS, 0
        while count < CHAIN_RUNS and (count < CHAIN_LEAST or time.perf_counter() < until):
            short[count] = _seconds(one, x)
            long[count] = _seconds(many, x)
            session.profiled()
            count += 1
        runs = session.finish().runs
    declared = np.array([np.mean([event.duration for event in run]) for run in runs])
    short, long = short[:count], long[:count]
    dispatch = midmean(long - short) / CHAIN
    return Overheads(
        call_ms=1e3 * max(0.0, midmean(short) - dispatch),
        timing_us=max(0.0, midmean(declared) - 1e6 * dispatch),
    )


def _seconds(session: Any, feeds: Feeds) -> float:
    start = time.perf_counter()
    session.run(None, feeds)
    return time.perf_counter() - start


def midmean(values: NDArray[np.float64]) -> float:
    """Mean of the middle half: as robust as the median, finer than the profiler's whole microseconds."""
    ordered = np.sort(values)
    quarter = len(ordered) // 4
    return float(ordered[quarter : len(ordered) - quarter].mean())
