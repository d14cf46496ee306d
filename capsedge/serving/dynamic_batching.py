"""Gather requests that wait for a processor, and run them together when a processor is free.

No request waits that could run: a lone request starts at once, and requests that arrive while all processors
are busy form the next batch. Servers that gather for a fixed time delay every request by it, even a lone one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True)
class _Waiting(Generic[RequestT, ResponseT]):
    """A request, its number of images, its future answer, and when it starts at the latest."""

    request: RequestT
    images: int
    response: asyncio.Future[ResponseT]
    latest: float


@dataclass
class _Queue(Generic[RequestT, ResponseT]):
    """Requests that may run together, in order of arrival, and their number of images."""

    kind: Hashable
    waiting: deque[_Waiting[RequestT, ResponseT]] = field(default_factory=deque)
    images: int = 0


class DynamicBatcher(Generic[RequestT, ResponseT]):
    """Gathers requests into batches. Belongs to one event loop.

    Args:
        run: answers the requests of a batch in order, in a thread, with an answer or an error for each.
        runners: the threads.
        at_once: batches that run at the same time. Full ones, which cannot grow by waiting, go to the threads
            at once.
        images: the number of images in a request.
        size: images in a batch; a request with more is a batch by itself.
        seconds: how long a batch waits for more requests although a thread is free.
        kind: the kind of a request; only requests of one kind run together.
    """

    def __init__(
        self,
        run: Callable[[Sequence[RequestT]], Sequence[ResponseT | Exception]],
        runners: Executor,
        at_once: int,
        images: Callable[[RequestT], int],
        size: int = 1,
        seconds: float = 0.0,
        kind: Callable[[RequestT], Hashable] = lambda _: None,
    ) -> None:
        self._run, self._runners, self._free = run, runners, at_once
        self._images, self._size, self._seconds = images, size, seconds
        self._kind = kind
        self._queues: dict[Hashable, _Queue[RequestT, ResponseT]] = {}  # none is empty
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Future[Sequence[ResponseT | Exception]]] = set()

    def abandon(self) -> None:
        """Start no more batches, and forget those that run, whose threads go on until they are done."""
        for running in list(self._running):
            running.cancel()

    async def submit(self, request: RequestT) -> ResponseT:
        """The answer to a request."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + self._seconds
        one = _Waiting(request, self._images(request), loop.create_future(), latest)
        kind = self._kind(request)
        queue = self._queues.setdefault(kind, _Queue(kind))
        queue.waiting.append(one)
        queue.images += one.images
        self._start(loop)
        answer: ResponseT = await one.response
        return answer

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start batches as long as there are requests and free threads."""
        while (queue := self._ready(loop)) is not None:
            batch = self._take(queue)
            if not batch:
                continue
            self._free -= 1
            running = loop.run_in_executor(self._runners, self._run, [one.request for one in batch])
            self._running.add(running)
            running.add_done_callback(partial(self._done, loop, batch))

    def _ready(self, loop: asyncio.AbstractEventLoop) -> _Queue[RequestT, ResponseT] | None:
        """The queue of the next batch, if one may start; if it waits for more requests, a timer is set."""
        queues = self._queues.values()
        if not queues:
            return None
        full = next((queue for queue in queues if queue.images >= self._size), None)
        if full is not None or self._free <= 0:
            return full
        oldest = min(queues, key=lambda queue: queue.waiting[0].latest)
        left = oldest.waiting[0].latest - loop.time() if self._seconds else 0.0
        if left <= 0:
            return oldest
        if self._timer is None:
            self._timer = loop.call_later(left, self._ring, loop)
        return None

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._start(loop)

    def _take(self, queue: _Queue[RequestT, ResponseT]) -> list[_Waiting[RequestT, ResponseT]]:
        """The next batch, in order of arrival, without requests whose client has disconnected."""
        batch: list[_Waiting[RequestT, ResponseT]] = []
        total = 0
        waiting = queue.waiting
        while waiting and (not batch or total + waiting[0].images <= self._size):
            one = waiting.popleft()
            queue.images -= one.images
            if not one.response.done():
                batch.append(one)
                total += one.images
        if not waiting:
            del self._queues[queue.kind]
        return batch

    def _done(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: Sequence[_Waiting[RequestT, ResponseT]],
        running: asyncio.Future[Sequence[ResponseT | Exception]],
    ) -> None:
        self._running.discard(running)
        self._free += 1
        if running.cancelled():
            return
        self._start(loop)
        error = running.exception()
        answers = [error] * len(batch) if error is not None else running.result()
        for one, answer in zip(batch, answers, strict=True):
            if one.response.done():  # the client has disconnected
                continue
            if isinstance(answer, BaseException):
                one.response.set_exception(answer)
            else:
                one.response.set_result(answer)
