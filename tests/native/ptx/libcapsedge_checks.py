"""What libcapsedge does on ONNX Runtime's own CUDA provider, on executed PTX.

``python -m tests.native.ptx.libcapsedge_checks NAME``, each in a process of its own, in which Python's ONNX
Runtime is not: both have one provider library between them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.backends.native_library import KERNELS_VARIABLE
from capsedge.runtime.zoo import zoo_model
from tests.conformance.cases import CASES, Case, make
from tests.conformance.inputs import batched
from tests.conformance.native import one_node
from tests.conformance.provider import executor
from tests.conformance.ptx import architecture
from tests.native import libcapsedge
from tests.native.libcapsedge import ENVIRONMENT, UNSUPPORTED, USAGE, Failed, Session
from tools.ptx import build, provider

Arrays = dict[str, NDArray[Any]]
OPERATORS = ("Squash", "DynamicRouting", "EMRouting", "AttentionRouting", "QuantizedDynamicRouting")
RESOURCES = 701  # the code of the error
RUNTIME = provider.package() / "onnxruntime" / "capi"


def model_of(operator: str, dtype: str = "float32") -> tuple[bytes, Arrays]:
    """A file of one node, and its inputs for two images; what has no batch is in the file."""
    fits = (c for c in CASES if c.operator == operator and c.kind == "normal" and not c.heavy)
    case = next(c for c in fits if c.dims.get("N", 2) == 2 and not c.options.get("history"))
    return node_of(case, dtype)


def node_of(case: Case, dtype: str = "float32") -> tuple[bytes, Arrays]:
    """The same for a case."""
    inputs = dict(make(case, dtype).inputs)
    free = batched(case.operator, inputs)
    constants = tuple(name for name in inputs if name not in free)
    return one_node(case.operator, case.attributes, inputs, constants), {
        name: np.ascontiguousarray(inputs[name]) for name in inputs if name in free
    }


def on_gpu(model: Path | bytes, ops: str = "fused", **options: Any) -> Session:
    """A session on the stand-in."""
    options = {"onnxruntime": str(RUNTIME), "provider": "cuda", **options}
    return Session(model, ops=ops, **options)


def several(feeds: Arrays, count: int) -> Arrays:
    """A batch of so many images, in which no two are alike."""
    made = {}
    for name, array in feeds.items():
        scale = np.arange(1, 1 + count, dtype=array.dtype).reshape(-1, *[1] * (array.ndim - 1))
        made[name] = np.resize(array, (count, *array.shape[1:])) * (scale / array.dtype.type(8))
    return made


def same(found: Arrays, wanted: Arrays) -> bool:
    return found.keys() == wanted.keys() and all(
        np.array_equal(found[name], wanted[name]) for name in wanted
    )


def launches() -> int:
    """Kernels that were launched since the last call."""
    count = len(executor().launches())
    executor().reset()
    return count


def results() -> None:
    """The kernels run, with the numbers of the CPU's."""
    for operator in OPERATORS:
        for dtype in ("float32", "float16"):
            model, feeds = model_of(operator, dtype)
            gpu = on_gpu(model)
            launches()
            found, wanted = gpu.run(feeds), Session(model, onnxruntime=str(RUNTIME)).run(feeds)
            assert launches(), operator
            assert gpu.describe().ops == b"fused"
            assert gpu.describe().no_kernel_reason is None
            limit = 3e-5 if dtype == "float32" else 2e-2
            for name in wanted:
                np.testing.assert_allclose(found[name], wanted[name], rtol=limit, atol=limit)
        print(operator, "right")
    assert not executor().fault()


def graphs() -> None:
    """A capture at the second call of each batch size, which is two plain runs and a replay; then replays."""
    for operator in ("Squash", "DynamicRouting", "EMRouting"):
        model, feeds = model_of(operator)
        plain, session = on_gpu(model, graphs=False), on_gpu(model, graphs=True)
        assert plain.describe().no_graph_reason == b"graphs were not requested"
        batches = {count: several(feeds, count) for count in (2, 5)}
        other = {name: array * array.dtype.type(0.5) for name, array in batches[2].items()}
        wanted = {count: plain.run(batch) for count, batch in batches.items()}
        wanted_other = plain.run(other)
        launches()
        counts = []
        for feed, right in (
            *[(batches[2], wanted[2])] * 3, (other, wanted_other), *[(batches[5], wanted[5])] * 3,
            (batches[2], wanted[2]),
        ):  # fmt: skip
            assert same(session.run(feed), right), operator
            counts.append(launches())
        assert [count / counts[0] for count in counts] == [1, 3, 1, 1, 1, 3, 1, 1]
        with load_cuda().on(0):
            free = load_cuda().free_memory()
            for _ in range(10):
                session.run(batches[2])
            assert load_cuda().free_memory() == free
        assert session.describe().no_graph_reason is None
        assert not executor().fault()


def many_shapes() -> None:
    """Eight are captured; calls of others run plainly, with the same results."""
    model, feeds = model_of("Squash")
    plain, session = on_gpu(model, graphs=False), on_gpu(model)
    for count in range(1, 11):
        batch = several(feeds, count)
        wanted = plain.run(batch)
        launches()
        counts = []
        for _ in range(3):
            assert same(session.run(batch), wanted)
            counts.append(launches())
        assert counts == ([1, 3, 1] if count <= 8 else [1, 1, 1]), count
    assert session.describe().no_graph_reason is None


def threads() -> None:
    """Four on one session, each with a batch of its own, while others open and close sessions."""
    for operator in ("DynamicRouting", "EMRouting"):
        model, feeds = model_of(operator)
        plain, session = on_gpu(model, graphs=False), on_gpu(model)
        batches = [several(feeds, 1 + k % 2) for k in range(4)]
        wanted = [plain.run(batch) for batch in batches]

        def work(
            k: int, session: Any = session, batches: Any = batches, wanted: Any = wanted, model: bytes = model
        ) -> bool:  # fmt: skip
            found = []
            for turn in range(8):
                found.append(same(session.run(batches[k]), wanted[k]))
                if turn % 4 == k:
                    on_gpu(model).close()
            return all(found)

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4))), operator
        assert session.describe().no_graph_reason is None
        assert not executor().fault()
        session.close()


class OnGpu:
    """An array in the stand-in's memory, as capsedge_run_on_stream takes it."""

    def __init__(self, name: str, array: NDArray[Any]) -> None:
        self.array, cuda = array, load_cuda()
        with cuda.on(0):
            self.address = cuda.allocate(array.nbytes)
            self._copy(cuda.to_device, self.address, array.ctypes.data)
        self.tensor = libcapsedge.Tensor(
            name.encode(), self.address, array.nbytes, libcapsedge.TYPES[array.dtype.name], array.ndim,
            (*array.shape, *[0] * (8 - array.ndim)),
        )  # fmt: skip

    def _copy(self, copy: Callable[..., None], target: int, source: int) -> None:
        cuda = load_cuda()
        stream = cuda.create_stream()
        copy(target, source, self.array.nbytes, stream)
        cuda.synchronize(stream)
        cuda.destroy_stream(stream)

    def values(self) -> NDArray[Any]:
        found = np.empty_like(self.array)
        with load_cuda().on(0):
            self._copy(load_cuda().to_host, found.ctypes.data, self.address)
        return found


def run_on_stream(
    session: Session, inputs: Sequence[Any], outputs: Sequence[Any], stream: int
) -> Any:
    """The output tensors, as the call leaves them."""
    given = (libcapsedge.Tensor * len(inputs))(*inputs)
    found = (libcapsedge.Tensor * len(outputs))(*outputs)
    libcapsedge.call(
        "capsedge_run_on_stream", session.handle, given, ctypes.c_size_t(len(given)), found,
        ctypes.c_size_t(len(found)), ctypes.c_void_p(stream),
    )  # fmt: skip
    return found


def device_memory() -> None:
    """Inputs and outputs that are on the GPU already: plainly, captured and replayed."""
    cuda = load_cuda()
    with cuda.on(0):
        stream = cuda.create_stream()
    for operator in ("DynamicRouting", "EMRouting"):
        model, feeds = model_of(operator)
        session = on_gpu(model)
        wanted = on_gpu(model, graphs=False).run(feeds)
        inputs = [OnGpu(name, array) for name, array in feeds.items()]
        for turn in range(4):
            outputs = [OnGpu(name, np.full_like(array, np.nan)) for name, array in wanted.items()]
            on = stream if turn % 2 else 0
            found = run_on_stream(
                session, [x.tensor for x in inputs], [x.tensor for x in outputs], on
            )
            for tensor, output in zip(found, outputs, strict=True):
                assert tuple(tensor.shape[: tensor.rank]) == output.array.shape
                assert tensor.bytes == output.array.nbytes
                np.testing.assert_array_equal(output.values(), wanted[tensor.name.decode()])
        small = outputs[0].tensor
        small.bytes -= 4
        for _ in range(2):
            with pytest.raises(Failed, match="has no room") as failed:
                run_on_stream(session, [x.tensor for x in inputs], [small], stream)
            assert failed.value.code == USAGE
        host = next(iter(feeds.values()))
        wrong = libcapsedge.Tensor(
            inputs[0].tensor.name, host.ctypes.data, host.nbytes, *_rest(inputs[0])
        )
        with pytest.raises(Failed, match="is not on GPU 0"):
            run_on_stream(
                session, [wrong, *(x.tensor for x in inputs[1:])], [outputs[0].tensor], stream
            )
    assert not executor().fault()


def _rest(array: OnGpu) -> tuple[Any, ...]:
    return array.tensor.type, array.tensor.rank, array.tensor.shape


def failed_launches() -> None:
    """A launch that CUDA refuses is a status of its run, captured or not; the next run is right."""
    model, feeds = model_of("DynamicRouting")
    session = on_gpu(model, graphs=False)
    wanted = session.run(feeds)
    executor().refuse("cudaLaunchKernelExC", RESOURCES)
    with pytest.raises(Failed, match=r"failed while running[^\0]*too many resources"):
        session.run(feeds)
    assert same(session.run(feeds), wanted)
    session = on_gpu(model)
    session.run(feeds)
    executor().refuse("cudaLaunchKernelExC", RESOURCES)
    assert same(session.run(feeds), wanted)  # plainly, as the capture failed
    for _ in range(3):
        assert same(session.run(feeds), wanted)
    assert session.describe().no_graph_reason is None


def short_of_memory() -> None:
    """Without memory for a graph, calls run plainly, and it is said why. ONNX Runtime tries with less."""
    model, feeds = model_of("DynamicRouting")
    wanted = on_gpu(model, graphs=False).run(feeds)
    reasons = []
    for after in range(8):
        session = on_gpu(model)
        session.run(feeds)
        executor().refuse("cudaMalloc", 2, after)
        for _ in range(3):
            assert same(session.run(feeds), wanted)
        executor().refuse("cudaMalloc", 0, 1 << 30)
        reasons.append(session.describe().no_graph_reason or b"")
    said = [reason for reason in reasons if b"the GPU has too little memory for them" in reason]
    assert said, reasons
    assert len(said) < len(reasons)


def damaged_kernels() -> None:
    """A file of kernels that does not load is a status, never a fall to function bodies."""
    path = zoo_model("digits-em")
    assert path is not None
    with TemporaryDirectory() as folder:
        damaged = Path(folder, "kernels.fatbin")
        damaged.write_bytes(Path(os.environ[KERNELS_VARIABLE]).read_bytes()[:1000])
        with pytest.raises(Failed, match=r"cannot be loaded[^\0]*is damaged") as failed:
            on_gpu(path, "auto", cuda_kernels=str(damaged))
        assert failed.value.code == ENVIRONMENT
        with pytest.raises(Failed, match=r"does not exist[^\0]*cuda_kernels names it"):
            on_gpu(path, "auto", cuda_kernels=f"{folder}/none")


def missing_parts() -> None:
    """Without the kernels' file, or with an old driver, function bodies run, and it is said why."""
    path = zoo_model("digits-em")
    assert path is not None
    named = os.environ.pop(KERNELS_VARIABLE)
    for words, fix in (
        ("are not installed", "make cuda-wheel"),
        ("too old for the CUDA kernels", "Install NVIDIA driver 580"),
    ):
        session = on_gpu(path, "auto")
        assert session.describe().ops == b"portable"
        assert words in session.describe().no_kernel_reason.decode()
        with pytest.raises(Failed, match=fix) as failed:
            on_gpu(path)
        assert failed.value.code == ENVIRONMENT
        assert on_gpu(path, "portable").describe().no_kernel_reason is None
        os.environ[KERNELS_VARIABLE], os.environ[provider.DRIVER] = named, "12080"
    del os.environ[provider.DRIVER]
    assert on_gpu(path, "auto").describe().ops == b"fused"
    assert on_gpu(path, "auto", cuda_kernels=named).describe().ops == b"fused"


def bodies() -> None:
    """A node that does not fit loads as its body, beside others that have kernels."""
    masked = next(
        c for c in CASES if c.options.get("history") == "masked" and c.operator == "VoteRouting"
    )
    from tests.conformance.backends import OrtFunctions

    model = OrtFunctions._model(masked, make(masked, "float32").inputs, "float32")
    assert on_gpu(model, "auto").describe().ops == b"portable"
    with pytest.raises(Failed, match=r"VoteRouting .* has no CUDA kernel: ") as failed:
        on_gpu(model)
    assert failed.value.code == UNSUPPORTED
    path = zoo_model("digits-attention")
    assert path is not None
    session = on_gpu(path, "auto")
    assert session.describe().ops == b"mixed"
    assert b"PoseNormalization" in session.describe().no_kernel_reason
    with pytest.raises(Failed, match=r"PoseNormalization '.*' has no CUDA kernel") as failed:
        on_gpu(path)
    assert failed.value.code == UNSUPPORTED


def refusals() -> None:
    """Another GPU, and a model that does not run on the GPU as a whole."""
    model, _ = model_of("Squash")
    with pytest.raises(Failed, match="There is no GPU 7") as failed:
        on_gpu(model, device=7)
    assert failed.value.code == ENVIRONMENT
    path = zoo_model("digits-overlap")  # INT8 convolutions for CPUs
    assert path is not None
    with pytest.raises(Failed, match="does not run entirely on CUDAExecutionProvider") as failed:
        on_gpu(path, "auto")
    assert failed.value.code == UNSUPPORTED


def no_driver() -> None:
    """A status about the machine, whether a libcudart is installed or not."""
    _refused_here("libcudart|no NVIDIA GPU that CUDA can use")


def no_cublas() -> None:
    """A library that the provider loads: a status about the machine, too, not about the file."""
    build.use(architecture())  # without the stubs
    _refused_here(r"did not start[^\0]*libcu")


def _refused_here(words: str) -> None:
    path = zoo_model("digits-em")
    assert path is not None
    with pytest.raises(Failed, match=words) as failed:
        on_gpu(path, "portable")
    assert failed.value.code == ENVIRONMENT


CHECKS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        results, graphs, many_shapes, threads, device_memory, failed_launches, short_of_memory,
        damaged_kernels, missing_parts, bodies, refusals, no_driver, no_cublas,
    )
}  # fmt: skip

if __name__ == "__main__":
    if not sys.argv[1].startswith("no_"):
        executor()
    CHECKS[sys.argv[1]]()
