"""Say which settings differ between an unfinished run and the one that would continue it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SHOWN = 4
_MISSING = object()


def changed_settings(stored: Any, current: Any) -> str:
    """What differs, in words: ``lr was 0.001 and is now 0.002``; empty if nothing does.

    Args:
        stored: settings of the unfinished run, as plain values; may come from a damaged file.
        current: those of this run.
    """
    before, now = dict(_leaves(stored)), dict(_leaves(current))
    changes = [
        f"{name} {_was(before.get(name, _MISSING))} and {_is(now.get(name, _MISSING))}"
        for name in [*now, *(name for name in before if name not in now)]
        if before.get(name, _MISSING) != now.get(name, _MISSING)
    ]
    more = len(changes) - _SHOWN
    return "; ".join(changes[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The single values with the names that lead to them; lists of plain values are one value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else f"{key}")
    elif isinstance(value, Sequence) and any(isinstance(inner, Mapping) for inner in value):
        for inner in value:
            yield from _leaves(inner, name)
    else:
        yield name or "the settings", list(value) if isinstance(value, tuple) else value


def _was(value: Any) -> str:
    return "was not set" if value in (_MISSING, None) else f"was {value!s:.40}"


def _is(value: Any) -> str:
    return "is not set now" if value in (_MISSING, None) else f"is now {value!s:.40}"
