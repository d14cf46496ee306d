"""Register operators with PyTorch: definition, shapes, gradient, kernels, decomposition, records of calls."""

from __future__ import annotations

import functools
from collections.abc import (
    Callable,
    Iterator,
    Sequence,  # noqa: F401  torch looks names in the annotations of definitions up here
)
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef  # type: ignore[attr-defined]
from torch.utils._python_dispatch import TorchDispatchMode

from capsedge.models.ops import fused as kernels
from capsedge.spec.operators import OPERATORS


def no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Disables autocast in a definition, whose products would otherwise run in half precision."""
    if not torch.amp.is_autocast_available(x.device.type):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


DEFINITIONS: dict[str, Callable[..., Any]] = {}  # registered operators, by name

_compiling = False


@contextmanager
def compiled() -> Iterator[None]:
    """Within this context, operators run as definitions compiled by ``torch.compile``.

    This is for training: it is two to four times faster on a CPU and keeps the votes for the backward pass.
    Values differ in the last bits.
    """
    global _compiling
    before, _compiling = _compiling, True
    try:
        yield
    finally:
        _compiling = before


class TorchOperator:
    """The operator ``capsedge::<name>``, or its compiled definition within ``compiled()``.

    Attributes:
        op: the operator as registered with PyTorch.
        fused: the one that runs within `fused`.
    """

    def __init__(self, op: CustomOpDef, fused: CustomOpDef, definition: Callable[..., Any]) -> None:
        self.op, self.fused = op, fused
        self._definition = definition

    @functools.cached_property
    def _compiled(self) -> Callable[..., Any]:
        return torch.compile(self._definition)

    def __call__(self, *args: Any) -> Any:
        if kernels.in_use and kernels.applies(args):
            return self.fused(*args)
        if not _compiling:
            return self.op(*args)
        with no_autocast(args[0]):  # called outside, since some compiler versions cannot trace it
            return self._compiled(*args)


def register(
    name: str, definition: Callable[..., Any], fake: Callable[..., Any], tensor_count: int
) -> TorchOperator:
    """Register a definition as the operator ``capsedge::<name>``, with shapes and gradient.

    The votes are not kept between forward and backward: the definition runs again in backward, as with
    activation checkpointing, so training needs memory only for the largest layer.

    Args:
        name: name of the operator.
        definition: the computation in differentiable PyTorch; its signature is the operator's.
        fake: shapes and types of the outputs, without values.
        tensor_count: how many of the arguments, counted from the first, are tensors or None; the rest are
            attributes.
    """

    @functools.wraps(definition)
    def forward(*args: Any) -> Any:
        with no_autocast(args[0]):
            return definition(*args)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:tensor_count])
        ctx.attributes = inputs[tensor_count:]

    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[:tensor_count]
        inputs = [
            None if t is None else t.detach().requires_grad_(need)
            for t, need in zip(ctx.saved_tensors, wanted, strict=True)
        ]
        with torch.enable_grad(), no_autocast(ctx.saved_tensors[0]):
            outputs = definition(*inputs, *ctx.attributes)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            used = [
                (o, g)
                for o, g in zip(outputs, grads, strict=True)
                if g is not None and o.requires_grad
            ]
            variables = [t for t in inputs if t is not None and t.requires_grad]
            found: tuple[Tensor | None, ...] = (None,) * len(variables)
            if used:
                found = torch.autograd.grad(
                    [o for o, _ in used], variables, [g for _, g in used], allow_unused=True
                )
        each = iter(found)
        result = [next(each) if need else None for need in wanted]
        return (*result, *(None for _ in ctx.attributes))

    DEFINITIONS[name] = definition
    op = torch.library.custom_op(f"capsedge::{name}", forward, mutates_args=())
    op.register_fake(fake)
    op.register_autograd(backward, setup_context=setup_context)
    schema = torch.library.infer_schema(forward, mutates_args=())
    return TorchOperator(op, kernels.register_fused(name, forward, fake, schema), definition)


# --- Decompositions into ATen operators, for compilers that do not know ``capsedge`` ---


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """A table that lowers the operators of an exported program to ATen operators.

    It replaces them by their unrolled definitions: after ``run_decompositions`` with this table, an
    ``ExportedProgram`` has no ``capsedge`` operators and works with ExecuTorch, AOTInductor or any other
    backend of ``torch.export``::

        program = torch.export.export(module, (images,))
        program = program.run_decompositions(capsedge.ops.decompositions())

    The table only holds these operators; merge it with ``torch.export.default_decompositions()`` to lower
    others too.
    """
    return {
        getattr(torch.ops.capsedge, name).default: definition
        for name, definition in DEFINITIONS.items()
    }


# --- Recording the routing operators while a module runs ---

_NAMES = {o.torch: o.name for o in OPERATORS.values() if o.routes and o.torch}


@dataclass(frozen=True)
class RoutingCall:
    """One call of a routing operator: its ONNX type, arguments and outputs."""

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
        calls: the calls, in order.
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
