"""A graph node with its inputs and attributes read, in the form that the translators take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from capsedge.exporters.c.program import Array, Program, Untranslatable, Value


@dataclass
class Node:
    """A node.

    Attributes:
        name: name of the node, or of its first output.
        operator: its type, without the number of an instance.
        inputs: its values; None for omitted ones.
        attributes: attributes as Python values.
        outputs: how many it has.
        relu: whether a Relu follows that the node can do itself.
    """

    name: str
    operator: str
    inputs: list[Value | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    relu: bool = False

    def value(self, k: int) -> Value:
        """A required input."""
        value = self.optional(k)
        if value is None:
            raise Untranslatable(f"input {k} is missing")
        return value

    def optional(self, k: int) -> Value | None:
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

    def axis(self, default: int, rank: int) -> int:
        return int(self.attributes.get("axis", default)) % max(rank, 1)


Translator: TypeAlias = Callable[[Program, Node], Sequence[Value]]
