"""Faults for `benchmarks.serving`: what a server faces besides its well-behaved clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

from benchmarks.serving_servers import Server
from benchmarks.serving_wire import PATH

BESIDE = 50  # number of bad clients at the same time
_HEAD = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\n".encode()

Bad = Callable[[int], Awaitable[None]]


async def slow(port: int) -> None:
    """Send a request a byte at a time, and never finish it."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for byte in _HEAD * 99:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)
    finally:
        writer.close()


async def silent(port: int) -> None:
    """Open a connection, send half a request and nothing more."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_HEAD + b"{")
        await asyncio.sleep(3600)
    finally:
        writer.close()


async def half_open(port: int) -> None:
    """Send half a request, close this side of the connection and keep the other open."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_HEAD + b"{")
        writer.write_eof()
        await asyncio.sleep(3600)
    finally:
        writer.close()


async def resetting(port: int) -> None:
    """Send requests and reset the connection before the answer."""
    while True:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_HEAD + b"x" * 9999)
        await asyncio.sleep(0.002)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await asyncio.sleep(0.01)


FAULTS: dict[str, Bad] = {
    "slow clients": slow,
    "silent clients": silent,
    "half-open connections": half_open,
    "resetting clients": resetting,
}
KILLED = "killed and started again"


@contextlib.contextmanager
def beside(fault: str, port: int) -> Iterator[None]:
    """Run bad clients in a thread as long as the block runs."""
    over = threading.Event()

    async def run() -> None:
        bad = [asyncio.ensure_future(FAULTS[fault](port)) for _ in range(BESIDE)]
        while not over.is_set():
            await asyncio.sleep(0.02)
        for task in bad:
            task.cancel()
        await asyncio.gather(*bad, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def killing(after: float, server: Server) -> Iterator[None]:
    """Kill a server after some seconds, and restart it on its port."""

    def run() -> None:
        time.sleep(after)
        os.kill(server.pid, signal.SIGKILL)
        server.start()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
