"""CUDA graphs of sessions in ONNX Runtime's own CUDA provider, on the libcudart that executes PTX.

    python -m tests.runtime.graphs_on_provider

Every model is one node of a bundled model, with the values that the whole model gives it. Prints JSON: for
each operator, what was found.
"""

# ruff: noqa: E402 (the provider comes before anything imports another ONNX Runtime)

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tools.ptx import provider

provider.use()

import onnxruntime

from capsedge.runtime.backends.backend import ModelFile
from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.backends.device_array import DeviceArray
from capsedge.runtime.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend
from capsedge.runtime.runtime_options import RuntimeOptions
from tests.conftest import ROOT

CASES = (
    ("digits-dynamic", "Squash"),
    ("digits-dynamic", "DynamicRouting"),
    ("digits-em", "EMRouting"),
    ("digits-attention", "AttentionRouting"),
)
Arrays = dict[str, NDArray[Any]]


def one_node(name: str, operator: str) -> tuple[bytes, list[str], onnx.ModelProto]:
    """A model of one node, the names of its inputs, and the whole model with those as outputs."""
    whole = onnx.load(ROOT / "capsedge" / "zoo" / f"{name}.onnx")
    node = next(n for n in whole.graph.node if n.op_type == operator)
    weights = {i.name: i for i in whole.graph.initializer}
    missing = [i for i in node.input if i and i not in weights]
    del whole.graph.output[:]
    names = [*missing, *node.output]
    whole.graph.output.extend(
        helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        whole.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (image,) = session.get_inputs()
    found = session.run(names, {image.name: np.zeros((3, *image.shape[1:]), np.float32)})
    ports = [
        helper.make_tensor_value_info(
            n, TensorProto.FLOAT, [k if s == 3 and not at else s for at, s in enumerate(value.shape)]
        )
        for n, value in zip(names, found, strict=True)
        for k in ["N"]
    ]  # fmt: skip
    used = [weights[i] for i in node.input if i in weights]
    graph = helper.make_graph([node], "one", ports[: len(missing)], ports[len(missing) :], used)
    model = helper.make_model(
        graph, opset_imports=list(whole.opset_import), functions=list(whole.functions),
        ir_version=whole.ir_version,
    )  # fmt: skip
    return model.SerializeToString(), missing, whole


def values(whole: onnx.ModelProto, missing: Sequence[str], batch: int, seed: int) -> Arrays:
    """What the whole model gives the node for random images."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        whole.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (image,) = session.get_inputs()
    random = np.random.default_rng(seed).random((batch, *image.shape[1:]), np.float32)
    return dict(zip(missing, session.run(list(missing), {image.name: random}), strict=True))


class Launches:
    """Kernels that the stand-in launched since the last call."""

    def __init__(self) -> None:
        self._cudart = ctypes.CDLL("libcudart.so.13", mode=ctypes.RTLD_GLOBAL)
        self._cudart.ptx_counts.restype = self._cudart.ptx_fault.restype = ctypes.c_char_p

    def __call__(self) -> int:
        count = len(json.loads(self._cudart.ptx_counts()))
        self._cudart.ptx_reset()
        return count

    @property
    def fault(self) -> str:
        """The first wrong access of a kernel; empty if there is none."""
        return str(self._cudart.ptx_fault().decode())


def same(found: Arrays, wanted: Arrays) -> bool:
    return all(np.array_equal(found[name], wanted[name]) for name in wanted)


def on_device(backend: OnnxRuntimeCudaBackend, feeds: Arrays, out: Arrays) -> Arrays:
    """A call with arrays in memory of the GPU; one output is written to memory of the caller."""
    cuda, given = load_cuda(), dict[str, DeviceArray]()
    with cuda.on(0):
        stream = cuda.create_stream()
        for name, array in {**feeds, **out}.items():
            address = cuda.allocate(array.nbytes)
            host = np.ascontiguousarray(array)
            cuda.to_device(address, host.ctypes.data, host.nbytes, stream)
            cuda.synchronize(stream)
            given[name] = DeviceArray(address, array.shape, array.dtype.name, 0)
        result = backend.run_on_device(
            {name: given[name] for name in feeds}, {name: given[name] for name in out}, stream
        )
        found = {}
        for name, array in result.items():
            found[name] = np.empty(array.shape, array.dtype)
            cuda.to_host(found[name].ctypes.data, array.address, array.size, stream)
            cuda.synchronize(stream)
    return found


def checks(name: str, operator: str) -> Iterator[tuple[str, Any]]:
    """What was found for an operator, by name."""
    model, missing, whole = one_node(name, operator)
    launches = Launches()

    def opened(graphs: bool | None) -> OnnxRuntimeCudaBackend:
        how = RuntimeOptions(device="cuda", ops="fused", threads=1, graphs=graphs)
        backend = OnnxRuntimeCudaBackend.open(ModelFile(Path(f"{operator}.onnx"), model), how)
        assert isinstance(backend, OnnxRuntimeCudaBackend)
        return backend

    plain, graphs = opened(False), opened(True)
    names = [port.name for port in plain.outputs]
    feeds = {(n, s): values(whole, missing, n, s) for n, s in ((2, 0), (2, 1), (5, 2))}
    wanted = {key: plain.run(each, names) for key, each in feeds.items()}
    launches()
    counts, equal = [], []
    for key in ((2, 0), (2, 0), (2, 0), (2, 1), (5, 2), (5, 2), (5, 2), (2, 0)):
        equal.append(same(graphs.run(feeds[key], names), wanted[key]))
        counts.append(launches())
    yield "launches", [count / counts[0] for count in counts]
    yield "bits equal", all(equal)
    free = load_cuda().free_memory()
    for _ in range(20):
        graphs.run(feeds[2, 0], names)
    yield "bytes more after 20 replays", free - load_cuda().free_memory()
    yield "reason", graphs.no_graph_reason
    yield "captured", graphs.captured
    found = [on_device(each, feeds[2, 1], {names[0]: wanted[2, 0][names[0]]})
             for each in (plain, graphs)]  # fmt: skip
    yield "bits equal on the device", all(same(each, wanted[2, 1]) for each in found)
    launches()
    with ThreadPoolExecutor(4) as pool:
        keys = [(2, 0), (2, 1), (5, 2), (2, 0)]
        several = list(pool.map(lambda k: [same(graphs.run(feeds[k], names), wanted[k])
                                           for _ in range(3)], keys))  # fmt: skip
    yield "bits equal in threads", all(map(all, several))
    yield "reason after threads", graphs.no_graph_reason
    yield "fault", launches.fault
    plain.close()
    graphs.close()


def main() -> None:
    """Print what was found."""
    print(json.dumps({operator: dict(checks(name, operator)) for name, operator in CASES}))


if __name__ == "__main__":
    main()
