"""The backends that run a model, behind one protocol (``backend.Backend``).

A backend is one module of this folder and one entry of `BACKENDS`; ``tests/runtime/test_backend_contract.py``
states what it must do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capsedge.runtime.backends.backend import Backend


def _onnxruntime() -> type[Backend]:
    from capsedge.runtime.backends.onnxruntime_backend import OnnxRuntimeBackend

    return OnnxRuntimeBackend


def _tensorrt() -> type[Backend]:
    from capsedge.runtime.backends.tensorrt_backend import TensorRTBackend

    return TensorRTBackend


# Each is imported when its turn comes: `capsedge.load` takes the first that accepts the file.
BACKENDS: dict[str, Callable[[], type[Backend]]] = {
    "onnxruntime": _onnxruntime,
    "tensorrt": _tensorrt,
}
