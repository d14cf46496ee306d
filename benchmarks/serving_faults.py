"""Faults of `benchmarks.serving`: what a server meets beside its honest clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Awaitable, Callable

BESIDE = 50  # bad clients at the same time
_HEAD = b"POST /v2/models/model/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\n"

Bad = Callable[[int], Awaitable[None]]


async def slow(port: int) -> None:
    """Sends a request a byte at a time, and never ends it."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for byte in _HEAD * 99:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)
    finally:
        writer.close()


async def silent(port: int) -> None:
    """Opens a connection, sends half a request and nothing more."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_HEAD + b"{")
        await asyncio.sleep(3600)
    finally:
        writer.close()


async def resetting(port: int) -> None:
    """Sends requests and resets the connection before the answer."""
    while True:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_HEAD + b"x" * 9999)
        await asyncio.sleep(0.002)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await asyncio.sleep(0.01)


FAULTS: dict[str, Bad] = {"slow": slow, "silent": silent, "resetting": resetting}


@contextlib.asynccontextmanager
async def beside(fault: str, port: int):  # type: ignore[no-untyped-def] # an async iterator
    """Bad clients as long as the block runs."""
    bad = [asyncio.ensure_future(FAULTS[fault](port)) for _ in range(BESIDE)]
    try:
        yield
    finally:
        for task in bad:
            task.cancel()
        await asyncio.gather(*bad, return_exceptions=True)


async def killing(after: float, pid: int, restart: Callable[[], None]) -> None:
    """Kill a server after some seconds, and start it again on its port."""
    await asyncio.sleep(after)
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(restart)
