"""What `Session` and `capsedge.load` expect of a backend, of every one that is registered.

A new backend needs a file that it runs: an entry in `FILES`, with what stands in for its hardware.
"""

# ruff: noqa: F401 (fixtures)

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsedge.errors import CapsedgeError, UsageError
from capsedge.runtime import load as loading
from capsedge.runtime.backends import BACKENDS
from capsedge.runtime.backends.backend import (
    Backend,
    BatchRange,
    DeviceBackend,
    ModelFile,
    PartialBackend,
    ProfiledBackend,
)
from capsedge.runtime.load import load_bytes
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.session.decoder import extract_subgraph
from capsedge.spec.vocabularies import RECONSTRUCTION
from tests.runtime.models import CLASSES, POSE, SIDE, capsule_model, metadata, save
from tests.tensorrt.fixtures import cudart, gpu, on_gpu

IMAGES = np.random.default_rng(5).random((4, 1, SIDE, SIDE), np.float32)
NAMES = ["lengths", "poses", RECONSTRUCTION]
MOST = 4  # images of a run of every file


def onnx_file(folder: Path, request: pytest.FixtureRequest) -> Path:
    return save(capsule_model(reconstruction=True), folder / "model.onnx")


def engine(folder: Path, request: pytest.FixtureRequest) -> Path:
    """Over stand-ins for TensorRT and CUDA."""
    pytest.importorskip("onnx_graphsurgeon", reason="pip install 'capsedge[build]'")
    from capsedge.exporters.build_options import BuildOptions
    from capsedge.exporters.tensorrt.write_engine import write_engine as build

    request.getfixturevalue("gpu")
    path = folder / "model.engine"
    if not path.exists():
        options = BuildOptions(plugin="native", batch=(1, 2, MOST))
        build(onnx_file(folder, request), path, options, lambda *_: None)
    return path


FILES: dict[str, Callable[[Path, pytest.FixtureRequest], Path]] = {
    "onnxruntime": onnx_file,
    "tensorrt": engine,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backends")


@pytest.fixture(params=BACKENDS)
def file(request: pytest.FixtureRequest, folder: Path) -> ModelFile:
    assert request.param in FILES, "a registered backend has a file to run"
    return ModelFile(FILES[request.param](folder, request))


@pytest.fixture
def backend(file: ModelFile) -> Backend:
    return loading.load(file.path).backend


@pytest.fixture(scope="module")
def wanted() -> dict[str, np.ndarray]:
    return load_bytes(capsule_model(reconstruction=True).SerializeToString()).run(IMAGES)


def close(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], count: int = MOST) -> None:
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name][:count], rtol=1e-4, atol=1e-6)


# The registry


def test_a_file_has_one_backend(file: ModelFile, backend: Backend) -> None:
    accepting = [name for name, kind in BACKENDS.items() if kind().accepts(file)]
    assert accepting == [backend.name]
    assert all(kind().name == name for name, kind in BACKENDS.items())


def test_a_file_without_a_backend(file: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "BACKENDS", {})
    with pytest.raises(UsageError, match="No backend can run"):
        loading.load(file.path)


def test_the_registry_imports_no_backend() -> None:
    code = (
        "import sys, capsedge.runtime.backends as b; assert b.BACKENDS;"
        "print([m for m in sys.modules if m in ('onnxruntime', 'tensorrt', 'numpy')"
        " or m.startswith('capsedge.runtime.backends.')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr


# Facts


def test_ports_and_batches(backend: Backend) -> None:
    ports = {port.name: port for port in (*backend.inputs, *backend.outputs)}
    assert [port.name for port in backend.inputs] == ["images"]
    assert [port.name for port in backend.outputs] == NAMES
    shapes = {name: port.shape[1:] for name, port in ports.items()}
    assert shapes == {
        "images": (1, SIDE, SIDE),
        "lengths": (CLASSES,),
        "poses": (CLASSES, POSE),
        RECONSTRUCTION: (CLASSES, 1, SIDE, SIDE),
    }
    assert {port.numpy_dtype for port in ports.values()} == {np.dtype(np.float32)}
    assert not any(isinstance(port.shape[0], int) for port in ports.values())
    assert backend.batches.smallest == 1
    assert backend.batches.largest in (None, MOST)
    assert backend.batches.fixed is None


def test_facts_of_the_file(backend: Backend) -> None:
    assert backend.metadata == metadata()
    assert backend.ops in ("fused", "mixed", "portable")
    assert backend.gpu is None or backend.gpu == 0
    assert backend.threads >= 0


def test_ranges_of_batches() -> None:
    assert BatchRange().fixed is None
    assert BatchRange(3, 3).fixed == 3
    assert BatchRange(1, 4).fixed is None


# Running


@pytest.mark.parametrize("count", [1, 2, MOST])
def test_outputs_are_those_asked_for(
    backend: Backend, wanted: dict[str, np.ndarray], count: int
) -> None:
    for names in (NAMES, ["poses"], ["poses", "lengths"]):
        found = backend.run({"images": IMAGES[:count]}, names)
        assert list(found) == names
        close(found, wanted, count)


def test_outputs_are_the_callers_own(backend: Backend, wanted: dict[str, np.ndarray]) -> None:
    found = backend.run({"images": IMAGES}, NAMES)
    for _ in range(3):
        backend.run({"images": np.zeros_like(IMAGES)}, NAMES)
    close(found, wanted)


def test_a_shape_that_does_not_fit_is_an_error(
    backend: Backend, wanted: dict[str, np.ndarray]
) -> None:
    too_many = np.zeros(((backend.batches.largest or 0) + 1, 2, 3, 3), np.float32)
    with pytest.raises(CapsedgeError):
        backend.run({"images": too_many}, NAMES)
    close(backend.run({"images": IMAGES}, NAMES), wanted)


def test_threads_do_not_disturb_each_other(backend: Backend, wanted: dict[str, np.ndarray]) -> None:
    def work(k: int) -> None:
        for _ in range(5):
            found = backend.run({"images": IMAGES[k : k + 1]}, ["lengths"])
            np.testing.assert_allclose(
                found["lengths"], wanted["lengths"][k : k + 1], rtol=1e-4, atol=1e-6
            )

    with ThreadPoolExecutor(MOST) as pool:
        list(pool.map(work, range(MOST)))


# Closing


def test_what_is_closed_keeps_its_facts_and_runs_no_more(backend: Backend) -> None:
    ports = backend.inputs, backend.outputs
    assert not backend.closed
    backend.close()
    backend.close()
    assert backend.closed
    assert (backend.inputs, backend.outputs) == ports
    assert backend.metadata == metadata()
    calls: list[Callable[[], object]] = [lambda: backend.run({"images": IMAGES}, NAMES)]
    if isinstance(backend, DeviceBackend):
        calls.append(lambda: backend.run_on_device({"images": IMAGES}))
    if isinstance(backend, ProfiledBackend):
        calls.append(lambda: backend.profiled_runs({"images": IMAGES}))
    for call in calls:
        with pytest.raises(UsageError, match=r"is closed(.|\n)*capsedge.load"):
            call()


def test_a_call_that_runs_is_not_disturbed_by_the_end(
    backend: Backend, wanted: dict[str, np.ndarray]
) -> None:
    def work(_: int) -> int:
        for count in range(1000):
            try:
                close(backend.run({"images": IMAGES}, ["lengths"]), wanted)
            except UsageError:
                return count
            if count == 5:
                backend.close()
        raise AssertionError("a closed model runs")

    with ThreadPoolExecutor(3) as pool:
        assert max(pool.map(work, range(3))) > 5


# What only some can do


def test_arrays_on_the_device(
    backend: Backend, wanted: dict[str, np.ndarray], request: pytest.FixtureRequest
) -> None:
    if not isinstance(backend, DeviceBackend):
        pytest.skip(f"{backend.name} runs on no arrays on a device")
    given = on_gpu(request.getfixturevalue("gpu"), IMAGES)
    found = backend.run_on_device({"images": given})
    assert list(found) == NAMES
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in wanted.items()
    }


def test_a_part_runs_by_itself(
    backend: Backend, file: ModelFile, wanted: dict[str, np.ndarray]
) -> None:
    if not isinstance(backend, PartialBackend):
        pytest.skip(f"{backend.name} runs its models as a whole")
    part = backend.open_part(extract_subgraph(file.content, "poses", RECONSTRUCTION))
    backend.close()
    assert [port.name for port in part.outputs] == [RECONSTRUCTION]
    found = part.run({part.inputs[0].name: wanted["poses"]}, [RECONSTRUCTION])
    close(found, wanted)


def test_operators_tell_their_times(backend: Backend) -> None:
    if not isinstance(backend, ProfiledBackend):
        pytest.skip(f"{backend.name} does not report operator times")
    with backend.profiled_runs({"images": IMAGES}) as runs:
        for _ in range(2):
            runs.plain()
            runs.profiled()
        recording = runs.finish()
    first, second = recording.runs
    assert [event.name for event in first] == [event.name for event in second]
    assert all(event.kind for event in first)
    assert all(event.duration >= 0 for event in first)
    starts: list[Any] = [event.start for event in (*first, *second)]
    assert starts == sorted(starts)
    if recording.graph is not None:
        assert [node.op for node in recording.graph.graph.nodes] == [e.kind for e in first]
