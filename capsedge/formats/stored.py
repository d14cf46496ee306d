"""What every reader of weights returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


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
