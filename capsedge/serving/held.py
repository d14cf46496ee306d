"""What the server holds for its clients: bytes of bodies, messages and answers, over all connections."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from capsedge.runtime.files import limits

Message = TypeVar("Message")
_SLOW = 1.0  # seconds after which a message that arrives makes room for another
_PATIENCE = 10.0  # seconds that a client waits for a place


class Full(Exception):
    """There is no room for the request now."""

    def __init__(self, why: str = "The server holds too many requests: try again.") -> None:
        super().__init__(why)


class Held:
    """Counts the bytes. Belongs to one event loop.

    The messages of gRPC cannot be counted while they arrive, so they have places of their own: as many as
    `limits.RECEIVING`, each for the largest message twice, since it is copied when grpc hands it over. All
    else shares the rest of `limits.HELD_BYTES`.
    """

    most = limits.HELD_BYTES - 2 * limits.RECEIVING * limits.REQUEST_BYTES

    def __init__(self) -> None:
        self.bytes = 0
        self._arriving: OrderedDict[asyncio.Future[Any], float] = OrderedDict()

    @contextmanager
    def share(self) -> Iterator[Share]:
        """The share of one request and its answer, which is given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            share.give()

    async def arrive(self, receive: Callable[[], Awaitable[Message]]) -> Message:
        """A message of gRPC, once there is a place for it.

        A message that takes over a second to arrive loses its place to the next one that waits.

        Raises:
            Full: there is no place, or it was lost.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE
        while len(self._arriving) >= limits.RECEIVING:
            oldest, since = next(iter(self._arriving.items()))
            if loop.time() >= since + _SLOW:
                del self._arriving[oldest]
                oldest.cancel()
            elif loop.time() >= until:
                raise Full
            else:
                await asyncio.wait({oldest}, timeout=since + _SLOW - loop.time())
        arriving = asyncio.ensure_future(receive())
        self._arriving[arriving] = loop.time()
        try:
            done, _ = await asyncio.wait({arriving}, timeout=limits.REQUEST_SECONDS)
        finally:
            lost = self._arriving.pop(arriving, None) is None
            arriving.cancel()
        if lost or not done:
            raise Full("The request took too long to arrive: try again.")
        return arriving.result()


class Share:
    """Bytes of one request and its answer."""

    def __init__(self, held: Held) -> None:
        self._held, self._bytes = held, 0

    def take(self, count: int) -> None:
        """Count more bytes.

        Raises:
            Full: the server holds too many.
        """
        if count and self._held.bytes + count > self._held.most:
            raise Full
        self._held.bytes += count
        self._bytes += count

    def give(self) -> None:
        """Count none of them any more."""
        self._held.bytes -= self._bytes
        self._bytes = 0
