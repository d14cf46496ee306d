"""Share code between the operators: checks, windows, votes, registration, gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef  # type: ignore[attr-defined]

from capsedge.errors import ShapeError


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """Type in which an operator computes: FP32 for the half types, else the input's own."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Keeps autocast out of a definition, whose products would otherwise run in half precision."""
    if not torch.amp.is_autocast_available(x.device.type):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def expect_shape(operator: str, name: str, x: Tensor, wanted: Sequence[int | str]) -> None:
    """Raise unless ``x`` has the wanted shape; strings in ``wanted`` are free dimensions.

    Raises:
        ShapeError: names the operator, the input, the shape found and the shape wanted.
    """
    fits = x.ndim == len(wanted) and all(
        d == w for d, w in zip(x.shape, wanted, strict=True) if not isinstance(w, str)
    )
    if not fits:
        raise ShapeError(
            f"{operator}: input '{name}' has shape {list(x.shape)}",
            f"wanted [{', '.join(str(w) for w in wanted)}]",
        )


def expect_same_dtype(operator: str, **tensors: Tensor) -> None:
    """Raise unless all tensors share one floating-point type.

    Raises:
        ShapeError: names the operator and each input's type.
    """
    dtypes = {t.dtype for t in tensors.values()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        found = ", ".join(f"{n} {str(t.dtype).removeprefix('torch.')}" for n, t in tensors.items())
        raise ShapeError(f"{operator}: inputs must share one floating-point type", f"found {found}")


def expect(operator: str, condition: bool, message: str, *values: object) -> None:
    """Raise ``ShapeError('<operator>: <message>')`` unless the condition holds.

    ``values`` fill the message only then: torch.compile cannot format a free size.
    """
    if not condition:
        raise ShapeError(f"{operator}: {message.format(*values)}")


def matrix_side(operator: str, pose_size: int) -> int:
    """Side of the square matrix that a pose of ``pose_size`` elements is.

    Raises:
        ShapeError: the size is not a square.
    """
    side = math.isqrt(pose_size)
    expect(operator, side * side == pose_size, "pose size {} is not a square", pose_size)
    return side


def output_grid(
    operator: str, height: int, width: int, kernel: tuple[int, int], strides: Sequence[int]
) -> tuple[int, int]:
    """Grid of a capsule convolution without padding: ``(in - kernel) // stride + 1`` per axis.

    Raises:
        ShapeError: the strides are not two positive numbers, or the window exceeds the grid.
    """
    expect(
        operator,
        len(strides) == 2 and min(strides) >= 1,
        "strides {}, wanted two >= 1",
        list(strides),
    )
    expect(
        operator,
        height >= kernel[0] and width >= kernel[1],
        "window {}x{} is larger than the {}x{} grid",
        *kernel,
        height,
        width,
    )
    return (height - kernel[0]) // strides[0] + 1, (width - kernel[1]) // strides[1] + 1


def windows(x: Tensor, kernel: tuple[int, int], strides: Sequence[int]) -> Tensor:
    """Children seen by each parent position.

    Args:
        x: map of capsules ``[N, H, W, C, P]``.

    Returns:
        ``[N, H', W', Kh*Kw*C, P]``, children ordered by row, column, type.
    """
    n, height, width, c, p = x.shape
    h = (height - kernel[0]) // strides[0] + 1
    w = (width - kernel[1]) // strides[1] + 1
    children = kernel[0] * kernel[1] * c
    if h * w == 1 and kernel == (height, width):
        return x.reshape(n, 1, 1, children, p)
    # Cells by number rather than Tensor.unfold, for which small runtimes have no kernel.
    rows = _starts(h, strides[0], x) + torch.arange(kernel[0], device=x.device)
    columns = _starts(w, strides[1], x) + torch.arange(kernel[1], device=x.device)
    cells = rows.reshape(h, 1, kernel[0], 1) * width + columns.reshape(1, w, 1, kernel[1])
    seen = x.reshape(n, height * width, c * p).index_select(1, cells.reshape(-1))
    return seen.reshape(n, h, w, children, p)


def _starts(count: int, stride: int, like: Tensor) -> Tensor:
    """First row or column of every window ``[count, 1]``."""
    return (torch.arange(count, device=like.device) * stride).unsqueeze(1)


def votes(children: Tensor, weight: Tensor, rows: int) -> Tensor:
    """Votes ``V = pose @ W``, the pose read as a ``rows`` x ``K`` matrix.

    Args:
        children: ``[N, H', W', I, rows*K]``.
        weight: ``[I, M, K, L]``, or ``[1, C, M, K, L]`` flattened alike.
        rows: rows of the pose matrix; 1 for a vector pose.

    Returns:
        ``[N, H', W', I, M, rows*L]``.
    """
    n, h, w, i = children.shape[:4]
    m, k, out = weight.shape[1:]
    x = children.reshape(n * h * w, i, rows, k).permute(1, 0, 2, 3).reshape(i, n * h * w * rows, k)
    y = torch.bmm(x, weight.permute(0, 2, 1, 3).reshape(i, k, m * out))
    y = y.reshape(i, n, h, w, rows, m, out).permute(1, 2, 3, 0, 5, 4, 6)
    return y.reshape(n, h, w, i, m, rows * out)


DEFINITIONS: dict[str, Callable[..., Any]] = {}  # of the operators registered, by name

_compiling = False


@contextmanager
def compiled() -> Iterator[None]:
    """Within it, operators run as their definitions compiled by ``torch.compile``.

    For training: two to four times faster on a CPU, and the votes are kept for the backward pass. Values
    differ in the last bits.
    """
    global _compiling
    before, _compiling = _compiling, True
    try:
        yield
    finally:
        _compiling = before


class Operator:
    """The operator ``capsedge::<name>``, or within ``compiled()`` its definition, compiled.

    Attributes:
        op: the operator as registered with PyTorch.
    """

    def __init__(self, op: CustomOpDef, definition: Callable[..., Any]) -> None:
        self.op = op
        self._definition = definition

    @functools.cached_property
    def _compiled(self) -> Callable[..., Any]:
        return torch.compile(self._definition)

    def __call__(self, *args: Any) -> Any:
        return self._compiled(*args) if _compiling else self.op(*args)


def register(
    name: str, definition: Callable[..., Any], fake: Callable[..., Any], tensor_count: int
) -> Operator:
    """Register a definition as the operator ``capsedge::<name>``, with shapes and gradient.

    The votes are not kept between forward and backward: the definition runs again in backward, as
    with activation checkpointing, so that training needs no more memory than the largest layer.

    Args:
        name: of the operator.
        definition: the computation in differentiable PyTorch; its signature is the operator's.
        fake: shapes and types of the outputs, without values.
        tensor_count: how many of the arguments, from the first, are tensors or None; the rest are
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
    return Operator(op, forward)


# --- Decompositions into ATen operators, for compilers that know nothing of ``capsedge`` ---


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """A table that lowers the operators of an exported program to ATen operators.

    Their definitions, unrolled: an ``ExportedProgram`` after ``run_decompositions`` with this table holds no
    ``capsedge`` operator, and goes into ExecuTorch, AOTInductor or any other backend of ``torch.export``::

        program = torch.export.export(module, (images,))
        program = program.run_decompositions(capsedge.ops.decompositions())

    The table holds these operators alone: merge it with ``torch.export.default_decompositions()`` to
    lower others too.
    """
    return {
        getattr(torch.ops.capsedge, name).default: definition
        for name, definition in DEFINITIONS.items()
    }
