"""TensorRT and CUDA for a process that builds engines without them (tests/tensorrt)."""

from __future__ import annotations

import ctypes
import os
import sys

from capsedge.runtime.backends import cuda, tensorrt_library
from tests.tensorrt import fake
from tests.tensorrt.fixtures import ANY_AMOUNT


def install(cudart: str) -> None:
    """Put the stand-ins where the packages would be, as the fixture ``gpu`` does."""
    os.environ[cuda.VARIABLE] = cudart
    sys.modules["tensorrt"] = fake
    tensorrt_library.device_name = lambda _: "Orin"
    library = ctypes.CDLL(cudart)
    library.fake_set.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
    library.fake_set(1, 87, 0, ANY_AMOUNT)
    fake.reset()
    fake.install(library)
