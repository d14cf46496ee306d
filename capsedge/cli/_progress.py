"""The progress of long comparisons, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from capsedge.cli._common import log

_SLOW = 5.0  # seconds without a line


def said(as_json: bool) -> Callable[[str], None]:
    """A line for each stage of the work; none where the answer is for a program."""
    return (lambda _: None) if as_json else lambda stage: log(f"{stage} ...")


@contextmanager
def comparing() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere a line after every quarter of a comparison of many inputs or seconds."""
    if not sys.stderr.isatty():
        quarters, last = 0, time.monotonic()

        def line(done: int, total: int) -> None:
            nonlocal quarters, last
            slow = time.monotonic() - last >= _SLOW and done < total
            if (total >= 1000 or slow) and 4 * done // total > quarters:
                quarters, last = 4 * done // total, time.monotonic()
                log(f"compared {done} of {total} inputs")

        yield line
        return
    with bar("comparing") as update:
        yield update


@contextmanager
def bar(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on a terminal, with the time that is left where the whole is known."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for every stage on a terminal; elsewhere a line at the end of long stages."""
    if not sys.stderr.isatty():

        def line(stage: str, done: int, total: int) -> None:
            if stage == "candidates" or (done == total and total >= 1000):
                log(f"{stage}: {done}" + ("" if stage == "candidates" else " images"))

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    tasks: dict[str, Any] = {}
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield update
