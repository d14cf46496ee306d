"""Building the native code, and ONNX Runtime for ARM in an emulator: what the tests of builds share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "capsedge" / "runtime" / "native"
TOOLCHAIN = NATIVE / "cmake" / "aarch64.cmake"
ARM_C, ARM_COMPILER = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++"

# What a 64-bit ARM kernel shows. ONNX Runtime reads it on start; the emulator would hand on this
# machine's own, which crashes it.
ARM_CPUINFO = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3
"""


def environment() -> dict[str, str]:
    """cmake and ninja come from the environment that runs the tests."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def cmake_build(folder: Path, target: str, *options: str) -> Path:
    """Configure and build the native code; returns the build folder. Skips where the tools are missing."""
    cmake = shutil.which("cmake", path=environment()["PATH"])
    if cmake is None or shutil.which("c++") is None:
        pytest.skip("needs cmake and a C++ compiler: pip install cmake; apt-get install g++")
    for command in (
        [cmake, "-S", str(NATIVE), "-B", str(folder), *options],
        [cmake, "--build", str(folder), "-j", "2", "--target", target],
    ):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment()
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@dataclass(frozen=True)
class Arm:
    """An emulated ARM machine: the command that runs a program on it, and its ONNX Runtime."""

    emulator: list[str]
    onnxruntime: Path


def arm(folder: Path) -> Arm:
    """The machine, made in a folder; skips the test where compiler, emulator or package are missing."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if not all(shutil.which(name) for name in (ARM_C, ARM_COMPILER, "qemu-aarch64")):
        pytest.skip("apt-get install g++-aarch64-linux-gnu qemu-user")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    platforms = ["--platform", "manylinux_2_28_aarch64", "--platform", "manylinux_2_27_aarch64"]
    downloaded = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
         *platforms, "--python-version", python, "--dest", str(folder),
         f"onnxruntime=={onnxruntime.__version__}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    wheels = list(folder.glob("onnxruntime*.whl"))
    if not wheels:
        pytest.skip(
            f"no onnxruntime for ARM from the package index: {downloaded.stderr.strip()[-200:]}"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        name = next(n for n in wheel.namelist() if "/libonnxruntime.so." in n)
        library = Path(wheel.extract(name, folder))
    root = folder / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc" / "cpuinfo").write_text(f"{ARM_CPUINFO}\n" * 2)
    (root / "lib").symlink_to("/usr/aarch64-linux-gnu/lib")
    return Arm(["qemu-aarch64", "-cpu", "cortex-a72", "-L", str(root)], library)
