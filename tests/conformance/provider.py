"""The backend of ONNX Runtime's own CUDA provider: a file of one node, loaded as `capsedge.load` loads it.

Without a GPU, the provider of the package runs on the libcudart of tools/ptx.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tools.ptx import build, provider

from .backends import Arrays
from .cases import OUTPUTS, Case
from .inputs import batched
from .native import one_node
from .ptx import architecture

if TYPE_CHECKING:
    from capsedge.runtime.backends.onnxruntime_backend import OnnxRuntimeBackend


@lru_cache(maxsize=1)
def executor() -> build.Executor:
    """The provider of the package in this process, which has imported no other ONNX Runtime."""
    return provider.use(architecture())


class CudaProvider:
    """The operators that the library registers for CUDA, in the provider's streams and memory."""

    name = "cuda-provider"

    def unavailable(self, operator: str) -> str:
        return provider.unavailable()

    def unsupported(self, case: Case, dtype: str) -> str:
        return case.gap("cuda", dtype)

    def prepare(self, case: Case, inputs: Arrays, dtype: str) -> Callable[[], Arrays]:
        own = executor()
        backend = opened(case, inputs)
        given = {port.name for port in backend.inputs}
        feeds = {name: array for name, array in inputs.items() if name in given}
        names = [f"out_{name}" for name in OUTPUTS[case.operator]]

        def run() -> Arrays:
            try:
                found = backend.run(feeds, names)
            except Exception as error:
                raise AssertionError(own.fault() or str(error)) from error
            return dict(zip(OUTPUTS[case.operator], found.values(), strict=True))

        return run


def opened(case: Case, inputs: Arrays, ops: str = "fused", gpu: int = 0) -> OnnxRuntimeBackend:
    """The node's file on the GPU; inputs without a batch are its initializers.

    Without graphs, which would replay a launch that a test makes fail, and open a second session.
    """
    from capsedge.runtime.backends.backend import ModelFile
    from capsedge.runtime.backends.onnxruntime_backend import OnnxRuntimeBackend
    from capsedge.runtime.runtime_options import RuntimeOptions

    constants = tuple(name for name in inputs if name not in batched(case.operator, inputs))
    model = one_node(case.operator, case.attributes, inputs, constants)
    file = ModelFile(Path(f"{case.operator}.onnx"), model)
    return OnnxRuntimeBackend.open(
        file, RuntimeOptions(device=f"cuda:{gpu}", ops=ops, graphs=False)
    )


BACKENDS = (CudaProvider(),)
