"""The work that a model of a stranger's file would take, told before it is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from capsedge.errors import UsageError
from capsedge.models.base import CapsuleModel
from capsedge.runtime.files import limits


def check_work(model: CapsuleModel) -> None:
    """Run a model without values on one image, and refuse it once it exceeds a limit.

    Args:
        model: on the device ``meta``, where nothing is allocated or computed.

    Raises:
        UsageError: a layer computes too many values, or all together do or take too many operations; or the
            layers do not fit each other.
    """
    p = model.config.preprocessing
    image = torch.empty(1, *p.shape, device="meta")
    try:
        with torch.no_grad(), _Work():
            model.eval()(image)
    except RuntimeError as error:  # of torch: a layer does not fit what comes before it
        raise UsageError("Such a model cannot run.", str(error).split("\n")[0]) from error


class _Work(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators, the values that they compute, and the operations of convolutions and matrix products.

    Raises:
        UsageError: from the operator that exceeds a limit.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sum = self._steps = self._operations = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self._steps += 1
        _check(self._steps, limits.MODEL_STEPS, "operators")
        for value in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(value, Tensor):
                _check(value.numel(), limits.MODEL_VALUES, "values in one layer")
                self._sum += value.numel()
                _check(self._sum, limits.MODEL_SUM, "values")
        count = flop_registry.get(getattr(func, "overloadpacket", None))
        if count is not None:
            self._operations += count(*args, **(kwargs or {}), out_val=found)
            _check(self._operations, limits.MODEL_OPERATIONS, "operations")
        return found


def _check(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise UsageError(
            "The model is too large for one image.",
            f"One takes {count:,} {what}; the limit is {limit:,}.",
            "Use a model for smaller images, or with fewer channels.",
        )
