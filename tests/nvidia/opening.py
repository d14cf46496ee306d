"""Opens an engine over a stand-in for CUDA, as far as NVIDIA's own runtime goes; run by test_opening.py.

The stand-in says that there is a GPU, so the metadata file is compared and the real TensorRT-RTX is opened;
its runtime finds no GPU and refuses to deserialize.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import capsedge
from capsedge.errors import CapsedgeError
from capsedge.runtime.backends import tensorrt_library
from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.inspection import inspect_engine
from tests.native import libcapsedge
from tests.tensorrt.fixtures import ANY_AMOUNT


def in_python(engine: Path) -> dict[str, Any]:
    """What `capsedge.load` and `capsedge inspect` say."""
    seen = inspect_engine(engine)
    found: dict[str, Any] = {"runs_here": seen.runs_here, "because": seen.because}
    try:
        capsedge.load(engine)
    except CapsedgeError as error:
        found |= {"error": type(error).__name__, "what": error.what, "why": error.why}
    return found


def in_cpp(engine: Path) -> dict[str, Any]:
    """What libcapsedge says."""
    try:
        libcapsedge.Session(engine)
    except libcapsedge.Failed as error:
        return {"code": error.code, "words": str(error)}
    return {}


def main() -> None:
    """A line of JSON for every engine and compute capability given."""
    given = json.load(sys.stdin)
    tensorrt_library.device_name = lambda device: "Stand-in"
    load_cuda()
    cudart = ctypes.CDLL(given["cudart"])
    cudart.fake_set.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
    if given.get("driver"):
        ctypes.CDLL(given["driver"])
    for capability in given["capabilities"]:
        cudart.fake_set(1, capability, 0, ANY_AMOUNT)
        engine = Path(given["engine"])
        print(json.dumps(in_cpp(engine) if given["cpp"] else in_python(engine)), flush=True)


if __name__ == "__main__":
    main()
