"""Sessions of ONNX Runtime on a GPU, over a stand-in that computes on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import capsedge
from capsedge.errors import ArtefactError, EnvironmentProblem
from capsedge.runtime.backends import onnxruntime_backend, onnxruntime_session
from capsedge.runtime.backends.onnxruntime_session import CPU, CUDA, NO_FALLBACK, preload_cuda
from capsedge.runtime.profiling.worker import ops_argument
from capsedge.runtime.runtime_options import RuntimeOptions
from tests.runtime.models import capsule_model, save


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The providers that a session was made with, on a machine whose ONNX Runtime has CUDA."""
    asked: list[Any] = []

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, data: bytes, options: Any, providers: Any, **rest: Any) -> None:
            asked.extend(providers)
            options.add_session_config_entry(NO_FALLBACK, "0")
            super().__init__(data, options, providers=[CPU], **rest)

        def get_providers(self) -> list[str]:
            return [CUDA, CPU]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime_session, "check_gpu", lambda _: None)
    return asked


def test_fp32_is_not_tf32(tmp_path: Path, asked: list[Any]) -> None:
    """The CUDA provider would use it, where the GPU has it."""
    capsedge.load(save(capsule_model(), tmp_path / "m.onnx"), device="cuda").close()
    assert asked == [(CUDA, {"use_tf32": "0"})]


def test_libraries_of_pip_packages_are_loaded_first(
    tmp_path: Path,
    asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The provider looks for CUDA and cuDNN on the system only. What is missing is no output of ours."""
    calls: list[int] = []

    def preload() -> None:
        calls.append(len(asked))
        print("Failed to load libcudnn.so.9")

    preload_cuda.cache_clear()
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload, raising=False)
    path = save(capsule_model(), tmp_path / "m.onnx")
    capsedge.load(path).close()
    assert not calls
    asked.clear()
    for _ in range(2):
        capsedge.load(path, device="cuda").close()
    assert calls == [0]
    assert capsys.readouterr().out == ""
    preload_cuda.cache_clear()
    monkeypatch.delattr(onnxruntime, "preload_dlls")  # as before 1.21
    capsedge.load(path, device="cuda").close()


def test_it_runs_without_the_cuda_runtime(tmp_path: Path, asked: list[Any]) -> None:
    """ONNX Runtime brings what it needs; a failure is that of the file, and the next call runs."""
    path = save(capsule_model(), tmp_path / "m.onnx")
    wanted = capsedge.load(path, ops="portable")
    found = capsedge.load(path, device="cuda")
    assert found.backend.gpu == 0
    name, shape = wanted.inputs[0].name, [2, *wanted.inputs[0].shape[1:]]
    images = np.random.default_rng(0).random(shape).astype(np.float32)
    for key, value in wanted.run(images).items():
        np.testing.assert_allclose(found.run(images)[key], value, atol=1e-6)
    with pytest.raises(ArtefactError, match=r"failed while running .*m\.onnx on "):
        found.backend.run({name: images[:, :, 1:]}, [port.name for port in found.outputs])
    assert found.run(images)


def test_a_profile_repeats_the_operators_that_run(tmp_path: Path, asked: list[Any]) -> None:
    """Function bodies that were asked for are not measured as kernels."""
    path = save(capsule_model(), tmp_path / "m.onnx")
    options = RuntimeOptions(device="cuda", ops="portable")
    assert ops_argument(capsedge.load(path, options)) == "portable"


@pytest.mark.parametrize("ops", ["auto", "fused"])
def test_a_cuda_runtime_that_is_too_old_means_function_bodies(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch, ops: str
) -> None:
    """Only a session can tell; ops 'fused' is an error."""
    tried: list[str] = []

    def with_operators(bare: Any, path: Path, data: bytes, summary: Any, ops: str) -> Any:
        tried.append(ops)
        return bare, False

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, *given: Any, **rest: Any) -> None:
            if tried[-1] != "portable":
                raise RuntimeError(
                    "capsedge cannot use the CUDA kernels: libcudart.so.12 is CUDA 12.4, and 12.8 or newer "
                    "is needed"
                )
            super().__init__(*given, **rest)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime_backend, "_with_operators", with_operators)
    path = save(capsule_model(), tmp_path / "m.onnx")
    options = RuntimeOptions(device="cuda", ops=ops)
    if ops == "fused":
        with pytest.raises(EnvironmentProblem, match=r"do not run here[^\0]*12\.8 or newer"):
            capsedge.load(path, options)
    else:
        assert capsedge.load(path, options).backend.ops == "portable"
        assert tried == ["auto", "portable"]
