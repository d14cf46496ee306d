"""Capsule routing in graphs of other tools: found by structure, judged by numbers, replaced. No
torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

# --- What was recognized, and what was left with its reason ---


_LISTED = 3  # places with the same reason that are named


@dataclass(frozen=True)
class FusedOperator:
    """Nodes that an operator replaced.

    Attributes:
        operator: its type.
        tensor: the tensor of the original that it makes.
        parameters: read off, as text by name.
        notes: what a person should know of it.
    """

    operator: str
    tensor: str
    parameters: dict[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotFused:
    """What stays as it was.

    Attributes:
        tensor: a softmax of the original.
        reason: why.
    """

    tensor: str
    reason: str


def by_reason(not_fused: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Places with the same reason together: the places in words, and the reason.

    Args:
        not_fused: place and reason of each.
    """
    tensors: dict[str, list[str]] = {}
    for tensor, reason in not_fused:
        tensors.setdefault(reason, []).append(tensor)
    return [
        (found[0] if len(found) == 1 else f"{len(found)} softmaxes, {_listed(found)}", reason)
        for reason, found in tensors.items()
    ]


def _listed(tensors: list[str]) -> str:
    shown = ", ".join(tensors[:_LISTED])
    return shown if len(tensors) <= _LISTED else f"{shown}, ..."


@dataclass(frozen=True)
class FusionReport:
    """Everything found in a graph, and everything left."""

    fused: tuple[FusedOperator, ...] = ()
    not_fused: tuple[NotFused, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return asdict(self)


# --- Why something is left as it is ---


class NoMatch(Exception):
    """What was looked at is no operator of this package; the message is the reason, for a person."""
