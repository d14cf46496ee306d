"""The calls of routing operators while a module runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from capsedge.schema.operators import OPERATORS

_NAMES = {o.torch: o.name for o in OPERATORS.values() if o.routes and o.torch}


@dataclass(frozen=True)
class RoutingCall:
    """One call: the ONNX type of the operator, its arguments and its outputs."""

    operator: str
    args: tuple[Any, ...]
    outputs: tuple[Tensor, ...]

    @property
    def weight(self) -> Tensor | None:
        """The routing weight; None where votes are given."""
        place = OPERATORS[self.operator].weight
        return self.args[place] if place else None


class RoutingCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every routing operator that is called.

    Attributes:
        calls: in order.
        outputs: the first output of each.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[RoutingCall] = []

    @property
    def outputs(self) -> list[Tensor]:
        return [call.outputs[0] for call in self.calls]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "capsedge" and isinstance(result, tuple):
            name = _NAMES[func._opname]
            self.calls.append(RoutingCall(name, args, result))
        return result
