"""Check the models to serve, and measure good batch sizes at the start."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from capsedge.runtime.session.session import Session
from capsedge.serving.independent_rows import contradiction, random_rows
from capsedge.serving.server_model import ModelName

# --- Batch sizes ---

SIZES = (1, 2, 4, 8, 16, 32)
_SECONDS = 0.5  # total for all batch sizes
_ROUNDS = 3  # at least
_LONGEST = 0.1  # most seconds per batch, for which every later request waits
_CLOSE = 1.05  # times the least time per image: a larger batch must gain more than this


@dataclass(frozen=True)
class BatchSize:
    """The batch size: how many images run together.

    Attributes:
        images: most images per inference.
        gain: throughput relative to single images; None if not measured.
        alone: why requests do not run together although the file says that they may; empty otherwise.
    """

    images: int
    gain: float | None = None
    alone: str = ""


def can_batch(session: Session) -> bool:
    """Whether requests may run together, as far as the file says.

    This needs a capsedge file with a free batch that takes images of one size, or a file that states that the
    rows of its inputs are independent.

    Returns:
        True if they may.
    """
    ports = (*session.inputs, *session.outputs)
    free = all(port.shape and not isinstance(port.shape[0], int) for port in ports)
    if session.metadata is None:
        independent = all(port.independent for port in session.inputs)
        return independent and free and len({port.shape[0] for port in ports}) == 1
    alike = all(isinstance(size, int) for port in session.inputs for size in port.shape[1:])
    return free and alike


def fixed_size(session: Session, images: int) -> BatchSize:
    """The batch size chosen by the user; 1 if requests cannot be gathered."""
    if images == 1 or not can_batch(session):
        return BatchSize(1)
    why = _contradiction(session)
    return BatchSize(1, alone=why) if why else BatchSize(images)


def _contradiction(session: Session) -> str:
    """Why a file's own statement is not believed; one of capsedge, which takes images, makes none."""
    if session.metadata is not None:
        return ""
    why = contradiction(session)
    return why and f"the file states that its rows are independent, but {why}"


def measure_size(session: Session) -> BatchSize:
    """Measure the best batch size for a model, while nothing else runs in this process.

    Sizes are timed in turn for half a second, on noise images or rows. The smallest size whose time per
    image is within 5 % of the least is chosen; no batch may take longer than 0.1 s, because other requests
    wait for it.

    Returns:
        The size; 1 if larger ones gain nothing, or requests cannot be gathered.
    """
    if not can_batch(session):
        return BatchSize(1)
    if why := _contradiction(session):
        return BatchSize(1, alone=why)
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
    """The smallest batch size within 5 % of the least seconds per image; ``times`` may be empty."""
    if len(times) < 2:
        return BatchSize(1)
    least = min(times.values())
    images = next(size for size, seconds in times.items() if seconds <= _CLOSE * least)
    return BatchSize(images, times[1] / times[images])


def _seconds(session: Session, size: int) -> float:
    if session.metadata is None:
        rows = random_rows(session, size, size)
        start = time.perf_counter()
        session.run(rows)
        return time.perf_counter() - start
    shape = [s for s in session.inputs[0].shape[1:] if isinstance(s, int)]
    images = np.random.default_rng(size).random((size, *shape), np.float32)
    start = time.perf_counter()
    for _ in session.run_batches(images, session.roles.all):
        pass
    return time.perf_counter() - start


# --- Models and addresses, checked before the server is imported ---


@dataclass(frozen=True)
class ServedSession(ModelName):
    """A loaded model from the command line.

    Attributes:
        session: session of the file.
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
    """The address at which a server listens.

    Attributes:
        host: IPv6 addresses in brackets.
        ports: the ports in use.
    """

    host: str
    ports: Ports


@dataclass(frozen=True)
class Serving:
    """Everything that a server needs to know.

    Attributes:
        models: the models to serve.
        host: name or address of this machine to listen on.
        ports: ports to listen on.
        threads: number of threads for one inference.
        wait_ms: milliseconds that a batch waits for more requests.
        stop_timeout: seconds that running requests have to finish when the server stops.
        version: version of capsedge.
    """

    models: tuple[ServedSession, ...]
    host: str
    ports: Ports
    threads: int
    wait_ms: float
    stop_timeout: float
    version: str

    def versions(self, name: str) -> list[str]:
        """The versions of a name; the last one is the newest, which is its default."""
        return sorted((m.version for m in self.models if m.name == name), key=_as_number)


def _as_number(version: str) -> tuple[int, str]:
    return int(version) if version.isascii() and version.isdecimal() else -1, version
