"""Choose where a network is trained: on the CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from capsedge.errors import EnvironmentProblem, UsageError


def check_device(device: str) -> None:
    """Raise unless the device exists.

    Raises:
        UsageError: the name is unknown.
        EnvironmentProblem: PyTorch finds no GPU.
    """
    if device not in ("cpu", "cuda"):
        raise UsageError(f"Unknown device '{device}'.", "", "Choose one of: cpu, cuda.")
    if device == "cuda" and not torch.cuda.is_available():
        raise EnvironmentProblem(
            "PyTorch finds no GPU.",
            "It is not built for CUDA, or there is none.",
            "Leave out --device, or install PyTorch for CUDA.",
        )


def on_cpu(value: Any) -> Any:
    """A state with its tensors in main memory, so that it can be read without the device."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, Mapping):
        return {key: on_cpu(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_cpu(each) for each in value)
    return value
