"""TensorRT's build progress for a person: what it does, how far it is, how long the rest may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Listener = Callable[[float, str, "float | None"], None]
_EARLY = 0.05  # share of the work below which an estimate would be a guess


@dataclass
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


@dataclass
class Progress:
    """Nested phases as one share of the whole.

    TensorRT opens phases inside steps of others and tells neither weights nor times, so a step counts as
    an equal part of its phase. The share never goes back.

    Args:
        report: called with the share (0 to 1), the phase in words, and the seconds left (None while it
            is too early to say).
        clock: seconds.

    Attributes:
        stopped_by: what was raised in the middle of the build, for `builder.build` to raise after it.
    """

    report: Listener
    clock: Callable[[], float] = time.monotonic
    stopped_by: BaseException | None = None
    share: float = 0.0
    _phases: dict[str, _Phase] = field(default_factory=dict)
    _start: float | None = None

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        """A phase begins, inside another or on its own."""
        if self._start is None:
            self._start = self.clock()
        self._phases[phase] = _Phase(parent or None, max(1, steps))
        self._tell(phase)

    def step(self, phase: str, done: int) -> bool:
        """``done`` is the number of the step that ended, from 0; False asks TensorRT to stop."""
        if phase in self._phases:
            self._phases[phase].done = done + 1
            self._tell(phase)
        return self.stopped_by is None

    def finish(self, phase: str) -> None:
        """A phase ends, also when the build was stopped in it."""
        ended = self._phases.pop(phase, None)
        if ended is None:
            return
        if ended.parent is None and not self._phases:
            self.share = 1.0
        self._tell(phase)

    def _tell(self, phase: str) -> None:
        self.share = max(self.share, min(1.0, self._whole()))
        spent = self.clock() - (self._start or 0.0)
        left = spent * (1 / self.share - 1) if self.share >= _EARLY else None
        self.report(self.share, phase, left)

    def _whole(self) -> float:
        """Share of the first phase of all that is open, with the shares of those inside its current step."""
        roots = [name for name, phase in self._phases.items() if phase.parent not in self._phases]
        return self._of(roots[0]) if roots else self.share

    def _of(self, name: str) -> float:
        phase = self._phases[name]
        inside = [child for child, p in self._phases.items() if p.parent == name]
        part = max((self._of(child) for child in inside), default=0.0)
        return min(1.0, (phase.done + part) / phase.steps)


def monitor(trt: Any, progress: Progress) -> Any:
    """An ``IProgressMonitor`` that hands everything on.

    Nothing may be raised through TensorRT's C++: an interrupt, or a report that fails because nobody
    reads the standard error any more, stops the build and is raised when it has ended.
    """

    @contextmanager
    def guarded() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            progress.stopped_by = progress.stopped_by or error

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with guarded():
                progress.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with guarded():
                progress.step(phase_name, step)
            return progress.stopped_by is None

        def phase_finish(self, phase_name: str) -> None:
            with guarded():
                progress.finish(phase_name)

    return Monitor()
