"""What the fields of configurations share: checks, JSON values, and fields that came later."""

from __future__ import annotations

import dataclasses
from typing import Any

from capsedge.errors import UsageError
from capsedge.runtime.files import limits
from capsedge.runtime.metadata import Preprocessing


def check_range(least: int, most: int, **values: object) -> None:
    """Refuse numbers outside of a range."""
    for name, value in values.items():
        if not isinstance(value, int) or not least <= value <= most:
            raise UsageError(f"{name} is {value}.", f"Wanted: {least} to {most:,}.")


def check_padding(padding: int | str) -> None:
    if padding != "same":
        check_range(0, limits.KERNEL, padding=padding)


def later(default: Any) -> Any:
    """A field that the first version lacks: `ModelConfig.to_dict` leaves it out while it is at its default.

    So the same configuration is the same bytes in every version, and an older one reads it.
    """
    return dataclasses.field(default=default, metadata={"later": True})


def plain(value: Any) -> Any:
    """JSON values of a configuration or of a part of one."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, Preprocessing):
        return value.to_dict()
    if not dataclasses.is_dataclass(value):
        return value
    return {
        f.name: plain(getattr(value, f.name))
        for f in dataclasses.fields(value)
        if "later" not in f.metadata or getattr(value, f.name) != f.default
    }


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
