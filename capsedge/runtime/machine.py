"""Report facts about this machine: processor, system, GPU, versions of packages."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.native_library import find_library, levels_of, unset_command


def machine() -> dict[str, str]:
    """This machine in words; also part of every certificate."""
    facts = {
        "system": _system(),
        "architecture": platform.machine(),
        "cpu": _cpu_name(),
        "cores": str(available_cores()),
        "simd": simd_level(),
    }
    model = Path("/proc/device-tree/model")
    if model.is_file():
        facts["board"] = model.read_text(encoding="utf-8", errors="replace").rstrip("\0\n")
    mode = power_mode()
    if mode:
        facts["power_mode"] = mode
    return facts


def power_mode() -> str:
    """The power mode of a Jetson from ``nvpmodel -q``, such as ``MAXN_SUPER``; empty elsewhere.

    It determines clocks, cores and multiprocessors of the GPU; the number of the fastest differs by board.
    """
    match = re.search(r"Power Mode: *(\S+)", _printed_by("nvpmodel", "-q"))
    return match[1] if match else ""


def _printed_by(program: str, *words: str) -> str:
    """What a program prints; empty if it is missing or fails."""
    found = shutil.which(program)
    if found is None:
        return ""
    try:
        done = subprocess.run(
            [found, *words],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def versions(*packages: str) -> dict[str, str]:
    """Versions of those packages that are installed; imports none of them."""
    installed = {name: installed_version(name) for name in packages}
    return {name: version for name, version in installed.items() if version}


def installed_version(package: str) -> str:
    """Version of an installed package, under any of its distribution names; empty if not installed."""
    from importlib import metadata  # brings zipfile and more

    if importlib.util.find_spec(package) is None:
        return ""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    # Under another name; this reads the list of files of every installed package.
    for name in sorted(metadata.packages_distributions().get(package, ())):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "version unknown"


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_ARM = ("aarch64", "arm64")
# Names of the library's levels, for people.
_LEVELS = {
    "amx": "AMX",
    "avx512vnni": "AVX-512 VNNI",
    "avx512": "AVX-512",
    "avx2": "AVX2",
    "neon": "NEON",
}


def simd_level() -> str:
    """Widest instruction set of this CPU that the native kernels support, as the operator library says.

    AMX, AVX-512 VNNI, AVX-512, AVX2, NEON or plain. Without the library, it is read from the system, which
    says nothing ("unknown") of x86 outside Linux.
    """
    if levels := simd_levels():
        return _LEVELS.get(levels[-1], levels[-1])
    if platform.machine().lower() in _ARM:
        return "NEON"
    flags = _cpuinfo("flags").split()
    if not flags:
        return "unknown"
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(flags):
        if "avx512_vnni" not in flags:
            return "AVX-512"
        return "AMX" if {"amx_tile", "amx_int8"} <= set(flags) else "AVX-512 VNNI"
    return "AVX2" if {"avx2", "fma"} <= set(flags) else "plain"


def saturates_products_of_bytes() -> bool:
    """Whether fast code adds pairs of byte products in 16 bits, as on x86 processors without VNNI.

    There, ``vpmaddubsw`` saturates: 255 times 127, twice, is more than 32767. Where nothing says what the
    processor has, it is true: right before fast.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    flags = set(_cpuinfo("flags").split())  # none outside Linux
    return not {"avx512_vnni", "avx_vnni"} & flags if flags else "avx512vnni" not in simd_levels()


def simd_levels() -> list[str]:
    """The operator library's levels on this machine, slowest first; empty without a library that opens."""
    with suppress(EnvironmentProblem, OSError, AttributeError):
        library = find_library()
        return levels_of(library) if library else []
    return []


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _cpu_name() -> str:
    name = _cpuinfo("model name")
    if sys.platform == "win32":
        name = _registered_cpu_name()
    elif sys.platform == "darwin":
        name = _printed_by("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    return name or platform.processor() or platform.machine()


if sys.platform == "win32":

    def _registered_cpu_name() -> str:
        import winreg

        with (
            suppress(OSError),
            winreg.OpenKey(
                winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
            ) as key,
        ):
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
        return ""


def _system() -> str:
    """``Linux 6.1``, ``Windows 11``, ``macOS 14.5``."""
    if sys.platform == "darwin" and (version := platform.mac_ver()[0]):
        return f"macOS {version}"
    return f"{platform.system()} {platform.release()}"


# --- A check of ``capsedge doctor`` ---

OK, MISSING, BROKEN = "ok", "missing", "broken"


@dataclass(frozen=True)
class Check:
    """One line of the diagnosis by ``capsedge doctor``.

    Attributes:
        name: the part.
        job: what needs it: ``infer`` (the base job), ``faster``, ``export``, ``gpu``, ``compare``.
        status: ``ok``, ``missing`` or ``broken``.
        found: version, path or the reason.
        cost: what is lost without it; empty when it is there.
        fix: the command that fixes it; empty if nothing is missing.
    """

    name: str
    job: str
    status: str
    found: str
    cost: str = ""
    fix: str = ""

    def advice(self) -> tuple[str, str]:
        """What is lost without the part, and the fix."""
        return f"  {self.name}: {self.cost}.", f"    -> {self.fix}"


# --- The NVIDIA GPU, its driver, and what keeps ONNX Runtime from using it ---

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
        problem = f"driver for {cuda}, but CUDA_VISIBLE_DEVICES='{hidden}' hides the GPU"
        return Check(name, _JOB, BROKEN, problem, cost, unset_command("CUDA_VISIBLE_DEVICES"))
    problem = f"driver for {cuda}, but no usable GPU (CUDA error {status})"
    return Check(name, _JOB, BROKEN, problem, cost, "run nvidia-smi and follow what it says")


def _nvidia_smi() -> str:
    query = "--query-gpu=name,driver_version,memory.total"
    printed = _printed_by("nvidia-smi", query, "--format=csv,noheader")
    return "; ".join(line.strip() for line in printed.splitlines() if line.strip())


def onnxruntime_packages() -> list[Check]:
    """A line if several packages provide the module ``onnxruntime``; none if there is no such conflict.

    They share one folder: what is installed last overwrites the others, and without `onnxruntime-gpu`'s
    own libraries the CUDA provider is gone.
    """
    from importlib import metadata  # brings zipfile and more

    providers = metadata.packages_distributions().get("onnxruntime", ())
    packages = sorted(set(providers))
    if len(packages) < 2:
        return []
    others = [p for p in packages if p != "onnxruntime"]
    kept = "onnxruntime-gpu" if "onnxruntime-gpu" in others else others[0]
    wanted = "'capsedge[gpu]'" if kept == "onnxruntime-gpu" else kept
    shown = " and ".join(f"{p} {metadata.version(p)}" for p in packages)
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
