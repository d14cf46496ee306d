"""The progress of a training run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Update = Callable[[int, int, int, float], None]


@contextmanager
def bar(name: str, epochs: int | None = None) -> Iterator[Update | None]:
    """A bar on a terminal, from the first step on; nothing elsewhere, where every epoch or round has a line.

    Args:
        epochs: of the run; None for one bar per epoch.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task: Any = None

        def update(epoch: int, step: int, steps: int, _loss: float) -> None:
            nonlocal task
            if task is None:
                task = progress.add_task(name, total=steps * (epochs or 1))
            done = step + 1 if epochs is None else epoch * steps + step + 1
            progress.update(task, completed=done)

        yield update
