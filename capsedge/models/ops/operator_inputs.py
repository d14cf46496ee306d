"""Prepare the inputs of operators: check them, cut maps into windows, form votes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from capsedge.errors import ShapeError


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """The type in which an operator computes: FP32 for half types, otherwise the input's type."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def expect_shape(operator: str, name: str, x: Tensor, wanted: Sequence[int | str]) -> None:
    """Raise unless ``x`` has the expected shape; strings in ``wanted`` are free dimensions.

    Raises:
        ShapeError: names the operator, the input, and the actual and expected shapes.
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

    ``values`` are only filled in on failure, since torch.compile cannot format a free size.
    """
    if not condition:
        raise ShapeError(f"{operator}: {message.format(*values)}")


def matrix_side(operator: str, pose_size: int) -> int:
    """Side of the square matrix formed by a pose of ``pose_size`` elements.

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


def cut_windows(x: Tensor, kernel: tuple[int, int], strides: Sequence[int]) -> Tensor:
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
    # Index cells by number instead of Tensor.unfold, for which small runtimes have no kernel.
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
