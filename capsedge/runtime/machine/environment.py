"""Facts about this machine: processor, system, versions of packages. Tries nothing out."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path


def machine() -> dict[str, str]:
    """This machine in words; also part of every certificate."""
    facts = {
        "system": f"{platform.system()} {platform.release()}",
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
    program = shutil.which("nvpmodel")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "-q"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"Power Mode: *(\S+)", done.stdout)
    return found[1] if found else ""


def versions(*packages: str) -> dict[str, str]:
    """Versions of those packages that are installed; imports none of them."""
    found = {name: installed_version(name) for name in packages}
    return {name: version for name, version in found.items() if version}


def installed_version(package: str) -> str:
    """Version of an installed package, under any of its distribution names; empty if not installed."""
    if importlib.util.find_spec(package) is None:
        return ""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    # Under another name; this reads the list of files of every installed package.
    for name in sorted(importlib.metadata.packages_distributions().get(package, ())):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "version unknown"


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def simd_level() -> str:
    """Widest instruction set of this CPU that the native kernels support.

    AMX, AVX-512 VNNI, AVX-512, AVX2, NEON or plain.
    """
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "NEON"
    flags = _cpuinfo("flags").split()
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(flags):
        if "avx512_vnni" not in flags:
            return "AVX-512"
        return "AMX" if {"amx_tile", "amx_int8"} <= set(flags) else "AVX-512 VNNI"
    return "AVX2" if {"avx2", "fma"} <= set(flags) else "plain"


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _cpu_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()
