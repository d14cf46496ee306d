"""What ``Recipe.fast`` changes: convolutions in BF16 and compiled routing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from capsedge.errors import EnvironmentProblem
from capsedge.ops._common import compiled


class BFloat16Convolutions(TorchFunctionMode):
    """Within it, ``conv2d`` multiplies in BF16 and sums in FP32; all else stays in FP32.

    Weights, their gradients and the optimizer's state keep FP32, as with autocast, and so do the
    capsules: lengths and couplings would lose the digits that agreement needs.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """See ``TorchFunctionMode``."""
        if function is torch.conv2d or function is torch.nn.functional.conv2d:
            named = {name: _half(value) for name, value in (kwargs or {}).items()}
            return function(*map(_half, args), **named).float()
        return function(*args, **(kwargs or {}))


def _half(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    if x.ndim == 4:  # channels last is what the CPU's BF16 convolutions take without a copy
        return x.to(torch.bfloat16, memory_format=torch.channels_last)
    return x.to(torch.bfloat16)


@contextmanager
def fast_math(on: bool) -> Iterator[None]:
    """Within it, a training step is computed in the fast way; nothing changes unless ``on``.

    Raises:
        EnvironmentProblem: there is no C++ compiler.
    """
    if not on:
        yield
        return
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise EnvironmentProblem(
            "There is no C++ compiler.",
            "--fast compiles the routing for this processor.",
            "Install g++, or leave out --fast.",
        )
    with BFloat16Convolutions(), compiled():
        yield
