"""What every reader of weights returns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
T = TypeVar("T")
# Batches that a normalization has seen, and what the profiler thop leaves behind: no part of the function.
_COUNTERS = re.compile(r"(^|\.)(num_batches_tracked|total_ops|total_params)$")


def without_counters(tensors: Mapping[str, T]) -> dict[str, T]:
    """What is stored under names that are not those of counters."""
    return {name: tensor for name, tensor in tensors.items() if not _COUNTERS.search(name)}


@dataclass(frozen=True)
class Weights:
    """The content of a file of weights.

    Attributes:
        tensors: by name, FP32.
        format: what the file is, in words.
        config: the model's configuration that the file stores (Keras); None if it has none.
        lambdas: names of the configuration's Lambda layers, whose code is never run.
        notes: what was left out or unwrapped, for a person.
    """

    tensors: Mapping[str, Floats]
    format: str
    config: Mapping[str, Any] | None = None
    lambdas: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}
