"""What can run a case. A new backend is one class with its entry in ``BACKENDS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .cases import OUTPUTS, Case

Arrays = Mapping[str, NDArray[Any]]


class Backend(Protocol):
    """Something that computes the operators."""

    name: str

    def unavailable(self) -> str:
        """Why the backend cannot run on this machine at all; empty if it can."""

    def supports(self, case: Case, dtype: str) -> str:
        """Why it cannot run this case in this storage type; empty if it can."""

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

    def unavailable(self) -> str:
        try:
            import capsedge.ops  # noqa: F401
        except ImportError as error:
            return f"{error}: pip install 'capsedge[export]'"
        return ""

    def supports(self, case: Case, dtype: str) -> str:
        return ""

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
        from capsedge import ops

        operator = {
            "Squash": ops.squash,
            "DynamicRouting": ops.dynamic_routing,
            "EMRouting": ops.em_routing,
            "AttentionRouting": ops.attention_routing,
        }[case.operator]
        attributes = dict(case.attributes)
        attributes.pop("iterations" if case.operator == "EMRouting" else "", None)
        for flag in ("leaky", "coordinate_addition", "shared", "matrix_pose"):
            if flag in attributes:
                attributes[flag] = bool(attributes[flag])
        found = operator(*tensors.values(), **attributes)
        return found if isinstance(found, tuple) else (found,)


BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Torch(),)}


def missing_outputs(case: Case, outputs: Arrays) -> list[str]:
    """Outputs of the ONNX node that a backend did not return."""
    return [name for name in OUTPUTS[case.operator] if name not in outputs]
