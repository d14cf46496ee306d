"""Checks that the fields of configurations share."""

from __future__ import annotations

from capsedge.errors import UsageError
from capsedge.runtime.files import limits


def check_range(least: int, most: int, **values: object) -> None:
    """Refuse numbers outside of a range."""
    for name, value in values.items():
        if not isinstance(value, int) or not least <= value <= most:
            raise UsageError(f"{name} is {value}.", f"Wanted: {least} to {most:,}.")


def check_padding(padding: int | str) -> None:
    if padding != "same":
        check_range(0, limits.KERNEL, padding=padding)


_DIALECTS = {
    "primary_grouping": ("channels", "pixels"),
    "primary_squash": ("pose", "children"),
    "softmax": ("parents", "children"),
    "class_squash": ("pose", "elements", "parents"),
    "schedule": ("rising", "constant"),
    "coordinates": ("centers", "corners", "none"),
    "patches": ("windows", "kernel", "elements"),
    "statistics": ("paper", "clamped"),
    "vote_reading": ("poses", "mixed"),
    "routed_softmax": ("places", "types"),
    "routed_squash": ("maps", "rows", "pose", "elements"),
}


def check_dialects(config: object) -> None:
    """Refuse unknown words in the fields that say how a network differs from its paper."""
    for name, known in _DIALECTS.items():
        value = getattr(config, name, known[0])
        if value not in known:
            raise UsageError(f"{name} is '{value}'.", f"Known: {', '.join(known)}.")
