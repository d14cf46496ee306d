"""What was recognized, and what was left with its reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Found:
    """Nodes that an operator replaced.

    Attributes:
        operator: its type.
        place: the tensor of the original that it makes.
        parameters: read off, as text by name.
        notes: what a person should know of it.
    """

    operator: str
    place: str
    parameters: dict[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Left:
    """What stays as it was.

    Attributes:
        place: a softmax of the original.
        reason: why.
    """

    place: str
    reason: str


@dataclass(frozen=True)
class Recognition:
    """Everything found in a graph, and everything left."""

    found: tuple[Found, ...] = ()
    left: tuple[Left, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return asdict(self)
