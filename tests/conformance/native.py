"""Backends of the native library: its kernels at each SIMD level, and the same through ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from tests.native import library

from .cases import OUTPUTS, Case, make
from .inputs import batched

Arrays = Mapping[str, NDArray[Any]]
MISSING = "the native library is not built: pip install -e . with a C++ compiler"


class CpuKernels:
    """The kernels without a runtime, at one SIMD level."""

    def __init__(self, level: str) -> None:
        self.name = f"cpu-kernels-{level}"
        self._level = level

    def unavailable(self, operator: str) -> str:
        if library.load() is None:
            return MISSING
        return "" if self._level in library.levels() else f"this machine has no {self._level}"

    def unsupported(self, case: Case, dtype: str) -> str:
        return case.gap("cpu", dtype)

    def prepare(self, case: Case, inputs: Arrays, dtype: str) -> Callable[[], Arrays]:
        operator = library.Operator(case.operator, case.attributes, level=self._level)
        assert operator.level == self._level
        arrays = list(inputs.values())
        for index, name in enumerate(inputs):
            if name in ("weight", "weight_scale"):
                operator.constant(index, arrays[index])
        shapes = [make(case, dtype).wanted[name].shape for name in OUTPUTS[case.operator]]

        def run() -> Arrays:
            outputs = [library.unwritten(shape, dtype) for shape in shapes]
            operator.run(arrays, outputs)
            return dict(zip(OUTPUTS[case.operator], outputs, strict=True))

        return run


class OrtFused:
    """A file of one node in ONNX Runtime with the library registered."""

    name = "ort-fused"

    def unavailable(self, operator: str) -> str:
        try:
            import onnx
            import onnxruntime  # noqa: F401
        except ImportError as error:
            return f"{error}: pip install 'capsedge[export]'"
        del onnx
        return MISSING if library.load() is None else ""

    def unsupported(self, case: Case, dtype: str) -> str:
        return case.gap("cpu", dtype)

    def prepare(self, case: Case, inputs: Arrays, dtype: str) -> Callable[[], Arrays]:
        session = fused_session(case.operator, case.attributes, inputs)
        given = {x.name for x in session.get_inputs()}
        feed = {name: array for name, array in inputs.items() if name in given}
        names = OUTPUTS[case.operator]
        return lambda: dict(zip(names, session.run(None, feed), strict=True))


def fused_session(
    operator: str,
    attributes: Mapping[str, Any],
    inputs: Arrays,
    *,
    constants: tuple[str, ...] = ("weight", "weight_scale", "log_prior"),
    threads: int = 2,
) -> Any:
    """A session over one node; inputs named in ``constants`` are initializers of the file."""
    import onnxruntime

    from capsedge.runtime.backends.native_library import find_library

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.register_custom_ops_library(str(find_library()))
    model = one_node(operator, attributes, inputs, constants)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def one_node(
    operator: str, attributes: Mapping[str, Any], inputs: Arrays, constants: tuple[str, ...]
) -> bytes:
    """The file: opset 20, the node in domain ``capsedge``, the batch named ``N``, outputs without a shape."""
    from onnx import helper, numpy_helper

    free = batched(operator, inputs)
    outputs = [f"out_{name}" for name in OUTPUTS[operator]]
    elements = {k: helper.np_dtype_to_tensor_dtype(x.dtype) for k, x in inputs.items()}
    first = next(iter(elements.values()))
    graph = helper.make_graph(
        [helper.make_node(operator, list(inputs), outputs, domain="capsedge", **attributes)],
        "case",
        [
            helper.make_tensor_value_info(
                name, elements[name], ["N", *x.shape[1:]] if name in free else x.shape
            )
            for name, x in inputs.items()
            if name not in constants
        ],
        [helper.make_tensor_value_info(name, first, None) for name in outputs],
        [numpy_helper.from_array(inputs[name], name) for name in constants if name in inputs],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("capsedge", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
