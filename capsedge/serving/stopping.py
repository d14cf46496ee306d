"""Stop a server: it refuses new requests, answers those that it has, and after a limit refuses them too."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from capsedge.serving.monitoring import logger
from capsedge.spec import limits

REFUSED = "The server is stopping: ask another, or try again once it has started."
_SETTLE = 0.2  # seconds in which requests that are on their way arrive
_NEXT = 0.5  # seconds in which a client that has more requests waiting sends the next
_FULL = limits.PIPELINED // 2  # calls on a connection, above which its client may have more waiting
_QUIET = 5.0  # seconds without a byte after which an incomplete request is not waited for
_FLUSH = 1.0  # seconds that clients have to receive refusals
_STEP = 0.02  # seconds between two looks


@dataclass(eq=False)
class RunningRequest:
    """A request that the server works on.

    Attributes:
        task: the task that answers it.
        quiet_since: since when the server waits for the next bytes of it; None once it is complete.
        dropped: whether the server gave it up; the task is cancelled, and has to refuse it.
    """

    task: asyncio.Task[object]
    quiet_since: float | None = None
    dropped: bool = False

    def listen(self) -> None:
        """The server waits for bytes of it from now on."""
        self.quiet_since = self.task.get_loop().time()

    def drop(self) -> None:
        """Give it up, once."""
        if not self.dropped:
            self.dropped = True
            self.task.cancel()


class Stopping:
    """How far the server is on its way to the end. Belongs to one event loop.

    Attributes:
        ready: whether no signal has arrived.
        refusing: whether new requests are refused.
        over: whether all requests are refused.
    """

    def __init__(self) -> None:
        self.ready, self.refusing, self.over = True, False, False
        self._at_once = False
        self._since = 0.0  # time of the signal
        self._running: set[RunningRequest] = set()
        self._calls: Counter[str] = Counter()  # by connection
        self._full: dict[str, float] = {}  # connection that had so many -> time of its last answer

    @contextmanager
    def take(self, connection: str = "") -> Iterator[RunningRequest]:
        """Count a request on a named connection as long as the current task works on it."""
        task = asyncio.current_task()
        assert task is not None
        taken = RunningRequest(task)
        self._running.add(taken)
        self._calls[connection] += bool(connection)
        try:
            yield taken
        finally:
            self._running.discard(taken)
            if not self.ready and self._was_full(connection):
                self._full[connection] = task.get_loop().time()
            self._calls[connection] -= bool(connection)
            if not self._calls[connection]:
                del self._calls[connection]

    def admits(self, connection: str) -> bool:
        """Whether a request on a connection that carries several at once is taken.

        A client with more requests than the connection may carry sends each as soon as an earlier one is
        answered. It asked before the signal, so its connection is served until it has no more waiting.
        """
        return not self.refusing or (self._was_full(connection) and not self.over)

    def _was_full(self, connection: str) -> bool:
        recent = asyncio.get_running_loop().time() - _NEXT
        return self._calls[connection] >= _FULL or self._full.get(connection, 0.0) > recent

    def hasten(self) -> None:
        """Wait no longer for running requests."""
        self._at_once = True

    async def drain(self, seconds: float, sending: Callable[[], bool]) -> None:
        """Refuse new requests, and return once every other one is answered or refused.

        Args:
            seconds: how long requests may still run.
            sending: whether an answer is still on its way.
        """
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        until = self._since + seconds
        self.ready = False
        await self._wait(min(until, loop.time() + _SETTLE), lambda: True)
        self.refusing = True
        if self._running:
            logger.warning(
                "stopping: %d requests run, for up to %g s; a second signal ends them",
                len(self._running), seconds,
            )  # fmt: skip
        await self._wait(until, lambda: self._busy() or sending())
        if self._running:
            logger.warning("%d requests were refused because they still ran", len(self._running))
        self.over = True
        for taken in list(self._running):
            taken.drop()
        self._at_once = False
        await self._wait(loop.time() + _FLUSH, lambda: bool(self._running) or sending())

    def _busy(self) -> bool:
        """Whether requests run, or a connection may bring more that were asked before the signal."""
        return bool(self._running) or any(map(self._was_full, self._full))

    async def _wait(self, until: float, busy: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        while busy() and loop.time() < until and not self._at_once:
            await asyncio.sleep(min(_STEP, max(0.0, until - loop.time())))
            for taken in list(self._running):
                quiet = taken.quiet_since
                if quiet is not None and loop.time() > max(quiet, self._since) + _QUIET:
                    taken.drop()
