"""Memory of this process and of its GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident() -> int | None:
    """Resident memory of this process now, in bytes; None if the system does not report it."""
    return _field("VmRSS:")


def peak_resident() -> int | None:
    """The peak resident memory of this process, in bytes; None if the system does not report it.

    Unlike the value of getrusage, it does not start from the memory of the parent process.
    """
    return _field("VmHWM:")


def device_memory() -> int | None:
    """Memory that this process uses on NVIDIA GPUs, in bytes; None without ``nvidia-smi``."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [program, *query], capture_output=True, encoding="utf-8", errors="replace", timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = [line.split(",") for line in done.stdout.splitlines() if line.count(",") == 1]
    used = [
        int(size)
        for pid, size in rows
        if pid.strip() == str(os.getpid()) and size.strip().isdigit()
    ]
    return sum(used) * 2**20 if used else None


def _field(name: str) -> int | None:
    try:
        lines = _STATUS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return None
