"""Check what a server is to serve, and measure good batch sizes at its start."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.backends.backend import Port
from capsedge.runtime.session import Session
from capsedge.serving.deploy.server_model import ModelName

# --- Batch sizes ---

SIZES = (1, 2, 4, 8, 16, 32)
_SECONDS = 0.5  # for all sizes together
_ROUNDS = 3  # at least
_LONGEST = 0.1  # seconds of one batch, which everyone behind it waits for
_LENGTH = 50  # of a free axis without a longest length
_CLOSE = 1.05  # times the least time; a larger batch is not worth less than that


@dataclass(frozen=True)
class BatchSize:
    """How many images run together.

    Attributes:
        images: in one inference, at most.
        gain: images in a second, as a multiple of those of single images; None if it was not measured.
    """

    images: int
    gain: float | None = None


def can_batch(session: Session) -> bool:
    """Whether requests may be run together: images of one size, or inputs that the file states something of,
    such as ids, in a file of capsedge whose batch is free.

    Args:
        session: the loaded model.

    Returns:
        True if they may.
    """
    ports = (*session.inputs, *session.outputs)
    free = all(port.shape and not isinstance(port.shape[0], int) for port in ports)
    if session.metadata is None:
        stated = any(port.entries is not None or port.longest for port in session.inputs)
        return stated and free and len({port.shape[0] for port in ports}) == 1
    alike = all(isinstance(size, int) for port in session.inputs for size in port.shape[1:])
    return free and alike


def fixed_size(session: Session, images: int) -> BatchSize:
    """A size that somebody chose.

    Args:
        session: the loaded model.
        images: in a batch.

    Returns:
        The size; 1 where requests cannot be gathered.
    """
    return BatchSize(images if can_batch(session) else 1)


def measure_size(session: Session) -> BatchSize:
    """The best batch for a model that this process runs alone.

    Sizes are timed in turns for half a second, on images of noise or random ids. It is the smallest whose
    time for an image is within 5 % of the least; no batch may take longer than 0.1 s, because others wait
    for it.

    Args:
        session: the loaded model.

    Returns:
        The size; 1 where larger ones gain nothing, or requests cannot be gathered.
    """
    if not can_batch(session):
        return BatchSize(1)
    times: dict[int, float] = {}
    for size in SIZES:
        if size > (session.backend.batches.largest or size) or _seconds(session, size) > _LONGEST:
            break  # the first run of a size allocates its memory and is not counted
        times[size] = np.inf
    start, rounds = time.perf_counter(), 0
    while len(times) > 1 and (rounds < _ROUNDS or time.perf_counter() < start + _SECONDS):
        times = {size: min(best, _seconds(session, size) / size) for size, best in times.items()}
        rounds += 1
    return choose_size(times)


def choose_size(times: dict[int, float]) -> BatchSize:
    """The choice from seconds for an image by batch size, in rising order.

    Args:
        times: may be empty, if even one image takes too long.

    Returns:
        The smallest size whose time is within 5 % of the least.
    """
    if len(times) < 2:
        return BatchSize(1)
    least = min(times.values())
    images = next(size for size, seconds in times.items() if seconds <= _CLOSE * least)
    return BatchSize(images, times[1] / times[images])


def _seconds(session: Session, size: int) -> float:
    rng = np.random.default_rng(size)
    if session.metadata is None:
        rows = {port.name: _random_rows(port, size, rng) for port in session.inputs}
        start = time.perf_counter()
        session.run(rows)
        return time.perf_counter() - start
    shape = [s for s in session.inputs[0].shape[1:] if isinstance(s, int)]
    images = rng.random((size, *shape), np.float32)
    start = time.perf_counter()
    for _ in session.run_batches(images, session.roles.all):
        pass
    return time.perf_counter() - start


def _random_rows(port: Port, size: int, rng: np.random.Generator) -> NDArray[Any]:
    """Rows of an input: indices within its table, other whole numbers 1; free axes as long as they may be."""
    longest = port.longest or (0,) * len(port.shape)
    sizes = [
        s if isinstance(s, int) else most or _LENGTH
        for s, most in zip(port.shape[1:], longest[1:], strict=True)
    ]
    if port.entries is not None:
        return rng.integers(port.entries, size=(size, *sizes)).astype(port.dtype)
    if port.dtype.startswith("float"):
        return rng.random((size, *sizes)).astype(port.dtype)
    return np.ones((size, *sizes), port.dtype)


# --- Models and addresses, checked before the server is imported ---


@dataclass(frozen=True)
class ServedSession(ModelName):
    """A model of the command line, loaded.

    Attributes:
        session: of the file.
        batch: how many images run together.
    """

    session: Session
    batch: BatchSize


@dataclass(frozen=True)
class Ports:
    """TCP ports; 0 stands for a free one."""

    rest: int
    grpc: int
    metrics: int


@dataclass(frozen=True)
class Address:
    """Where a server answers.

    Attributes:
        host: IPv6 addresses in brackets.
        ports: that were taken.
    """

    host: str
    ports: Ports


@dataclass(frozen=True)
class Serving:
    """Everything that a server needs to know.

    Attributes:
        models: that are served.
        host: name or address of this machine to listen on.
        ports: to listen on.
        threads: of one inference.
        wait_ms: milliseconds that a batch waits for more requests.
        version: of capsedge.
    """

    models: tuple[ServedSession, ...]
    host: str
    ports: Ports
    threads: int
    wait_ms: float
    version: str

    def newest(self, name: str) -> str:
        """The newest version of a name, which is its default; empty if it has none."""
        return max((m.version for m in self.models if m.name == name), key=_as_number)


def _as_number(version: str) -> tuple[int, str]:
    return int(version) if version.isdecimal() else -1, version
