"""Versions of ONNX Runtime: the oldest supported one, and what changed since.

pyproject.toml and runtime/native/onnxruntime/ort_abi.h repeat ``OLDEST``; a test compares them.
"""

from __future__ import annotations

import re

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
