"""Devices and providers: what is asked for is used or refused. Engines themselves: tests/tensorrt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capsedge
from capsedge.errors import EnvironmentProblem, UnsupportedModelError, UsageError
from capsedge.runtime.backends import onnxruntime_session
from capsedge.runtime.backends.backend import parse_device
from capsedge.runtime.backends.onnxruntime_backend import OnnxRuntimeBackend
from capsedge.runtime.backends.onnxruntime_session import NO_FALLBACK, SessionSettings
from tests.runtime.models import capsule_model, save


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(capsule_model(), tmp_path / "m.onnx")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", ""])
def test_unknown_devices(model: Path, device: str) -> None:
    with pytest.raises(UsageError, match="Unknown device"):
        parse_device(device)


def test_devices() -> None:
    assert parse_device("cpu") is None
    assert parse_device("cuda") == 0
    assert parse_device("cuda:3") == 3


@pytest.mark.parametrize(
    ("provider", "device"),
    [("cpu", "cuda"), ("cuda", "cpu"), ("tensorrt", "cpu"), ("openvino", "cpu")],
)
def test_providers_that_do_not_fit_the_device(model: Path, provider: str, device: str) -> None:
    with pytest.raises(UsageError, match="provider"):
        capsedge.load(model, device=device, provider=provider)


def test_chains() -> None:
    assert onnxruntime_session.provider_chain(onnxruntime_session.CPU, None) == [
        onnxruntime_session.CPU
    ]
    assert onnxruntime_session.provider_chain(onnxruntime_session.CUDA, 1) == [
        (onnxruntime_session.CUDA, {"device_id": "1", "use_tf32": "0"})
    ]
    assert onnxruntime_session.provider_chain(onnxruntime_session.TENSORRT, 0) == [
        (onnxruntime_session.TENSORRT, {}),
        (onnxruntime_session.CUDA, {"use_tf32": "0"}),
    ]


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_missing_provider_is_no_reason_to_use_the_cpu(model: Path, provider: str) -> None:
    import onnxruntime

    name = onnxruntime_session.resolve_provider(provider, 0)
    if name in onnxruntime.get_available_providers():
        pytest.skip(f"this ONNX Runtime has {name}")
    with pytest.raises(EnvironmentProblem, match=name) as caught:
        capsedge.load(model, device="cuda", provider=provider)
    assert "capsedge[gpu]" in caught.value.fix


def test_the_tensorrt_provider_has_function_bodies(model: Path) -> None:
    with pytest.raises(UsageError, match="kernels for the CPU and for the CUDA provider"):
        capsedge.load(model, device="cuda", provider="tensorrt", ops="fused")


def test_nodes_on_the_cpu_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's own placement: the Azure provider is in every package and takes no node."""
    import onnxruntime

    azure = "AzureExecutionProvider"
    if azure not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has no second provider")
    monkeypatch.setattr(onnxruntime_session, "provider_chain", lambda provider, *_: [provider])
    monkeypatch.setattr(onnxruntime_session, "check_gpu", lambda _: None)
    with pytest.raises(UnsupportedModelError, match="does not run entirely on"):
        OnnxRuntimeBackend(
            model.read_bytes(), model, SessionSettings(threads=1, provider=azure, gpu=0)
        )


def test_a_provider_that_does_not_start_is_an_error(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime warns and goes on with the CPU; the session must not."""
    import onnxruntime

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, data: bytes, options: Any, providers: Any, **rest: Any) -> None:
            options.add_session_config_entry(NO_FALLBACK, "0")
            super().__init__(data, options, providers=["CPUExecutionProvider"], **rest)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(
        onnxruntime,
        "get_available_providers",
        lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"],
    )
    with pytest.raises(EnvironmentProblem, match="CUDAExecutionProvider did not start"):
        capsedge.load(model, device="cuda")


def test_operators_of_a_gpu_without_a_provider_are_no_bug(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session on the CPU, which tells why, lacks operators that are registered for the GPU."""
    import onnxruntime

    errors = iter(
        [
            "fallback to CPU EP has been explicitly disabled by the user",
            "Could not find an implementation for Squash(1) node with name 'node_squash'",
        ]
    )

    def session(*_: Any, **__: Any) -> None:
        raise RuntimeError(next(errors))

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime_session, "check_gpu", lambda _: None)
    with pytest.raises(EnvironmentProblem, match="CUDAExecutionProvider did not start"):
        capsedge.load(model, device="cuda")


def test_engines_take_no_options_of_onnx_runtime(tmp_path: Path) -> None:
    engine = tmp_path / "m.engine"
    engine.write_bytes(b"x")
    for options in ({"device": "cpu"}, {"ops": "fused"}, {"provider": "cuda"}):
        with pytest.raises(UsageError, match="is a TensorRT engine"):
            capsedge.load(engine, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no such file"):
        capsedge.load(tmp_path / "none.engine")


def test_onnx_files_do_not_run_on_device_arrays(model: Path) -> None:
    session = capsedge.load(model)
    with pytest.raises(UsageError, match="Models that run on a GPU do"):
        session.run_on_device({"images": np.zeros((1, 1, 8, 8), np.float32)})


def test_nothing_of_cuda_is_loaded_for_an_onnx_file(model: Path) -> None:
    code = (
        "import sys, capsedge; capsedge.load(sys.argv[1]);"
        "print([m for m in sys.modules if m in ('tensorrt', 'torch', 'onnx')"
        " or m.startswith('capsedge.runtime.tensorrt') or m == 'capsedge.runtime.backends.cuda'])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
