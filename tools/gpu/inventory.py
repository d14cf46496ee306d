"""List what the machine has: ``python -m tools.gpu.inventory FILE``. No setting is changed."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import machine
from capsedge.errors import CapsedgeError
from capsedge.runtime.backends.cuda import device_name, driver_version, load_cuda
from capsedge.runtime.backends.cuda_operators import find_cuda_operators
from capsedge.runtime.backends.tensorrt_library import import_tensorrt
from capsedge.runtime.backends.tensorrt_rtx import import_tensorrt_rtx
from capsedge.runtime.files.writing import write_bytes
from tests.native import cuda_library
from tests.native.library import NativeError

PACKAGES = (
    "numpy", "torch", "onnx", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx-cu13-libs",
    "triton", "pytest",
)  # fmt: skip
PROGRAMS = ("nvidia-smi", "nvcc", "ncu", "nsys", "compute-sanitizer", "cuobjdump", "tegrastats")
SMI = "name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,clocks.sm,power.limit,ecc.mode.current"


def inventory() -> dict[str, Any]:
    """Facts about the machine; ``found`` lists what steps may need: empty, or why it is missing."""
    gpu, why = _gpu()
    programs = {name: _program(name) for name in PROGRAMS}
    packages = {name: _version(name) for name in PACKAGES}
    facts: dict[str, Any] = {
        "machine": machine(),
        "gpu": gpu,
        "driver": driver_version(),
        "programs": programs,
        "packages": packages,
    }
    if programs["nvidia-smi"]:
        facts["nvidia_smi"] = _output(["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"])
    facts["found"] = {
        "gpu": why,
        "kernels": _kernels(),
        "operators": _imported(find_cuda_operators),
        "torch": _torch(),
        "onnxruntime": _onnxruntime(),
        "tensorrt": _imported(import_tensorrt),
        "tensorrt-rtx": _imported(import_tensorrt_rtx),
        **{
            name: "" if programs[name] else f"{name} is not installed"
            for name in ("ncu", "compute-sanitizer")
        },
    }
    return facts


def _gpu() -> tuple[dict[str, Any], str]:
    try:
        cuda = load_cuda()
        if not cuda.device_count():
            return {}, "CUDA sees no GPU"
        with cuda.on(0):
            free = cuda.free_memory()
        return {
            "name": device_name(0),
            "compute_capability": cuda.compute_capability(0),
            "multiprocessors": cuda.multiprocessors(0),
            "free_memory": free,
            "cudart": cuda.runtime_version(),
        }, ""
    except CapsedgeError as error:
        return {}, " ".join(str(error).splitlines()[:2])


def _kernels() -> str:
    path = cuda_library.gpu_library()
    if path is None:
        return "the CUDA kernels are not built: `make cuda`, or carry them there (--pack)"
    try:
        cuda_library.bind(path)
    except (OSError, NativeError) as error:
        return f"the CUDA kernels do not load: {error}"
    return ""


def _torch() -> str:
    """Ask in a separate process, since importing torch may crash it."""
    code = "import torch; print(torch.cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["torch does not load"])[-1]
    return "" if done.stdout.strip() == "True" else "torch sees no GPU"


def _onnxruntime() -> str:
    """Ask without starting the provider."""
    try:
        import onnxruntime
    except ImportError as error:
        return str(error)
    found = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    return "" if found else "this ONNX Runtime has no CUDA provider: pip install onnxruntime-gpu"


def _imported(load: Callable[[], Any]) -> str:
    try:
        load()
    except CapsedgeError as error:
        return " ".join(str(error).splitlines()[:2])
    return ""


def _program(name: str) -> str:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin") or ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.strip()


if __name__ == "__main__":
    write_bytes(Path(sys.argv[1]), (json.dumps(inventory(), indent=1) + "\n").encode())
