"""What functions that take long report to their argument ``progress``."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with what is being done, and with how much of it is done where that is counted.

    ``total`` is None where nothing is counted (``done`` is 0 then), or where the end is not known yet.

    Example:
        >>> def show(stage: str, done: int = 0, total: int | None = None) -> None:
        ...     print(stage, f"{done} of {total}" if total else "")
    """

    def __call__(self, stage: str, done: int = 0, total: int | None = None, /) -> None:
        """Report; an exception that this raises ends the work."""


def silent(_stage: str, _done: int = 0, _total: int | None = None, /) -> None:
    """Report nothing: the default where no ``progress`` is given."""
