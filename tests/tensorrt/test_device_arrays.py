"""Arrays on the GPU in and out of engines, over stand-ins: protocols, and the order of streams."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import ctypes
import gc
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import capsedge
from capsedge.errors import ShapeError, UsageError
from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.backends.device_array import CUDA_HOST, DeviceArray, device_array
from tests.tensorrt import fake
from tests.tensorrt.fixtures import ANY_AMOUNT, ByDlpack, OnGpu, cudart, gpu, on_gpu
from tests.tensorrt.test_engines import IMAGES, make, model


@pytest.fixture
def session(make: Any, gpu: Any) -> capsedge.Session:
    return capsedge.load(make(batch=(1, 2, 4)).path)


@pytest.fixture
def wanted(model: Path) -> dict[str, NDArray[Any]]:
    return capsedge.load(model).run(IMAGES[:2])


def values(array: DeviceArray) -> NDArray[Any]:
    return np.array(fake._view(array.address, array.shape, array.dtype))


def check(found: dict[str, DeviceArray], wanted: dict[str, NDArray[Any]]) -> None:
    assert list(found) == list(wanted)
    for name, array in found.items():
        np.testing.assert_allclose(values(array), wanted[name], rtol=1e-3, atol=1e-5)


@pytest.fixture
def new_stream(gpu: Any) -> Iterator[Callable[[], int]]:
    made: list[ctypes.c_void_p] = []

    def make() -> int:
        made.append(ctypes.c_void_p())
        assert not gpu.cudaStreamCreateWithFlags(ctypes.byref(made[-1]), 1)
        return int(made[-1].value or 0)

    yield make
    for stream in made:
        gpu.cudaStreamDestroy(stream)


def written_late(cudart: Any, array: NDArray[Any], stream: int) -> OnGpu:
    """An array whose values are still to be written, by work on a stream."""
    source, target = OnGpu(cudart, array), OnGpu(cudart, np.full_like(array, np.nan))
    assert not cudart.cudaMemcpyAsync(
        ctypes.c_void_p(target.address), ctypes.c_void_p(source.address),
        ctypes.c_size_t(array.nbytes), 3, ctypes.c_void_p(stream),
    )  # fmt: skip
    target.source = source  # type: ignore[attr-defined]
    assert np.isnan(target.values).all()
    return target


@pytest.mark.thorough
def test_the_results_are_the_callers(session: Any, wanted: Any, gpu: Any, new_stream: Any) -> None:
    images = on_gpu(gpu, IMAGES[:2])
    before = gpu.fake_count(0)
    found = session.run_on_device({"images": images})
    assert gpu.fake_count(0) == before + len(wanted)
    check(found, wanted)
    for name, array in found.items():
        # DLPack there and back is the same memory.
        assert array.__dlpack_device__() == (2, 0)
        foreign = types.SimpleNamespace(
            __dlpack__=array.__dlpack__, __dlpack_device__=array.__dlpack_device__
        )
        again = device_array(foreign, name, load_cuda(), 0, new_stream())
        assert (again.address, again.shape) == (array.address, array.shape)
        assert again.dtype == array.dtype
        del again, foreign
        array.__dlpack__()  # a capsule that nobody takes
    del array, found
    gc.collect()
    assert gpu.fake_count(0) == before


def test_arrays_without_a_stream_are_waited_for(session: Any, wanted: Any, gpu: Any) -> None:
    """The default stream writes them, which the engine's own does not wait for by itself."""
    for _ in range(3):
        images = written_late(gpu, IMAGES[:2], 0)
        check(session.run_on_device({"images": images}), wanted)
        del images  # giving memory back waits for the GPU, and so for the next one's values


def test_arrays_name_their_stream(session: Any, wanted: Any, gpu: Any, new_stream: Any) -> None:
    for stream in (1, 2, new_stream()):
        images = written_late(gpu, IMAGES[:2], stream).told(stream=stream, version=3)
        check(session.run_on_device({"images": images}), wanted)
        del images


def test_the_current_stream_of_torch_is_waited_for(
    session: Any,
    wanted: Any,
    new_stream: Any,
    gpu: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what wraps a torch tensor and says nothing of streams."""
    stream = new_stream()
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(
            is_initialized=lambda: True,
            current_stream=lambda: types.SimpleNamespace(cuda_stream=stream),
        )
    )
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)
    images = written_late(gpu, IMAGES[:2], stream)
    check(session.run_on_device({"images": images}), wanted)


def test_dlpack_is_asked_first(session: Any, wanted: Any, gpu: Any, new_stream: Any) -> None:
    """It has an order; torch's other protocol has none, and is an error for tensors with gradients."""

    class Both(ByDlpack):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            raise RuntimeError("not to be asked")

    stream = new_stream()
    images = Both(written_late(gpu, IMAGES[:2], stream), stream)
    check(session.run_on_device({"images": images}), wanted)
    (asked,) = images.asked
    assert asked is not None
    assert asked > 2  # the engine's own stream, which is to wait


def test_tensors_that_cannot_be_shared(session: Any, gpu: Any) -> None:
    images = ByDlpack(on_gpu(gpu, IMAGES[:2]))
    images.requires_grad = True
    with pytest.raises(UsageError, match="requires gradients") as refused:
        session.run_on_device({"images": images})
    assert ".detach()" in refused.value.fix

    class Conjugated(ByDlpack):
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("Can't export tensors with the conjugate bit set")

    with pytest.raises(UsageError, match="conjugate bit") as refused:
        session.run_on_device({"images": Conjugated(on_gpu(gpu, IMAGES[:2]))})
    assert "plain copy" in refused.value.fix


@pytest.mark.parametrize("protocol", ["dlpack", "interface"])
def test_pinned_memory_of_the_host(session: Any, wanted: Any, gpu: Any, protocol: str) -> None:
    """It is copied as what it is."""
    images: Any = OnGpu(gpu, IMAGES[:2], pinned=True)
    if protocol == "dlpack":
        images = ByDlpack(images, device=(CUDA_HOST, 0))
    check(session.run_on_device({"images": images}), wanted)
    if protocol == "dlpack":
        assert images.asked == [None]  # torch refuses a stream for memory of the host


def test_wrong_arrays(session: Any, gpu: Any) -> None:
    for arrays, error, words in (
        ({"images": IMAGES[:2]}, UsageError, r"is a ndarray|not on the GPU"),
        ({}, UsageError, "Missing: images"),
        ({"images": on_gpu(gpu, IMAGES[:2].astype(np.float64))}, ShapeError, "float64"),
        ({"images": on_gpu(gpu, IMAGES[:2]).told(strides=(400, 400, 4, 40))}, ShapeError,
         "not contiguous"),
        ({"images": on_gpu(gpu, IMAGES)}, ShapeError, "A batch of 5"),
        ({"images": types.SimpleNamespace(__cuda_array_interface__={
            "shape": (1, 1, 10, 10), "typestr": "<f4", "data": (IMAGES.ctypes.data, False)})},
         UsageError, "not on the GPU"),
    ):  # fmt: skip
        with pytest.raises(error, match=words) as failed:
            session.run_on_device(arrays)
        assert failed.type is error
    # None of these cost the buffers of the engine.
    assert gpu.fake_count(2) == 1


def test_another_gpu(make: Any, wanted: Any, gpu: Any) -> None:
    """All of an engine is on its own GPU, and the caller keeps its choice."""
    path = make(batch=(1, 2, 4)).path
    gpu.fake_set(2, 87, 0, ANY_AMOUNT)
    session = capsedge.load(path, device="cuda:1")
    images = on_gpu(gpu, IMAGES[:2])
    for arrays in (images, ByDlpack(images)):
        with pytest.raises(UsageError, match="'images' is on GPU 0"):
            session.run_on_device({"images": arrays})
    gpu.cudaSetDevice(1)
    images = on_gpu(gpu, IMAGES[:2])
    gpu.cudaSetDevice(0)
    found = session.run_on_device({"images": images})
    check(found, wanted)
    assert found["lengths"].__dlpack_device__() == (2, 1)
    session.run(IMAGES[:1])
    current = ctypes.c_int(-1)
    gpu.cudaGetDevice(ctypes.byref(current))
    assert current.value == 0


def test_outputs_go_where_the_caller_says(session: Any, wanted: Any, gpu: Any) -> None:
    images = on_gpu(gpu, IMAGES[:2])
    lengths = on_gpu(gpu, np.zeros_like(wanted["lengths"]))
    before = gpu.fake_count(0)
    for target in (lengths, ByDlpack(lengths)):
        lengths.values[...] = 0
        found = session.run_on_device({"images": images}, out={"lengths": target})
        assert found["lengths"].address == lengths.address
        np.testing.assert_allclose(lengths.values, wanted["lengths"], rtol=1e-3, atol=1e-5)
        assert gpu.fake_count(0) == before + len(wanted) - 1
        del found
    for out, error, words in (
        ({"depths": lengths}, UsageError, "no output 'depths'"),
        (
            {"lengths": on_gpu(gpu, np.zeros((1, 3), np.float32))},
            ShapeError,
            r"Expected: float32 \[2",
        ),
        ({"lengths": lengths.told(data=(lengths.address, True))}, UsageError, "is read-only"),
    ):
        with pytest.raises(error, match=words):
            session.run_on_device({"images": images}, out=out)


def test_work_in_the_order_of_a_stream(
    session: Any, wanted: Any, gpu: Any, new_stream: Any
) -> None:
    """The call returns before anything happened; what the caller puts on its stream comes after it."""
    for given in (lambda s: s, lambda s: types.SimpleNamespace(cuda_stream=s),
                  lambda s: types.SimpleNamespace(__cuda_stream__=lambda: (0, s))):  # fmt: skip
        stream = new_stream()
        images = written_late(gpu, IMAGES[:2], stream).told(stream=stream, version=3)
        lengths = on_gpu(gpu, np.full_like(wanted["lengths"], np.nan))
        found = session.run_on_device(
            {"images": images}, out={"lengths": lengths}, stream=given(stream)
        )
        assert np.isnan(lengths.values).all()
        later = on_gpu(gpu, np.full_like(wanted["lengths"], np.nan))
        gpu.cudaMemcpyAsync(
            ctypes.c_void_p(later.address), ctypes.c_void_p(lengths.address),
            ctypes.c_size_t(later.bytes), 3, ctypes.c_void_p(stream),
        )  # fmt: skip
        assert not gpu.cudaStreamSynchronize(ctypes.c_void_p(stream))
        np.testing.assert_allclose(later.values, wanted["lengths"], rtol=1e-3, atol=1e-5)
        check(found, wanted)
        assert found["lengths"].__cuda_array_interface__["stream"] == stream
        del found, images, lengths, later  # giving memory back waits for the GPU
    with pytest.raises(UsageError, match="The stream has the type str"):
        session.run_on_device({"images": on_gpu(gpu, IMAGES[:2])}, stream="default")


def test_calls_that_are_still_under_way(
    session: Any, wanted: Any, gpu: Any, new_stream: Any
) -> None:
    """The next call takes the same buffers, after the one before; and a reader of a result waits for it."""
    stream = new_stream()
    images = on_gpu(gpu, IMAGES[:2])
    first = session.run_on_device({"images": images}, stream=stream)
    other = session.run_on_device({"images": on_gpu(gpu, IMAGES[2:4])}, stream=0)
    assert gpu.fake_count(2) == 2  # the caller's and the engine's
    # A result goes into the next call before it is there.
    again = session.run_on_device({"images": ByDlpack(images)}, out=first, stream=stream)
    reader = new_stream()
    first["lengths"].__dlpack__(stream=reader)
    assert not gpu.cudaStreamSynchronize(ctypes.c_void_p(reader))
    check(first, wanted)
    assert {a.address for a in again.values()} == {a.address for a in first.values()}
    gpu.cudaDeviceSynchronize()
    assert not np.allclose(values(other["lengths"]), wanted["lengths"])
    assert "undefined" not in fake.RECORDED
