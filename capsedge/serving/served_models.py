"""Check the models to serve: names, independent rows, and good batch sizes, measured at the start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import CapsedgeError
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.session.session import Session
from capsedge.serving.server_model import ModelName

# --- Batch sizes ---

SIZES = (1, 2, 4, 8, 16, 32)
_SECONDS = 0.5  # total for all batch sizes
_ROUNDS = 3  # at least
_LONGEST = 0.1  # most seconds per batch, for which every later request waits
_CLOSE = 1.05  # times the least time per image: a larger batch must gain more than this


@dataclass(frozen=True)
class BatchSize:
    """The batch size of a served model: how many images run together.

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
class ServerPorts:
    """TCP ports; 0 stands for a free one."""

    rest: int
    grpc: int
    metrics: int


@dataclass(frozen=True)
class ServerAddress:
    """The address at which a server listens.

    Attributes:
        host: IPv6 addresses in brackets.
        ports: the ports in use.
    """

    host: str
    ports: ServerPorts


@dataclass(frozen=True)
class ServerSettings:
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
    ports: ServerPorts
    threads: int
    wait_ms: float
    stop_timeout: float
    version: str

    def versions(self, name: str) -> list[str]:
        """The versions of a name; the last one is the newest, which is its default."""
        return sorted((m.version for m in self.models if m.name == name), key=_as_number)


def _as_number(version: str) -> tuple[int, str]:
    return int(version) if version.isascii() and version.isdecimal() else -1, version


Arrays = dict[str, NDArray[np.generic]]

_LENGTH = 50  # of a free axis without a limit
_ROWS = 4  # of a batch that is checked
# Relative to the largest value of a row: what may change if the other rows are exchanged, which leaves all
# shapes as they are, and if there are none. Less than _ROUNDING may always.
_EXCHANGED, _ALONE = 1e-4, 1e-2
_ROUNDING = 1e-6


def random_rows(session: Session, size: int, seed: int) -> Arrays:
    """Rows for all inputs of a file; free axes have the longest length that it states, or 50.

    Floats are from 0 to 1. Indices are 0, since parts may index smaller tables than the file states; other
    integers are 1.
    """
    rng = np.random.default_rng(seed)
    engine = session.backend.engine_metadata
    length = engine.length[1] if engine is not None and engine.length else 0
    return {port.name: _rows_of(port, size, length, rng) for port in session.inputs}


def _rows_of(port: Port, size: int, length: int, rng: np.random.Generator) -> NDArray[np.generic]:
    """Rows of an input; ``length`` is that of free axes, 0 for the longest that the file states."""
    longest = port.longest or (0,) * len(port.shape)
    sizes = [
        s if isinstance(s, int) else length or most or _LENGTH
        for s, most in zip(port.shape[1:], longest[1:], strict=True)
    ]
    if port.entries is not None:
        return np.zeros((size, *sizes), port.dtype)
    if port.dtype.startswith("float"):
        return rng.random((size, *sizes)).astype(port.dtype)
    return np.ones((size, *sizes), port.dtype)


def contradiction(session: Session) -> str:
    """Why a file's statement that its rows are independent is wrong; empty if nothing speaks against it.

    A row must have the same results among other rows and, if the file takes a single one, by itself. This
    finds mistakes; a file that is made to deceive can behave on these rows.
    """
    batches = session.backend.batches
    size = max(batches.smallest, min(_ROWS, batches.largest or _ROWS))
    first, other = random_rows(session, size, 1), random_rows(session, size, 2)
    mixed = {name: np.concatenate([x[:1], other[name][1:]]) for name, x in first.items()}
    try:
        found = session.run(first)
        why = _difference(found, session.run(mixed), _EXCHANGED)
        if not why and batches.smallest == 1:
            alone = session.run({name: x[:1] for name, x in first.items()})
            why = _difference(found, alone, _ALONE)
    except CapsedgeError as error:
        return f"random rows cannot be run: {error.why.rstrip('.')}"
    return why


def _difference(one: Mapping[str, object], other: Mapping[str, object], tolerance: float) -> str:
    """The output whose first row differs between two runs; empty if none does."""
    for name in one:
        a, b = (np.asarray(run[name])[:1].astype(np.float64) for run in (one, other))
        if a.shape != b.shape:
            return f"output '{name}' of a row has another shape among other rows"
        both = np.isfinite(a) & np.isfinite(b)
        off = np.abs(a - b)[both].max(initial=0.0)
        if off > tolerance * np.abs(a[both]).max(initial=0.0) + _ROUNDING:
            return f"output '{name}' of a row differs by {off:.3g} among other rows"
    return ""
