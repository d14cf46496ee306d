"""Sessions of ONNX Runtime on a GPU: precision, IO binding and pinned memory, over stand-ins.

The session computes on the CPU, and its outputs are then in the memory of a stand-in for libcudart.
"""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import capsedge
from capsedge.errors import ArtefactError, EnvironmentProblem
from capsedge.runtime.backends.cuda import HOST_MEMORY, load_cuda
from capsedge.runtime.backends.onnxruntime_backend import OnnxRuntimeBackend
from capsedge.runtime.backends.onnxruntime_session import CPU, CUDA, NO_FALLBACK, SessionSettings
from tests.runtime.models import capsule_model, save
from tests.tensorrt.fixtures import ANY_AMOUNT, OnGpu, cudart, gpu

PINNED, STREAMS = 1, 2  # what cudart.c counts


class Binding:
    """An IO binding whose inputs must be pinned, and whose outputs must be asked for on the GPU."""

    def __init__(self, session: onnxruntime.InferenceSession, cudart: Any) -> None:
        self.real, self._cudart = onnxruntime.IOBinding(session), cudart

    def bind_cpu_input(self, name: str, array: NDArray[Any]) -> None:
        assert load_cuda().memory(array.ctypes.data)[0] == HOST_MEMORY
        self.real.bind_cpu_input(name, array)

    def bind_output(self, name: str, device: str, number: int) -> None:
        assert (device, number) == ("cuda", 0)
        self.real.bind_output(name, "cpu")

    def get_outputs(self) -> list[Any]:
        return [Output(OnGpu(self._cudart, value.numpy())) for value in self.real.get_outputs()]


class Output:
    """An OrtValue on the GPU."""

    def __init__(self, array: OnGpu) -> None:
        self._array = array

    def data_ptr(self) -> int:
        return self._array.address

    def shape(self) -> list[int]:
        return list(self._array.values.shape)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, gpu: Any) -> Iterator[list[Any]]:
    """The providers that a session was made with, on a machine whose ONNX Runtime has CUDA."""
    asked: list[Any] = []

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, data: bytes, options: Any, providers: Any, **rest: Any) -> None:
            asked.extend(providers)
            options.add_session_config_entry(NO_FALLBACK, "0")
            super().__init__(data, options, providers=[CPU], **rest)

        def get_providers(self) -> list[str]:
            return [CUDA, CPU]

        def run(self, *arguments: Any) -> Any:
            raise AssertionError("pageable memory")

        def io_binding(self) -> Binding:
            return Binding(self, gpu)

        def run_with_iobinding(self, binding: Binding, options: Any = None) -> None:
            super().run_with_iobinding(binding.real, options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    yield asked
    gc.collect()
    assert gpu.fake_count(PINNED) == gpu.fake_count(STREAMS) == 0  # nothing is left


@pytest.fixture
def backend(tmp_path: Path, asked: list[Any]) -> Iterator[OnnxRuntimeBackend]:
    """Of y [N, 3] = x times factor [1], and the place of the largest element of each row."""
    values = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "factor"], ["y"]),
            helper.make_node("ArgMax", ["y"], ["largest"], axis=1, keepdims=0),
        ],
        "rows",
        [values("x", TensorProto.FLOAT16, ["N", 3]), values("factor", TensorProto.FLOAT16, [1])],
        [values("y", TensorProto.FLOAT16, ["N", 3]), values("largest", TensorProto.INT64, ["N"])],
    )
    opsets = [helper.make_opsetid("", 20)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    made = OnnxRuntimeBackend(data, tmp_path / "m.onnx", SessionSettings(1, provider=CUDA, gpu=0))
    yield made
    made.close()


def test_fp32_is_not_tf32(tmp_path: Path, asked: list[Any]) -> None:
    """The CUDA provider would use it, where the GPU has it."""
    capsedge.load(save(capsule_model(), tmp_path / "m.onnx"), device="cuda").close()
    assert asked == [(CUDA, {"device_id": "0", "use_tf32": "0"})]


def feeds(rows: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    x = np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float16)
    return {"x": x, "factor": np.full(1, 2, np.float16)}


def check(found: dict[str, NDArray[Any]], x: NDArray[Any]) -> None:
    np.testing.assert_array_equal(found["y"], 2 * x, strict=True)
    np.testing.assert_array_equal(found["largest"], x.argmax(1), strict=True)


def test_pinned_memory_serves_every_call(backend: OnnxRuntimeBackend, gpu: Any) -> None:
    """Batches that grow and shrink, an empty one, arrays in any order; results are the caller's own."""
    kept = []
    for rows in (2, 7, 1, 0, 7):
        given = feeds(rows, seed=rows)
        kept.append((backend.run(given, ["y", "largest"]), given["x"]))
        given["x"] = np.asfortranarray(given["x"])[::-1]
        kept.append((backend.run(given, ["y", "largest"]), given["x"]))
    for found, x in kept:
        check(found, x)
    assert list(backend.run(feeds(2), ["largest"])) == ["largest"]
    assert gpu.fake_count(PINNED) == 4
    assert gpu.fake_count(STREAMS) == 1


def test_calls_side_by_side(backend: OnnxRuntimeBackend, gpu: Any) -> None:
    """Each has pinned memory of its own, which later calls use again."""
    failed: list[BaseException] = []

    def call(seed: int) -> None:
        try:
            for rows in range(1, 8):
                given = feeds(rows, seed)
                check(backend.run(given, ["y", "largest"]), given["x"])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    assert gpu.fake_count(STREAMS) <= 4


def test_a_call_that_fails_says_why(backend: OnnxRuntimeBackend) -> None:
    """And the next one runs."""
    wrong = {**feeds(2), "factor": np.zeros(2, np.float16)}
    with pytest.raises(ArtefactError, match=r"failed while running .*m\.onnx on x \[2, 3\]"):
        backend.run(wrong, ["y"])
    check(backend.run(feeds(2), ["y", "largest"]), feeds(2)["x"])


def test_a_gpu_that_is_lost_is_not_the_file(backend: OnnxRuntimeBackend, gpu: Any) -> None:
    gpu.fake_set(0, 87, 0, ANY_AMOUNT)
    with pytest.raises(EnvironmentProblem, match="GPU"):
        backend.run(feeds(2), ["y"])
    gpu.fake_set(1, 87, 0, ANY_AMOUNT)
