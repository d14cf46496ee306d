"""The NVIDIA GPU of this machine, its driver, and what keeps ONNX Runtime from it: ``capsedge doctor``."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import shutil
import subprocess
from pathlib import Path

from capsedge.runtime.machine.check import BROKEN, MISSING, OK, Check

PCI = Path("/sys/bus/pci/devices")
# A discrete GPU with its driver, the GPU of a Jetson, the GPU of Windows in WSL.
NODES = ("/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/dxg")
_JOB = "gpu"
_NVIDIA, _DISPLAY = "0x10de", "0x03"


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, with or without a driver."""
    return any(map(os.path.exists, NODES)) or any(map(_is_gpu, PCI.glob("*")))


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = ((device / name).read_text(encoding="ascii") for name in ("vendor", "class"))
    except OSError:
        return False
    return vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY)


def gpu() -> Check:
    """The GPU and its driver. A machine without a GPU lacks one; nothing of it is broken."""
    name, cost = "NVIDIA GPU", "models run on the CPU"
    if not has_gpu():
        none = "nothing to mend, unless there is one: then install its driver"
        return Check(name, _JOB, MISSING, "none in this machine", cost, none)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Check(
            name, _JOB, MISSING, "no CUDA driver (libcuda.so.1)", cost, "install the GPU's driver"
        )
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    driver.cuDriverGetVersion(ctypes.byref(version))
    cuda = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    if not status and count.value:
        shown = _nvidia_smi() or f"{count.value} GPU"
        return Check(name, _JOB, OK, f"{shown}, driver for {cuda}")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        found = f"driver for {cuda}, but CUDA_VISIBLE_DEVICES='{hidden}' hides the GPU"
        return Check(name, _JOB, BROKEN, found, cost, "unset CUDA_VISIBLE_DEVICES")
    found = f"driver for {cuda}, but no usable GPU (CUDA error {status})"
    return Check(name, _JOB, BROKEN, found, cost, "run nvidia-smi and follow what it says")


def _nvidia_smi() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    query = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, encoding="utf-8", errors="replace", timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return "; ".join(line.strip() for line in done.stdout.splitlines() if line.strip())


def onnxruntime_packages() -> list[Check]:
    """A line if several packages provide the module ``onnxruntime``; none if there is no such conflict.

    They share one folder: what is installed last overwrites the others, and without `onnxruntime-gpu`'s
    own libraries the CUDA provider is gone.
    """
    providers = importlib.metadata.packages_distributions().get("onnxruntime", ())
    packages = sorted(set(providers))
    if len(packages) < 2:
        return []
    others = [p for p in packages if p != "onnxruntime"]
    kept = "onnxruntime-gpu" if "onnxruntime-gpu" in others else others[0]
    wanted = "'capsedge[gpu]'" if kept == "onnxruntime-gpu" else kept
    shown = " and ".join(f"{p} {importlib.metadata.version(p)}" for p in packages)
    return [
        Check(
            "onnxruntime",
            _JOB,
            BROKEN,
            f"{shown} overwrite each other",
            f"{kept} may have lost its GPU libraries",
            f"pip uninstall -y {' '.join(packages)} && pip install {wanted}",
        )
    ]
