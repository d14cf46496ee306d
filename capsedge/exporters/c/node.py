"""A graph node with its inputs and attributes read, in the form that the translators take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from capsedge.exporters.c.program import Array, Program, ProgramValue, Untranslatable


@dataclass
class CNode:
    """A node.

    Attributes:
        name: name of the node, or of its first output.
        operator: its type, without the number of an instance.
        inputs: its values; None for omitted ones.
        attributes: attributes as Python values.
        outputs: how many it has.
        relu: whether a Relu follows that the node can do itself.
        opset: version of the standard operators.
    """

    name: str
    operator: str
    inputs: list[ProgramValue | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    relu: bool = False
    opset: int = 20

    def value(self, k: int) -> ProgramValue:
        """A required input."""
        value = self.optional(k)
        if value is None:
            raise Untranslatable(f"input {k} is missing")
        return value

    def optional(self, k: int) -> ProgramValue | None:
        return self.inputs[k] if k < len(self.inputs) else None

    def array(self, k: int, what: str) -> Array:
        """A required input that must be constant."""
        value = self.value(k)
        if value.array is None:
            raise Untranslatable(f"{what} that is computed")
        return value.array

    def integers(self, k: int, name: str) -> list[int] | None:
        """Integers from an input (newer operators) or an attribute (older ones); None if there is neither."""
        if self.optional(k) is not None:
            return [int(v) for v in self.array(k, name).reshape(-1)]
        found = self.attributes.get(name)
        return None if found is None else [int(v) for v in found]

    def floats(self, k: int) -> ProgramValue:
        """A required input of float32."""
        value = self.value(k)
        if value.dtype != "float32":
            raise Untranslatable(f"elements of type {value.dtype}")
        return value

    def filled(self, k: int, what: str, shape: Sequence[int]) -> Array:
        """A required, constant input that is broadcast to a shape."""
        return filled(self.array(k, what), what, shape)

    def axis(self, default: int, rank: int) -> int:
        return axis_of(int(self.attributes.get("axis", default)), rank)


def filled(array: Array, what: str, shape: Sequence[int]) -> Array:
    """An array, broadcast to a shape.

    Raises:
        Untranslatable: it has another shape.
    """
    try:
        return np.broadcast_to(array, tuple(shape))
    except ValueError as error:
        raise Untranslatable(f"{what} of shape {list(array.shape)} for {list(shape)}") from error


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        Untranslatable: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise Untranslatable(f"axis {axis} of {rank}")
    return axis % rank


Translator: TypeAlias = Callable[[Program, CNode], Sequence[ProgramValue]]
