"""Sessions of ONNX Runtime on a GPU, over a stand-in that computes on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import capsedge
from capsedge.errors import ArtefactError
from capsedge.runtime.backends.onnxruntime_session import CPU, CUDA, NO_FALLBACK
from capsedge.runtime.profiling.worker import ops_argument
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
    return asked


def test_fp32_is_not_tf32(tmp_path: Path, asked: list[Any]) -> None:
    """The CUDA provider would use it, where the GPU has it."""
    capsedge.load(
        save(capsule_model(), tmp_path / "m.onnx"), capsedge.RuntimeOptions(device="cuda")
    ).close()
    assert asked == [(CUDA, {"device_id": "0", "use_tf32": "0"})]


def test_it_runs_without_the_cuda_runtime(tmp_path: Path, asked: list[Any]) -> None:
    """ONNX Runtime brings what it needs; a failure is that of the file, and the next call runs."""
    path = save(capsule_model(), tmp_path / "m.onnx")
    wanted = capsedge.load(path, capsedge.RuntimeOptions(ops="portable"))
    found = capsedge.load(path, capsedge.RuntimeOptions(device="cuda"))
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
    options = capsedge.RuntimeOptions(device="cuda", ops="portable")
    assert ops_argument(capsedge.load(path, options)) == "portable"
