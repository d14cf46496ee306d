"""A few cases of an operator in which every kind of input, every setting and every class of sizes occurs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .cases import Case


def _sizes(name: str, value: Any) -> Iterator[tuple[str, object]]:
    """None, one, what fills vectors and what leaves a remainder, of few elements and of many.

    Poses of up to 2x2 are classes of their own.
    """
    if isinstance(value, tuple):
        yield name, len(value)
        yield from _sizes(f"last of {name}", value[-1])
    elif value < 2 or (name.startswith("P") and value <= 4):
        yield name, value
    else:
        yield name, ("filled" if value % 8 == 0 else "remainder", value > 8)


def traits(case: Case) -> set[tuple[str, object]]:
    """What may tell a case from the others of its operator."""
    found: set[tuple[str, object]] = {("kind", case.kind)}
    found |= {*case.attributes.items(), *case.options.items()}
    for name, value in case.dims.items():
        found |= {*_sizes(name, value)}
    return found


def selected(cases: Sequence[Case]) -> list[Case]:
    """Cases that have every trait of all, those with the most traits that no earlier one has first."""
    missing = {trait for case in cases for trait in traits(case)}
    found: list[Case] = []
    while missing:
        found.append(max(cases, key=lambda case: len(traits(case) & missing)))
        missing -= traits(found[-1])
    return found
