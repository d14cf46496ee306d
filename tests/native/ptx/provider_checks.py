"""What sessions on ONNX Runtime's own CUDA provider do with the CUDA kernels, on executed PTX.

``python -m tests.native.ptx.provider_checks NAME``, each in a process of its own: a kernel's fault ends all
work of its process, and the kernels' file is one for a process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, EnvironmentProblem, UnsupportedModelError
from capsedge.runtime.backends import cuda_operators
from capsedge.runtime.backends.backend import ModelFile
from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.backends.native_library import KERNELS_VARIABLE
from capsedge.runtime.backends.onnxruntime_backend import OnnxRuntimeBackend
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.zoo import zoo_model
from tests.conformance.backends import OrtFunctions
from tests.conformance.cases import CASES, ON_GPU, Case, make
from tests.conformance.provider import executor, opened
from tools.ptx import provider

Arrays = dict[str, NDArray[Any]]
RESOURCES = 701  # the code of the error
THREADS, RUNS = 4, 100
GPUS = 2


def case_of(operator: str, images: int = 2) -> Case:
    """An ordinary case with that many images."""
    fits = (c for c in ON_GPU if c.operator == operator and c.kind == "normal" and not c.heavy)
    return next(c for c in fits if c.dims.get("N", images) == images)


def feeds_of(backend: Any, inputs: Arrays) -> Arrays:
    """The inputs that are not in the file."""
    return {port.name: inputs[port.name] for port in backend.inputs}


def repeated(feeds: Arrays, count: int) -> Arrays:
    """A batch so many times as large, in which no two images are alike."""
    scale = np.arange(1, 1 + count * len(next(iter(feeds.values())))) / 8
    return {
        name: np.concatenate([array] * count) * scale.reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype)
        for name, array in feeds.items()
    }  # fmt: skip


def threads() -> None:
    """Four threads on one session, each with a batch of its own, get what one thread gets."""
    for operator in ("DynamicRouting", "EMRouting", "AttentionRouting"):
        case = case_of(operator)
        inputs = dict(make(case, "float32").inputs)
        backend = opened(case, inputs)
        names = [port.name for port in backend.outputs]
        feeds = [repeated(feeds_of(backend, inputs), 1 + k) for k in range(THREADS)]
        wanted = [backend.run(each, names) for each in feeds]

        def work(
            k: int, backend: Any = backend, feeds: Any = feeds, names: Any = names
        ) -> list[Arrays]:
            return [backend.run(feeds[k], names) for _ in range(8)]

        with ThreadPoolExecutor(THREADS) as pool:
            for k, found in enumerate(pool.map(work, range(THREADS))):
                for each in found:
                    for name in names:
                        np.testing.assert_array_equal(each[name], wanted[k][name])
        assert not executor().fault()


def memory() -> None:
    """The device's memory stays as it is after the first run."""
    for operator in ("Squash", "DynamicRouting", "EMRouting", "QuantizedEMRouting"):
        case = case_of(operator)
        inputs = dict(make(case, "float32").inputs)
        backend = opened(case, inputs)
        feeds, names = feeds_of(backend, inputs), [port.name for port in backend.outputs]
        backend.run(feeds, names)
        before = load_cuda().free_memory()
        for _ in range(RUNS):
            backend.run(feeds, names)
        print(f"{operator}: {before - load_cuda().free_memory()} bytes more after {RUNS} runs")
        assert load_cuda().free_memory() == before


def empty_batches() -> None:
    """A batch of no images has outputs of no images."""
    for operator in ("Squash", "DynamicRouting", "EMRouting", "AttentionRouting"):
        case = case_of(operator)
        inputs = dict(make(case, "float32").inputs)
        backend = opened(case, inputs)
        feeds = {name: array[:0] for name, array in feeds_of(backend, inputs).items()}
        for array in backend.run(feeds, [port.name for port in backend.outputs]).values():
            assert array.shape[0] == 0


def failed_launches() -> None:
    """A launch that CUDA refuses is an error of its run; the next run is right."""
    case = case_of("DynamicRouting")
    inputs = dict(make(case, "float32").inputs)
    backend = opened(case, inputs)
    feeds, names = feeds_of(backend, inputs), [port.name for port in backend.outputs]
    right = backend.run(feeds, names)
    executor().refuse("cudaLaunchKernelExC", RESOURCES)
    with pytest.raises(ArtefactError, match=r"failed while running[^\0]*too many resources"):
        backend.run(feeds, names)
    for name in names:
        np.testing.assert_array_equal(backend.run(feeds, names)[name], right[name])
    assert not executor().fault()


def out_of_memory() -> None:
    """Too little memory of the GPU is named, when loading and when running; what fits runs after that."""
    case = case_of("DynamicRouting")
    inputs = dict(make(case, "float32").inputs)
    executor().memory(1000)
    with pytest.raises(EnvironmentProblem, match=r"too little memory to load DynamicRouting\.onnx"):
        opened(case, inputs)
    executor().memory(8 << 20)
    backend = opened(case, inputs)
    feeds, names = feeds_of(backend, inputs), [port.name for port in backend.outputs]
    right = backend.run(feeds, names)
    large = repeated(feeds, 1 + (16 << 20) // sum(each.nbytes for each in feeds.values()))
    with pytest.raises(
        EnvironmentProblem, match=r"to run DynamicRouting.*\n.*needed another [\d,]+ bytes"
    ):
        backend.run(large, names)
    for name in names:
        np.testing.assert_array_equal(backend.run(feeds, names)[name], right[name])
    assert not executor().fault()


def two_gpus() -> None:
    """Each session works on its own GPU, with its streams and in its memory, from several threads at once."""
    assert load_cuda().device_count() == GPUS
    for operator in ("Squash", "DynamicRouting", "EMRouting"):
        case = case_of(operator)
        inputs = dict(make(case, "float32").inputs)
        backends = [opened(case, inputs, gpu=gpu) for gpu in range(GPUS)]
        feeds, names = feeds_of(backends[0], inputs), [port.name for port in backends[0].outputs]
        larger = [repeated(feeds, 1 + gpu) for gpu in range(GPUS)]
        wanted = [backends[0].run(each, names) for each in larger]
        with ThreadPoolExecutor(GPUS) as pool:
            for _ in range(4):
                running = [
                    pool.submit(backend.run, each, names)
                    for backend, each in zip(backends, larger, strict=True)
                ]
                for each, right in zip(running, wanted, strict=True):
                    for name in names:
                        np.testing.assert_array_equal(each.result()[name], right[name])
    with load_cuda().on(1):
        assert load_cuda().free_memory() < 8 << 30  # it holds something
    assert not executor().fault()
    with pytest.raises(EnvironmentProblem, match="no GPU 2"):
        opened(case, inputs, gpu=GPUS)


def wrong_shapes() -> None:
    """Shapes that no file states are refused at run time, with the operator's words."""
    case = case_of("DynamicRouting")
    inputs = dict(make(case, "float32").inputs)
    backend = opened(case, inputs)
    feeds = {name: array[:, 1:] for name, array in feeds_of(backend, inputs).items()}
    with pytest.raises(ArtefactError):
        backend.run(feeds, [port.name for port in backend.outputs])


def damaged_kernels() -> None:
    """A file of kernels that does not load is an error, never a fall to function bodies."""
    case = case_of("EMRouting")
    inputs = dict(make(case, "float32").inputs)
    with TemporaryDirectory() as folder:
        damaged = Path(folder, "kernels.fatbin")
        damaged.write_bytes(Path(os.environ[KERNELS_VARIABLE]).read_bytes()[:1000])
        os.environ[KERNELS_VARIABLE] = str(damaged)
        with pytest.raises(EnvironmentProblem, match=r"cannot be loaded[^\0]*is damaged"):
            opened(case, inputs, "auto")


def missing_parts() -> None:
    """Without the kernels' file, or with an old driver, function bodies run; ops 'fused' says what to do."""
    path = zoo_model("digits-em")
    assert path is not None
    model = path.read_bytes()
    find = cuda_operators.find_cuda_kernels
    for part, fix in (
        ("file", "`make cuda-wheel`, then `pip install dist/capsedge_cuda-"),
        ("driver", "Install NVIDIA driver 580"),
    ):
        if part == "file":
            cuda_operators.find_cuda_kernels = lambda: None
        else:
            cuda_operators.find_cuda_kernels = find
            os.environ[provider.DRIVER] = "12080"
        assert loaded(model, "auto").ops == "portable"
        with pytest.raises(EnvironmentProblem, match=fix):
            loaded(model, "fused")
    del os.environ[provider.DRIVER]
    assert loaded(model, "auto").ops == "fused"


def bodies() -> None:
    """A node that does not fit loads as its body, beside others that have kernels."""
    masked = next(
        c for c in CASES if c.options.get("history") == "masked" and c.operator == "VoteRouting"
    )
    model = OrtFunctions._model(masked, make(masked, "float32").inputs, "float32")
    if provider.chosen() == provider.CUDA_12:  # it has no Equal for floats, which the body needs
        with pytest.raises(
            UnsupportedModelError, match="not run entirely on CUDAExecutionProvider"
        ):
            loaded(model, "auto")
    else:
        assert loaded(model, "auto").ops == "portable"
    with pytest.raises(UnsupportedModelError, match=r"VoteRouting .* has no CUDA kernel: "):
        loaded(model, "fused")
    path = zoo_model("digits-attention")
    assert path is not None
    assert loaded(path.read_bytes(), "auto").ops == "mixed"
    with pytest.raises(UnsupportedModelError, match=r"PoseNormalization '.*' has no CUDA kernel"):
        loaded(path.read_bytes(), "fused")


def loaded(model: bytes, ops: str) -> OnnxRuntimeBackend:
    """A file on the GPU."""
    return OnnxRuntimeBackend.open(
        ModelFile(Path("m.onnx"), model), RuntimeOptions(device="cuda", ops=ops)
    )


CHECKS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        threads, memory, empty_batches, failed_launches, wrong_shapes, damaged_kernels,
        missing_parts, bodies, out_of_memory, two_gpus,
    )
}  # fmt: skip

if __name__ == "__main__":
    os.environ["CAPSEDGE_PTX_DEVICES"] = str(GPUS)
    executor()
    CHECKS[sys.argv[1]]()
