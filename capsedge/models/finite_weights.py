"""Refuse weights that are NaN or infinite, by name, before anything runs. Needs torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.finite import DIVERGED, NotFinite, listed, not_finite

_STATISTICS = re.compile(r"(^|\.)running_(mean|var)$")


def check_finite(
    module: nn.Module, tensors: Mapping[str, Tensor] | None = None, path: Path | str = ""
) -> None:
    """Refuse values that training leaves behind when it diverges.

    Infinity is legitimate in buffers, and in parameters that are masks: frozen, and 0 elsewhere. NaN is not.

    Args:
        module: tells parameters from buffers.
        tensors: the values of a file, by the module's names; None for the module's own.
        path: the file, for the message.

    Raises:
        ArtefactError: values of the file are not finite; the error has the tensors' names, how many values,
            and the first one's position.
        UsageError: the same of the module's own.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    if tensors is None:
        tensors = parameters | dict(module.named_buffers(remove_duplicate=False))
    wrong = list(_wrong(tensors, parameters))
    if not wrong:
        return
    why = f"NaN or infinite: {len(wrong)} of {len(tensors)} tensors."
    if path:
        what = f"The weights of {path} are not finite."
        raise ArtefactError(what, why, DIVERGED, details=listed(wrong))
    raise UsageError("The module's weights are not finite.", why, DIVERGED, details=listed(wrong))


def _wrong(
    tensors: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]
) -> Iterator[NotFinite]:
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu" or not tensor.dtype.is_floating_point:
            continue
        if not torch.isfinite(tensor).all():
            values = tensor.detach().double().numpy()
            found = not_finite(name, values, _may_be_infinite(name, tensor, parameters))
            yield from [found] if found else []


def _may_be_infinite(name: str, tensor: Tensor, parameters: Mapping[str, nn.Parameter]) -> bool:
    if name not in parameters:
        return not _STATISTICS.search(name)
    masks = (tensor == 0) | (tensor == -torch.inf)
    return not parameters[name].requires_grad and bool(masks.all())
