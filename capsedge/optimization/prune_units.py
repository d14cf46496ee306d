"""Define what can be removed from a network: groups of units, and their places in its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from capsedge.models.configs import ModelConfig


@dataclass(frozen=True)
class Slice:
    """The place of a group's units in a tensor: a dimension read as ``[outer, units, inner]``."""

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
        """The tensor with only these units."""
        index = torch.arange(value.shape[self.dim]).reshape(self.outer, units, self.inner)
        return value.index_select(self.dim, index[:, list(keep)].reshape(-1))


@dataclass(frozen=True)
class Group:
    """Units of one kind, such as the channels of a convolution, any of which may be removed.

    Attributes:
        name: such as ``stem.0 channels``.
        units: how many there are.
        written: the weights that compute a unit.
        read: the weights that take a unit's values.
        shrink: makes the configuration with only the units at given indices.
        step: number of units best removed at once, to match the kernels' vectors.
        divided: tensors whose values the layer divides by the number of units.
        silent: whether a unit has no effect if all weights that compute it are zero.
    """

    name: str
    units: int
    written: tuple[Slice, ...]
    read: tuple[Slice, ...]
    shrink: Callable[[ModelConfig, tuple[int, ...]], ModelConfig]
    step: int = 1
    divided: tuple[str, ...] = ()
    silent: bool = False

    @property
    def tensors(self) -> tuple[Slice, ...]:
        """All slices."""
        return (*self.written, *self.read)


Kept = Mapping[str, tuple[int, ...]]
"""The indices of the units that stay, in rising order, by the name of their group."""

Shrink = Callable[[ModelConfig, tuple[int, ...]], ModelConfig]
"""Makes the configuration with only the units at given indices."""


def with_item_replaced(values: tuple[Any, ...], index: int, value: object) -> tuple[Any, ...]:
    """A tuple with another value at an index."""
    return (*values[:index], value, *values[index + 1 :])
