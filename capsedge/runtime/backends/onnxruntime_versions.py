"""Check ONNX Runtime's version and choose its execution providers.

pyproject.toml and capsedge/runtime/native/onnxruntime/ort_abi.h repeat ``OLDEST``; a test compares
them.
"""

from __future__ import annotations

import re
from typing import Any

from capsedge.errors import EnvironmentProblem, UnsupportedModelError, UsageError

# --- Versions: the oldest supported one, and what changed since ---

OLDEST = (1, 19)
OVERLOADS = (1, 27)  # the first that tells functions apart by ``FunctionProto.overload``
HOW_TO_GET = "pip install 'capsedge[cpu]', or 'capsedge[gpu]' on a machine with an NVIDIA GPU"
# Versions that tests/runtimes uses beside the installed one (`make runtimes`): the oldest, the last for
# Python 3.10 and JetPack 6, the last before OVERLOADS.
TESTED = ("1.19.0", "1.23.2", "1.26.0")


def parse(version: str) -> tuple[int, int]:
    """Major and minor number of ``1.23.2`` or ``1.27.0.dev20260101``; zeros where there are none."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def distribution() -> str:
    """The installed package that is the module ``onnxruntime``, such as ``onnxruntime-gpu``."""
    import importlib.metadata

    found = importlib.metadata.packages_distributions().get("onnxruntime", ())
    return next((name for name in sorted(found) if name != "onnxruntime"), "onnxruntime")


def text(version: tuple[int, int]) -> str:
    """``1.19``."""
    return ".".join(map(str, version))


# --- Execution providers: the requested device is used, or loading fails ---

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
PROVIDERS = ("auto", "cpu", "cuda", "tensorrt")
_NAMES = {"cpu": CPU, "cuda": CUDA, "tensorrt": TENSORRT}
NO_FALLBACK = "session.disable_cpu_ep_fallback"
_FELL_BACK = "fallback to CPU EP has been explicitly disabled"


def resolve(provider: str, gpu: int | None) -> str:
    """ONNX Runtime's name for the provider to use.

    Raises:
        UsageError: the provider is unknown or does not run on the device.
    """
    if provider not in PROVIDERS:
        raise UsageError(f"Unknown provider '{provider}'.", "", f"Known: {', '.join(PROVIDERS)}.")
    if provider == "auto":
        return CPU if gpu is None else CUDA
    if (provider == "cpu") != (gpu is None):
        wanted = "cpu" if provider == "cpu" else "cuda"
        raise UsageError(
            f"The provider '{provider}' does not run on the device '{'cpu' if gpu is None else 'cuda'}'.",
            "",
            f"Combine it with the device '{wanted}'.",
        )
    return _NAMES[provider]


def chain(provider: str, gpu: int | None) -> list[Any]:
    """The list for ONNX Runtime: the provider, followed for TensorRT by the CUDA provider.

    FP32 is FP32: the CUDA provider would use TF32, which keeps 10 bits, where the GPU has it. The TensorRT
    provider has no such option.
    """
    if gpu is None:
        return [provider]
    device = {"device_id": str(gpu)}
    cuda = (CUDA, {**device, "use_tf32": "0"})
    return [cuda] if provider == CUDA else [(provider, device), cuda]


def check_available(ort: Any, provider: str) -> None:
    """Refuse a provider that this build of ONNX Runtime lacks.

    Raises:
        EnvironmentProblem: it lacks it.
    """
    available = ort.get_available_providers()
    if provider not in available:
        raise EnvironmentProblem(
            f"ONNX Runtime {ort.__version__} has no {provider}.",
            f"It has {', '.join(available)}.",
            "Replace it: `pip uninstall onnxruntime`, then `pip install 'capsedge[gpu]'`; or use the "
            "device 'cpu'.",
        )


def check_used(session: Any, provider: str) -> None:
    """Make sure that a session really has the provider: ONNX Runtime only warns when one does not start.

    Raises:
        EnvironmentProblem: it fell back to the CPU.
    """
    used = session.get_providers()
    if provider not in used:
        raise EnvironmentProblem(
            f"{provider} did not start.",
            f"ONNX Runtime would have continued with {', '.join(used)}; usually a library of CUDA, cuDNN or "
            "TensorRT is missing, or is not the version that ONNX Runtime was built for.",
            "Run `capsedge doctor`; install CUDA and cuDNN with `pip install 'onnxruntime-gpu[cuda,cudnn]'`.",
        )


def fell_back(error: BaseException) -> bool:
    """Whether a session was refused because nodes would have run on the CPU."""
    return _FELL_BACK in str(error)


def refused(name: str, provider: str) -> UnsupportedModelError:
    """The error for a model that does not run on the device as a whole."""
    return UnsupportedModelError(
        f"{name} does not run entirely on {provider}.",
        "Some of its operators would run on the CPU, with copies in between, and the device is a contract.",
        "Use the device 'cpu', export with `capsedge export --ops portable`, or build a TensorRT engine.",
    )
