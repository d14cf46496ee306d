"""Clients for `benchmarks.serving`, in separate processes; each keeps a connection and checks answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.serving_wire import Question, Refused

AGAIN = 0.05  # seconds between attempts to connect
PATIENCE = 30.0  # seconds to wait for an answer after the end


@dataclass
class Tally:
    """What the clients saw.

    Attributes:
        seconds: for each right answer, the time from the request to the answer.
        in_time: number of right answers before the end; the rest of ``seconds`` came after it.
        wrong: number of answers that belong to another request, or to none.
        refused: number of answers that refuse a request.
        broken: number of connections that failed, or broke before an answer.
        lost: number of requests without an answer on connections that did not break.
        elapsed: total duration in seconds.
        busy: the clients' processor time as a share of the duration, for the busiest process.
    """

    seconds: list[float] = field(default_factory=list)
    in_time: int = 0
    wrong: int = 0
    refused: int = 0
    broken: int = 0
    lost: int = 0
    elapsed: float = 0.0
    busy: float = 0.0

    def beside(self, other: Tally) -> None:
        """Add clients that ran at the same time."""
        self._count(other)
        self.elapsed = max(self.elapsed, other.elapsed)
        self.busy = max(self.busy, other.busy)

    def after(self, other: Tally) -> None:
        """Add another round."""
        self._count(other)
        total = self.elapsed + other.elapsed
        self.busy = (self.busy * self.elapsed + other.busy * other.elapsed) / max(total, 1e-9)
        self.elapsed = total

    def _count(self, other: Tally) -> None:
        self.seconds += other.seconds
        self.in_time += other.in_time
        self.wrong, self.lost = self.wrong + other.wrong, self.lost + other.lost
        self.refused, self.broken = self.refused + other.refused, self.broken + other.broken


class _Client(asyncio.Protocol):
    """Asks one question after another on one connection; if it breaks, a new client takes over."""

    def __init__(
        self, asked: Sequence[Question], first: int, times: tuple[float, float], tally: Tally
    ) -> None:
        self._asked, self._number, self._tally = asked, first, tally
        self._start, self._end = times
        self._received = bytearray()
        self._began = 0.0  # start of the unanswered request; 0 if there is none
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        loop = asyncio.get_running_loop()
        loop.call_later(max(0.0, self._start - time.monotonic()), self._ask)

    def _ask(self) -> None:
        now = time.monotonic()
        if now >= self._end or self._transport.is_closing():
            self._transport.close()
            return
        self._question = self._asked[self._number % len(self._asked)]
        self._number += 1
        self._began = now
        self._transport.write(self._question.request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._began:
            self._tally.wrong += 1  # an answer without a request
            self._transport.close()
            return
        try:
            answer = self._question.cut(self._received)
            if answer is None:
                return
            if self._question.judged(answer):
                now = time.monotonic()
                self._tally.seconds.append(now - self._began)
                self._tally.in_time += now <= self._end
            else:
                self._tally.wrong += 1
        except Refused:
            self._tally.refused += 1
        if self._received:  # more than one answer
            self._tally.wrong += 1
        self._began = 0.0
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._began:
            self._tally.broken += 1
        if not self.closed.done():  # the wait for it may have ended
            self.closed.set_result(None)


async def _persist(
    port: int, asked: Sequence[Question], first: int, times: tuple[float, float], tally: Tally
) -> None:
    """Run a client, opening new connections as long as there is time."""
    loop = asyncio.get_running_loop()
    while time.monotonic() < times[1]:
        try:
            made = loop.create_connection(
                lambda: _Client(asked, first, times, tally), "127.0.0.1", port
            )
            transport, client = await made
        except OSError:
            tally.broken += 1
            await asyncio.sleep(AGAIN)
            continue
        left = max(0.0, times[1] - time.monotonic())
        try:
            await asyncio.wait_for(client.closed, left + PATIENCE)
        except asyncio.TimeoutError:
            tally.lost += 1
            transport.abort()


def clients(
    port: int, asked: Sequence[Question], first: int, count: int, times: tuple[float, float]
) -> Tally:
    """Run the clients of one process.

    Args:
        port: port of the server.
        asked: the questions to ask.
        first: the number of the first client, which decides the order of its questions.
        count: number of clients.
        times: when to begin and to end, on the clock of `time.monotonic`.
    """
    tally = Tally()

    async def run() -> None:
        await asyncio.gather(
            *(_persist(port, asked, 7 * k, times, tally) for k in range(first, first + count))
        )

    start = time.process_time()
    _loop()(run())
    tally.elapsed = times[1] - times[0]
    tally.busy = (time.process_time() - start) / tally.elapsed
    return tally


def _loop() -> Callable[[Any], Any]:
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.run
    return asyncio.run


def load(
    pool: ProcessPoolExecutor,
    processes: int,
    port: int,
    asked: Sequence[Question],
    count: int,
    seconds: float,
) -> Tally:
    """Run clients at the same time, spread over processes.

    Args:
        pool: pool of ``processes`` processes.
        processes: number of processes to spread them over.
        port: port of the server.
        asked: the questions to ask.
        count: number of clients.
        seconds: how long to ask; connections are made before.
    """
    start = time.monotonic() + 0.2 + 0.001 * count
    times = start, start + seconds
    bounds = [k * count // processes for k in range(processes + 1)]
    running = [
        pool.submit(clients, port, asked, low, high - low, times)
        for low, high in itertools.pairwise(bounds)
        if high > low
    ]
    total = Tally()
    for one in running:
        total.beside(one.result())
    return total
