"""Skipped tests in pytest's summary: a line for each tool that is missing, with the command that mends it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

_NODE = "Node.js 20.19 or later is missing; install it and run `make web`"
_WEB = "the npm package and the page are not built; run `make web`"
_COMPILER = "a C++17 compiler or cmake is missing; apt-get install g++ binutils, and `make test`"
_CUDA = "the public headers of TensorRT or CUDA's are missing; set CAPSEDGE_TENSORRT_INCLUDE and CUDA_INCLUDE"
_PACKAGES = "Python packages are missing; `make test` installs them"
# What a reason says, and the line that it becomes: the first that is found counts.
TOOLS = (
    (r"make test-release", "the tools of releases or the page are missing; run `make test-release`"),
    (r"make test-arm", "the emulator of ARM or the tools of releases are missing; run `make test-arm`"),
    (r"Node\.js", _NODE),
    (r"make web", _WEB),
    (r"[Cc]hromium|no browser", "Chromium is missing; apt-get install chromium"),
    (r"make runtimes", "other versions of ONNX Runtime are missing; run `make runtimes`"),
    (r"make test-nvidia", "TensorRT-RTX is missing; run `make test-nvidia`"),
    (r"make test-cuda-provider", "onnxruntime-gpu is missing; run `make test-cuda-provider`"),
    (r"make test-gpu-code", "other versions of onnxruntime-gpu are missing; run `make test-gpu-code`"),
    (r"FastAPI", "FastAPI is missing; `make bench-serve` installs it"),
    (r"make test-ray", "Ray is missing; run `make test-ray`"),
    (r"onnxruntime_c_api\.h", "ONNX Runtime's C header is missing; run tools/onnxruntime_headers.sh"),
    (r"CAPSEDGE_TENSORRT_INCLUDE|TensorRT's public headers", _CUDA),
    (r"gcc-arm-none-eabi|qemu-system|gcc-riscv64",
     "tools for microcontrollers are missing; apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi "
     "qemu-system-arm gcc-riscv64-unknown-elf qemu-system-misc"),
    (r"qemu|aarch64|onnxruntime for ARM",
     "QEMU or the compiler for ARM is missing; apt-get install g++-aarch64-linux-gnu qemu-user"),
    (r"nvcc(?! does)", "nvcc is missing; install CUDA 12.8 or later"),
    (r"needs a C compiler", _COMPILER),
    (r"systemd-analyze", "systemd-analyze is missing; apt-get install systemd"),
    (r"pyright", "pyright is missing; npm install --global pyright"),
    (r"wasmtime", "wasmtime is missing; pip install wasmtime"),
    (r"ziglang", "the compiler for WebAssembly is missing; pip install 'capsedge[wasm]'"),
    (r"compute-sanitizer|no CUDA|CUDA_VISIBLE|libcudart|libcuda|(?i:no .*\bGPU)|two GPUs",
     "an NVIDIA GPU is missing"),
    (r"clang", "clang is missing; apt-get install clang"),
    (r"MNIST|CAPSEDGE_DATA|name a folder that holds it",
     "a data set is missing; put it where docs/reference/data.md says"),
    (r"CustomResourceDefinition", "KServe's schema is missing; set CAPSEDGE_KSERVE_CRD to its file"),
    (r"librar(y|ies)( is)? not (built|installed)|libcapsedge is not built|not built here|operator library",
     "the compiled libraries are missing; apt-get install g++, and `make test`"),
    (r"C\+\+ compiler|needs g\+\+|those of g\+\+|pip install cmake|binutils", _COMPILER),
    (r"^apt-get|apt-get install|needs bash", "packages of the system are missing"),
    (r"could not import|pip install|No module named|not installed|torch|PyTorch", _PACKAGES),
    (r"no such (limit|names)", "Linux is missing"),
    (r"superuser|only root|cannot mount|no mount", "rights of the superuser are missing"),
)  # fmt: skip


def lines(reasons: Iterable[str]) -> list[str]:
    """A line for each tool, with its count of tests; other reasons as they are, the most frequent first."""
    counts: dict[str, int] = {}
    for reason in reasons:
        reason = reason.removeprefix("Skipped: ")
        told = next((line for pattern, line in TOOLS if re.search(pattern, reason)), reason)
        counts[told] = counts.get(told, 0) + 1
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [f"skipped {count}: {told}" for told, count in ranked]


class Summary:
    """Adds the lines to pytest's summary, in the process that prints it."""

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        skipped: Sequence[Any] = terminalreporter.stats.get("skipped", [])
        reports = [report for report in skipped if isinstance(report.longrepr, tuple)]
        for line in lines(report.longrepr[2] for report in reports):
            terminalreporter.write_line(line)


def register(config: pytest.Config) -> None:
    """Install it, except in the workers of xdist."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(), "skips")
