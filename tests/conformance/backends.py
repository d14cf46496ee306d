"""What can run a case. A new backend is one class with its entry in ``BACKENDS``."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from capsedge.spec.operators import OPERATORS
from tests.native import library

from .cases import OUTPUTS, Case, make
from .inputs import batched
from .native import CpuKernels, OrtFused

Arrays = Mapping[str, NDArray[Any]]


class Backend(Protocol):
    """Something that computes the operators."""

    name: str

    def unavailable(self, operator: str) -> str:
        """What this machine lacks to run the operator, and where it comes from; empty if nothing.

        Such a test skips.
        """

    def unsupported(self, case: Case, dtype: str) -> str:
        """Why no machine can run this case in this storage type; empty if one can.

        There is no such test.
        """

    def prepare(self, case: Case, inputs: Arrays, dtype: str) -> Callable[[], Arrays]:
        """Everything that is done once; the result computes the outputs and is what is timed.

        Outputs are named as in the specification; all that the ONNX node has must be there.
        """


class Differentiable(Protocol):
    """A backend that also has gradients."""

    def gradient(self, case: Case, inputs: Arrays, cotangents: Arrays) -> Arrays:
        """Gradient of ``Σ outputs · cotangents`` by each input, in float64."""


class Torch:
    """``capsedge.ops``."""

    name = "torch"

    def unavailable(self, operator: str) -> str:
        try:
            import capsedge.models.ops  # noqa: F401
        except ImportError as error:
            return f"{error}: pip install 'capsedge[export]'"
        return ""

    def unsupported(self, case: Case, dtype: str) -> str:
        return case.gap("torch", dtype)

    def prepare(self, case: Case, inputs: Arrays, dtype: str) -> Callable[[], Arrays]:
        import torch

        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}

        def run() -> Arrays:
            with torch.no_grad():
                found = self._call(case, tensors)
            return {name: x.numpy() for name, x in zip(case.outputs, found, strict=True)}

        return run

    def gradient(self, case: Case, inputs: Arrays, cotangents: Arrays) -> Arrays:
        import torch

        tensors = {
            name: torch.from_numpy(array.astype(np.float64)).requires_grad_()
            for name, array in inputs.items()
        }
        found = self._call(case, tensors)
        total = sum(
            (x * torch.from_numpy(cotangents[name])).sum()
            for name, x in zip(case.outputs, found, strict=True)
        )
        grads = torch.autograd.grad(total, list(tensors.values()), materialize_grads=True)
        return {name: g.numpy() for name, g in zip(tensors, grads, strict=True)}

    @staticmethod
    def _call(case: Case, tensors: Mapping[str, Any]) -> tuple[Any, ...]:
        from capsedge.models import ops

        made_by_the_exporter: dict[str, Callable[..., Any]] = {
            "UniformRouting": _uniform_routing,
            "PoseNormalization": _pose_normalization,
            "FastConv": _fast_conv,
        }
        name = OPERATORS[case.operator].torch
        operator = getattr(ops, name) if name else made_by_the_exporter[case.operator]
        attributes = dict(case.attributes)
        if "over_children" in attributes:
            attributes["softmax"] = "children" if attributes.pop("over_children") else "parents"
            attributes["update"] = "replace" if attributes.pop("replace") else "accumulate"
            for flag in ("leaky", "normalize", "elementwise"):
                attributes[flag] = bool(attributes[flag])
        if case.operator.startswith("EMRouting"):
            del attributes["iterations"]  # the number of inverse temperatures
        optional = {v.name for v in OPERATORS[case.operator].inputs if v.optional} & set(tensors)
        attributes |= {name: tensors[name] for name in optional}
        found = operator(*(x for name, x in tensors.items() if name not in optional), **attributes)
        return found if isinstance(found, tuple) else (found,)


def _uniform_routing(pose: Any, weight: Any, scale: Any, bias: Any, **attributes: Any) -> Any:
    """The first pass in PyTorch: attention routing without parents."""
    from capsedge.models import ops

    return ops.attention_routing(pose, None, weight, scale, bias, **attributes)[0]


def _pose_normalization(x: Any, scale: Any, bias: Any, epsilon: float) -> Any:
    """As the models of the package normalize poses: in FP32, whatever the storage."""
    import torch

    compute = torch.float32 if x.dtype == torch.float16 else x.dtype
    y = torch.nn.functional.layer_norm(
        x.to(compute), scale.shape, scale.to(compute), bias.to(compute), epsilon
    )
    return y.to(x.dtype)


def _fast_conv(x: Any, weight: Any, bias: Any = None, *, strides: Any, pads: Any) -> Any:
    """PyTorch's own convolution, in FP32 for float16."""
    import torch

    compute = torch.float32 if x.dtype == torch.float16 else x.dtype
    images = torch.nn.functional.pad(x.to(compute), (pads[1], pads[3], pads[0], pads[2]))
    added = None if bias is None else bias.to(compute)
    y = torch.nn.functional.conv2d(images, weight.to(compute), added, tuple(strides))
    return y.to(x.dtype)


class OrtFunctions:
    """A one-node ONNX model with the exporter's function body, in ONNX Runtime without our library."""

    name = "ort-functions"

    def unavailable(self, operator: str) -> str:
        try:
            import onnxruntime  # noqa: F401

            import capsedge.graph.bodies  # noqa: F401
        except ImportError as error:
            return f"{error}: pip install 'capsedge[export]'"
        if operator == "QuantizedConv" and platform.machine() == "x86_64" and not _has_vnni():
            return "needs VNNI: without it, ONNX Runtime's products of bytes saturate on x86 processors"
        return ""

    def unsupported(self, case: Case, dtype: str) -> str:
        return case.gap("body", dtype)

    def prepare(self, case: Case, inputs: Arrays, dtype: str) -> Callable[[], Arrays]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            self._model(case, inputs, dtype), options, providers=["CPUExecutionProvider"]
        )
        return lambda: dict(zip(case.outputs, session.run(None, dict(inputs)), strict=True))

    @staticmethod
    def _model(case: Case, inputs: Arrays, dtype: str) -> bytes:
        import onnx
        from onnx import TensorProto, helper

        from capsedge.graph.bodies import function_body

        # Outputs are named apart from inputs: EMRouting has a pose and an activation on both sides.
        outputs = [f"out_{name}" for name in case.outputs]
        free = batched(case.operator, inputs)
        function = function_body(
            case.operator,
            [(None, *x.shape[1:]) if name in free else x.shape for name, x in inputs.items()],
            dict(case.attributes),
            couplings="couplings" in case.outputs,
            compute=TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT,
        )
        node = helper.make_node(
            case.operator, list(inputs), outputs, domain=function.domain, **case.attributes
        )
        graph = helper.make_graph(
            [node],
            "case",
            [
                helper.make_tensor_value_info(
                    name,
                    helper.np_dtype_to_tensor_dtype(x.dtype),
                    ["N", *x.shape[1:]] if name in free else x.shape,
                )
                for name, x in inputs.items()
            ],
            [
                helper.make_tensor_value_info(
                    f"out_{name}",
                    helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
                    [None] * wanted.ndim,
                )
                for name, wanted in make(case, dtype).wanted.items()
            ],
        )
        opsets = [*function.opset_import, helper.make_opsetid(function.domain, 1)]
        model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString())


def _has_vnni() -> bool:
    return "avx512vnni" in library.levels()


_ENTRIES: tuple[Backend, ...] = (
    Torch(),
    OrtFunctions(),
    OrtFused(),
    *(CpuKernels(level) for level in library.levels() or ["plain"]),
)
BACKENDS = {backend.name: backend for backend in _ENTRIES}


def missing_outputs(case: Case, outputs: Arrays) -> list[str]:
    """Outputs of the ONNX node that a backend did not return."""
    return [name for name in OUTPUTS[case.operator] if name not in outputs]
