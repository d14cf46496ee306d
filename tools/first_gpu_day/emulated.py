"""No GPU, for a rehearsal: the kernels' source on the host, and a stand-in for the CUDA runtime."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.native import cuda_library

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """The variables that make the steps use it.

    Raises:
        FileNotFoundError: there is no C++ compiler.
    """
    library = cuda_library.host_library()
    if library is None:
        raise FileNotFoundError("the rehearsal needs g++ on Linux")
    target = library.with_name("libcudart.so")
    source = ROOT / "tests" / "tensorrt" / "cudart.c"
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    return {"CAPSEDGE_CUDART": str(target), cuda_library.VARIABLE: str(library)}
