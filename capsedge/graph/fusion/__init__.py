"""Find capsule routing in other tools' graphs by structure, test it numerically, and replace it.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

# --- What was fused, and what was not and why ---

_LISTED = 3  # maximum number of tensors listed for one reason


@dataclass(frozen=True)
class FusedOperator:
    """Nodes that were replaced with an operator.

    Attributes:
        operator: the operator's type.
        tensor: the original tensor that the operator computes.
        parameters: parameters read from the graph, as text by name.
        notes: remarks for the user.
    """

    operator: str
    tensor: str
    parameters: dict[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotFused:
    """A part of the graph that was left unchanged, and the reason.

    Attributes:
        tensor: the output of a softmax in the original.
        reason: why it was left unchanged.
    """

    tensor: str
    reason: str


def by_reason(not_fused: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Tensors grouped by reason: the tensors as text, and the reason.

    Args:
        not_fused: each tensor with its reason.
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
    """Everything in a graph that was fused, and everything that was not."""

    fused: tuple[FusedOperator, ...] = ()
    not_fused: tuple[NotFused, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)


# --- Exceptions ---


class NoMatch(Exception):
    """The candidate is not an operator of this package; the message is the reason, as text."""
