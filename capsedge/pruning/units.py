"""What can be removed from a network: groups of units, and where each stands in the tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from capsedge.models.config import ModelConfig


@dataclass(frozen=True)
class Slice:
    """Where the units of a group stand in a tensor: a dimension read as ``[outer, units, inner]``."""

    tensor: str
    dim: int = 0
    outer: int = 1
    inner: int = 1

    def by_unit(self, value: Tensor, units: int) -> Tensor:
        """The tensor's values by unit ``[units, ...]``."""
        shape = value.shape
        split = (*shape[: self.dim], self.outer, units, self.inner, *shape[self.dim + 1 :])
        return value.reshape(split).movedim(self.dim + 1, 0).reshape(units, -1)

    def kept(self, value: Tensor, units: int, keep: Sequence[int]) -> Tensor:
        """The tensor with these units alone."""
        index = torch.arange(value.shape[self.dim]).reshape(self.outer, units, self.inner)
        return value.index_select(self.dim, index[:, list(keep)].reshape(-1))


@dataclass(frozen=True)
class Group:
    """Units of one kind, such as the channels of a convolution, of which any may go.

    Attributes:
        name: such as ``stem.0 channels``.
        units: how many there are.
        made: the weights that compute a unit.
        read: the weights that take a unit's values.
        shrink: the configuration with the units at these indices alone.
        step: units are best removed by so many, which the kernels' vectors hold.
    """

    name: str
    units: int
    made: tuple[Slice, ...]
    read: tuple[Slice, ...]
    shrink: Callable[[ModelConfig, tuple[int, ...]], ModelConfig]
    step: int = 1

    @property
    def tensors(self) -> tuple[Slice, ...]:
        """All slices."""
        return (*self.made, *self.read)


Kept = Mapping[str, tuple[int, ...]]
"""The indices of the units that stay, in rising order, by the name of their group."""
