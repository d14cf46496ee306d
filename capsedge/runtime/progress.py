"""Define what long-running functions report to their argument ``progress``."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with the current stage and, if progress is counted, how much of it is done.

    ``total`` is None if nothing is counted (``done`` is 0 then), or if the end is not known yet.

    Example:
        >>> def show(stage: str, done: int = 0, total: int | None = None) -> None:
        ...     print(stage, f"{done} of {total}" if total else "")
    """

    def __call__(self, stage: str, done: int = 0, total: int | None = None, /) -> None:
        """Report; an exception that this raises ends the work."""


def silent(_stage: str, _done: int = 0, _total: int | None = None, /) -> None:
    """Report nothing: the default if no ``progress`` is given."""
