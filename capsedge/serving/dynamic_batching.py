"""Gather requests that wait for a processor, and run them together when one is free.

MLServer's own batching holds every request back for a fixed time, alone or not, and starts a batch whether or
not a processor is free. Here nothing waits that could run: a lone request starts at once, and what arrives
while all processors are busy becomes the next batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True)
class _Waiting(Generic[RequestT, ResponseT]):
    """A request, the images in it, its answer to come, and when it starts even if its batch is not full."""

    request: RequestT
    images: int
    response: asyncio.Future[ResponseT]
    latest: float


class DynamicBatcher(Generic[RequestT, ResponseT]):
    """Gathers requests into batches. Belongs to one event loop.

    Args:
        run: answers the requests of a batch in their order, in a thread: an answer or an error for each.
        runners: the threads.
        at_once: batches that run at the same time. Full ones, which waiting would not make larger, go to the
            threads at once.
        images: the number of images in a request.
        size: images in a batch; a request with more is a batch by itself.
        seconds: that a batch waits for more requests though a thread is free.
    """

    def __init__(
        self,
        run: Callable[[Sequence[RequestT]], Sequence[ResponseT | Exception]],
        runners: Executor,
        at_once: int,
        images: Callable[[RequestT], int],
        size: int = 1,
        seconds: float = 0.0,
    ) -> None:
        self._run, self._runners, self._free = run, runners, at_once
        self._images, self._size, self._seconds = images, size, seconds
        self._waiting: deque[_Waiting[RequestT, ResponseT]] = deque()
        self._total = 0  # images that wait
        self._timer: asyncio.TimerHandle | None = None

    async def submit(self, request: RequestT) -> ResponseT:
        """The answer to a request.

        Raises:
            Exception: the error that `run` returned for it, or raised.
        """
        loop = asyncio.get_running_loop()
        latest = loop.time() + self._seconds
        one = _Waiting(request, self._images(request), loop.create_future(), latest)
        self._waiting.append(one)
        self._total += one.images
        self._start(loop)
        answer: ResponseT = await one.response
        return answer

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start batches as long as there are requests and free threads."""
        while self._ready(loop):
            batch = self._take()
            if not batch:
                continue
            self._free -= 1
            running = loop.run_in_executor(self._runners, self._run, [one.request for one in batch])
            running.add_done_callback(partial(self._done, loop, batch))

    def _ready(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the next batch may start; if it waits for more requests, a timer is set."""
        if not self._waiting:
            return False
        if self._total >= self._size:
            return True
        if self._free <= 0:
            return False
        left = self._waiting[0].latest - loop.time() if self._seconds else 0.0
        if left <= 0:
            return True
        if self._timer is None:
            self._timer = loop.call_later(left, self._ring, loop)
        return False

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._start(loop)

    def _take(self) -> list[_Waiting[RequestT, ResponseT]]:
        """The next batch, in the order of arrival; without requests whose client has gone away."""
        batch: list[_Waiting[RequestT, ResponseT]] = []
        total = 0
        while self._waiting and (not batch or total + self._waiting[0].images <= self._size):
            one = self._waiting.popleft()
            self._total -= one.images
            if not one.response.done():
                batch.append(one)
                total += one.images
        return batch

    def _done(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: Sequence[_Waiting[RequestT, ResponseT]],
        running: asyncio.Future[Sequence[ResponseT | Exception]],
    ) -> None:
        self._free += 1
        self._start(loop)
        error = running.exception()
        answers = [error] * len(batch) if error is not None else running.result()
        for one, answer in zip(batch, answers, strict=True):
            if one.response.done():  # the client has gone away
                continue
            if isinstance(answer, BaseException):
                one.response.set_exception(answer)
            else:
                one.response.set_result(answer)
