"""Numbers as readable text: times, sizes, counts."""

from __future__ import annotations


def size(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def quantity(count: float) -> str:
    """A large number with a prefix: ``3.2 M``."""
    amount = float(count)
    for unit in ("", " k", " M", " G"):
        if abs(amount) < 1000:
            return f"{amount:.0f}" if not unit else f"{amount:.3g}{unit}"
        amount /= 1000
    return f"{amount:.3g} T"


def milliseconds(value: float) -> str:
    """A time in milliseconds with three significant digits or more."""
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 10 else f"{value:.3f}"
