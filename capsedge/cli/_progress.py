"""The progress of long comparisons, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from capsedge.cli._common import log


@contextmanager
def comparing() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere a line after every quarter of a long comparison."""
    if not sys.stderr.isatty():
        quarters = 0

        def line(done: int, total: int) -> None:
            nonlocal quarters
            if total >= 1000 and 4 * done // total > quarters:
                quarters = 4 * done // total
                log(f"compared {done} of {total} inputs")

        yield line
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("comparing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
