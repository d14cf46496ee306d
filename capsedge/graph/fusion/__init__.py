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


def by_reason(left: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Places with the same reason together: the places in words, and the reason.

    Args:
        left: place and reason of each.
    """
    places: dict[str, list[str]] = {}
    for place, reason in left:
        places.setdefault(reason, []).append(place)
    return [
        (found[0] if len(found) == 1 else f"{len(found)} softmaxes, {_listed(found)}", reason)
        for reason, found in places.items()
    ]


def _listed(places: list[str]) -> str:
    shown = ", ".join(places[:_LISTED])
    return shown if len(places) <= _LISTED else f"{shown}, ..."


@dataclass(frozen=True)
class Recognition:
    """Everything found in a graph, and everything left."""

    found: tuple[Found, ...] = ()
    left: tuple[Left, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return asdict(self)


# --- Why something is left as it is ---


class NotRecognized(Exception):
    """What was looked at is no operator of this package; the message is the reason, for a person."""
