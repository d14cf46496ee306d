"""ONNX Runtime sessions on a GPU: graphs, and arrays that are there; stand-ins compute on the CPU."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import capsedge
from capsedge.cli.infer import _log_graphs
from capsedge.errors import ArtefactError, ShapeError, UnsupportedModelError, UsageError
from capsedge.runtime import doctor
from capsedge.runtime.backends.backend import ProfiledBackend
from capsedge.runtime.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend
from capsedge.runtime.backends.onnxruntime_session import CPU, CUDA, NO_FALLBACK
from capsedge.runtime.machine import BROKEN, OK
from capsedge.runtime.profiling.compare_models import _ways
from capsedge.runtime.profiling.profile import backend_version
from capsedge.runtime.profiling.worker import graphs_argument
from tests.runtime.models import SIDE, capsule_model, save
from tests.tensorrt.fixtures import ByDlpack, OnGpu, cudart, gpu, on_gpu

IMAGES = np.random.default_rng(5).random((4, 1, SIDE, SIDE), np.float32)
OTHERS = np.ascontiguousarray(IMAGES[::-1])


class Ran:
    """What the stand-in's sessions did: providers' options of each, and numbers of graphs."""

    def __init__(self) -> None:
        self.sessions: list[dict[str, str]] = []
        self.graphs: list[str | None] = []
        self.refuses = ""
        self.kept: list[OnGpu] = []
        self.cudart: Any = None

    def memory(self, array: np.ndarray) -> Any:
        """A value of ONNX Runtime in the stand-in's GPU, where there is one."""
        if self.cudart is not None:
            self.kept.append(on_gpu(self.cudart, array))
            array = self.kept[-1].values
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """An ONNX Runtime with CUDA: a session's device memory is the host's."""
    ran = Ran()

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, data: bytes, options: Any, providers: Any, **rest: Any) -> None:
            told = providers[0][1] if isinstance(providers[0], tuple) else {}
            ran.sessions += [told] if told else []
            if ran.refuses and "enable_cuda_graph" in told:
                raise RuntimeError(ran.refuses)
            options.add_session_config_entry(NO_FALLBACK, "0")
            super().__init__(data, options, providers=[CPU], **rest)

        def get_providers(self) -> list[str]:
            return [CUDA, CPU]

        def io_binding(self) -> Any:
            return Binding(self)

        def run_with_iobinding(self, binding: Any, options: Any) -> None:
            ran.graphs.append(options.entries.get("gpu_graph_id"))
            super().run_with_iobinding(binding, options)

    class Binding(onnxruntime.IOBinding):  # type: ignore[misc]
        def bind_input(self, name: str, device: str, *rest: Any) -> None:
            assert device == "cuda"
            super().bind_input(name, "cpu", *rest)

        def bind_output(self, name: str, device: str, *rest: Any) -> None:
            assert device == "cuda"
            super().bind_output(name, "cpu", *rest)

        def get_outputs(self) -> list[Any]:
            return [ran.memory(value.numpy()) for value in super().get_outputs()]

    class RunOptions(onnxruntime.RunOptions):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.entries: dict[str, str] = {}

        def add_run_config_entry(self, key: str, value: str) -> None:
            self.entries[key] = value

    def memory(shape: Any, dtype: Any, device: str, gpu: int) -> Any:
        assert device == "cuda"
        return ran.memory(np.zeros(shape, dtype))

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "RunOptions", RunOptions)
    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_shape_and_type", staticmethod(memory))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    return ran


@pytest.fixture
def device(ran: Ran, gpu: Any) -> Any:
    """The stand-in's GPU, in which ONNX Runtime has its memory."""
    ran.cudart = gpu
    return gpu


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(capsule_model(), tmp_path_factory.mktemp("device") / "m.onnx")


def opened(model: Path, **options: Any) -> capsedge.Session:
    return capsedge.load(model, capsedge.RuntimeOptions(device="cuda", **options))


def values(array: Any) -> np.ndarray:
    """What memory of the stand-in's GPU holds."""
    told = array.__cuda_array_interface__
    raw = np.ctypeslib.as_array(
        (np.ctypeslib.ctypes.c_uint8 * array.size).from_address(told["data"][0])
    )
    return raw.view(told["typestr"]).reshape(told["shape"]).copy()


def test_the_second_call_of_a_batch_size_is_captured(model: Path, ran: Ran) -> None:
    with opened(model) as session, capsedge.load(model) as cpu:
        for images in (IMAGES, IMAGES, OTHERS, IMAGES[:2], IMAGES[:2], IMAGES):
            wanted = cpu.run(images)
            for name, value in session.run(images).items():
                np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-6)
    assert ran.graphs == ["1", "1", "2", "1"]
    assert ["enable_cuda_graph" in each for each in ran.sessions[:2]] == [False, True]


def test_graphs_can_be_required_and_switched_off(model: Path, ran: Ran) -> None:
    with opened(model, graphs=False) as session:
        for _ in range(3):
            session.run(IMAGES)
        assert not ran.graphs
        assert "no CUDA graphs: graphs were not requested" in repr(session._summary())
    with opened(model, graphs=True) as session:
        assert len(ran.sessions) == 3  # opened at once
        assert "CUDA graphs" in repr(session._summary())
    with pytest.raises(UsageError, match="graphs is True on the CPU"):
        capsedge.load(model, capsedge.RuntimeOptions(graphs=True))
    capsedge.load(model, capsedge.RuntimeOptions(graphs=False)).close()


def test_a_file_that_cannot_be_captured(model: Path, ran: Ran) -> None:
    ran.refuses = "This session cannot use the graph capture feature: control flow nodes"
    with pytest.raises(UnsupportedModelError, match="cannot run as a CUDA graph") as refused:
        opened(model, graphs=True)
    assert refused.value.why == f"{ran.refuses}."
    with opened(model) as session:
        for _ in range(3):
            assert session.run(IMAGES)
        assert isinstance(session.backend, OnnxRuntimeCudaBackend)
        assert session.backend.no_graph_reason == ran.refuses


def test_other_providers_capture_nothing_here(
    model: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["TensorrtExecutionProvider", CUDA, CPU]
    )
    monkeypatch.setattr(
        onnxruntime.InferenceSession,
        "get_providers",
        lambda _: ["TensorrtExecutionProvider", CUDA, CPU],
    )
    with pytest.raises(UnsupportedModelError, match="only the CUDA provider"):
        opened(model, provider="tensorrt", graphs=True)


def test_a_call_that_fails_says_so(model: Path, ran: Ran) -> None:
    with opened(model) as session:
        session.run(IMAGES)
        with pytest.raises(ArtefactError, match="failed while running"):
            session.backend.run({"images": IMAGES[:, :, 1:]}, ["poses"])
        assert session.run(IMAGES)
    with pytest.raises(UsageError, match="is closed"):
        session.backend.run({"images": IMAGES}, ["poses"])


# Arrays on the GPU


def test_arrays_on_the_gpu_run_plainly_and_then_by_a_graph(
    model: Path, ran: Ran, device: Any
) -> None:
    with opened(model) as session, capsedge.load(model) as cpu:
        for images in (IMAGES, OTHERS, IMAGES):
            wanted = cpu.run(images)
            found = session.run_on_device({"images": on_gpu(device, images)})
            assert list(found) == list(wanted)
            for name, array in found.items():
                np.testing.assert_allclose(values(array), wanted[name], rtol=1e-4, atol=1e-6)
                assert array.stream is None
        assert ran.graphs == [None, "1", "1"]


@pytest.mark.parametrize("by", ["interface", "dlpack", "pinned"])
def test_arrays_of_every_kind(model: Path, ran: Ran, device: Any, by: str) -> None:
    kinds = {
        "interface": lambda: on_gpu(device, IMAGES),
        "dlpack": lambda: ByDlpack(on_gpu(device, IMAGES)),
        "pinned": lambda: OnGpu(device, IMAGES, pinned=True),
    }
    with opened(model) as session, capsedge.load(model) as cpu:
        wanted = cpu.run(IMAGES)["poses"]
        for _ in range(3):
            found = session.run_on_device({"images": kinds[by]()}, stream=0)
            np.testing.assert_allclose(values(found["poses"]), wanted, rtol=1e-4, atol=1e-6)


def test_outputs_go_to_the_callers_memory(model: Path, ran: Ran, device: Any) -> None:
    with opened(model) as session, capsedge.load(model) as cpu:
        wanted = cpu.run(IMAGES)["poses"]
        for _ in range(3):
            poses = on_gpu(device, np.zeros_like(wanted))
            found = session.run_on_device({"images": on_gpu(device, IMAGES)}, out={"poses": poses})
            np.testing.assert_allclose(poses.values, wanted, rtol=1e-4, atol=1e-6)
            assert found["poses"].address == poses.address


def test_outputs_of_a_graph_outlive_the_next_call(model: Path, ran: Ran, device: Any) -> None:
    with opened(model) as session:
        calls = [
            session.run_on_device({"images": on_gpu(device, images)})
            for images in (IMAGES, IMAGES, OTHERS)
        ]
        second, third = (values(each["poses"]) for each in calls[1:])
        np.testing.assert_allclose(second, third[::-1], rtol=1e-4, atol=1e-6)


def test_arrays_that_do_not_fit(model: Path, ran: Ran, device: Any) -> None:
    given = on_gpu(device, IMAGES)
    with opened(model) as session:
        for wrong, error, words in (
            (on_gpu(device, IMAGES.astype(np.float64)), ShapeError, "is float64"),
            (on_gpu(device, IMAGES[:, 0].copy()), ShapeError, "4 axes"),
            (
                on_gpu(device, IMAGES[:, :, 1:].copy()),
                ShapeError,
                r"Expected: float32 \[4, 1, 8, 8\]",
            ),
            (IMAGES, UsageError, "not on the GPU"),
        ):
            with pytest.raises(error, match=words):
                session.run_on_device({"images": wrong})
        with pytest.raises(ShapeError, match="'poses' is float32"):
            session.run_on_device({"images": given}, out={"poses": on_gpu(device, IMAGES)})
        other = ByDlpack(given, device=(2, 1))
        with pytest.raises(UsageError, match=r"is on GPU 1(.|\n)*model runs on GPU 0"):
            session.run_on_device({"images": other})
        assert session.run_on_device({"images": given})
    with pytest.raises(UsageError, match="is closed"):
        session.run_on_device({"images": given})


# What the verbs make of it


def test_profile_compares_the_ways_to_run(model: Path, ran: Ran) -> None:
    """Bodies and kernels where the file has some, without graphs and, where they are possible, with them."""
    with opened(model) as session:
        ways = [(way.name, way.specification) for way in _ways(session)]
        assert [name for name, _ in ways] == ["capsedge portable", "capsedge portable, CUDA graphs"]
        assert [way.graphs for _, way in ways] == [False, None]
        assert {(way.device, way.ops) for _, way in ways} == {("cuda", "portable")}
        session.backend.ops = "mixed"
        assert [(way.name, way.specification.ops) for way in _ways(session)] == [
            ("capsedge portable", "portable"),
            ("capsedge portable, CUDA graphs", "portable"),
            ("capsedge mixed", "auto"),
            ("capsedge mixed, CUDA graphs", "auto"),
        ]
        assert backend_version(session).endswith(", CUDA graphs")
        assert graphs_argument(session) is None
    with opened(model, graphs=False) as session:
        assert [way.name for way in _ways(session)] == ["capsedge portable"]
        assert graphs_argument(session) is False
        assert backend_version(session).endswith(", no CUDA graphs: graphs were not requested")
    with capsedge.load(model) as session:
        assert _ways(session) == []


def test_operators_are_timed_without_graphs(model: Path, ran: Ran) -> None:
    with opened(model) as session:
        session.run(IMAGES)
        session.run(IMAGES)
        assert isinstance(session.backend, ProfiledBackend)
        with session.backend.profiled_runs({"images": IMAGES}) as runs:
            runs.plain()
            runs.profiled()
            assert len(runs.finish().runs) == 1
    assert ran.graphs == ["1"]


def test_infer_says_why_there_are_no_graphs(
    model: Path, ran: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    ran.refuses = "control flow"
    with opened(model) as session:
        _log_graphs(session, capsedge.RuntimeOptions())
        session.run(IMAGES)
        session.run(IMAGES)
        _log_graphs(session, capsedge.RuntimeOptions())
        _log_graphs(session, capsedge.RuntimeOptions(graphs=False))
    assert capsys.readouterr().err == "m.onnx ran without CUDA graphs: control flow\n"


def test_doctor_runs_the_default_model_on_the_gpu(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor._on_gpu() == []
    monkeypatch.setattr(doctor, "has_gpu", lambda: True)
    (check,) = doctor._on_gpu()
    assert check.status == OK
    assert check.found == "digits-dynamic.onnx runs, portable operators, CUDA graphs"
    assert ran.graphs == ["1", "1"]
    ran.refuses = "control flow"
    (check,) = doctor._on_gpu()
    assert check.found.endswith("no CUDA graphs: control flow")
    monkeypatch.setattr(onnxruntime, "InferenceSession", None)
    (check,) = doctor._on_gpu()
    assert check.status == BROKEN
