"""What a fuzz target is to the driver: something that runs for a while and reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Budget:
    """How long a target may run.

    Attributes:
        seconds: wall-clock time.
        inputs: at most so many; 0 for as many as the time allows.
        folder: for the corpus that grows and the inputs that failed.
    """

    seconds: float
    inputs: int
    folder: Path


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        inputs: how many were tried.
        seconds: how long that took.
        coverage: ``(inputs so far, features reached)`` whenever it grew; it ends flat at the plateau.
        failures: one line a failure, with the file that reproduces it.
        skipped: why the target did not run; empty if it did.
    """

    inputs: int = 0
    seconds: float = 0.0
    coverage: list[tuple[int, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    skipped: str = ""


@dataclass(frozen=True)
class Target:
    """A name, and what runs it."""

    name: str
    run: Callable[[Budget], Outcome]
