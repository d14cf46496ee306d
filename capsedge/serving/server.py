"""Run the servers for REST, gRPC and metrics in one event loop until a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn

from capsedge.serving import rest
from capsedge.serving.client_limits import Guard, MemoryBudget
from capsedge.serving.grpc_service import grpc_server
from capsedge.serving.http_connection import Connection
from capsedge.serving.inference import Model
from capsedge.serving.served_models import ServerAddress, ServerPorts, ServerSettings
from capsedge.serving.stopping import Stopping
from capsedge.spec import limits

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_CLOSE = 1  # seconds for closing connections whose requests are answered
_STEP = 0.01  # seconds between checks whether uvicorn has started
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # no system has them all
_AGAIN = (
    signal.SIGINT,
    signal.SIGTERM,
)  # the second one ends at once; a terminal may send SIGHUP twice


class Server:
    """The servers of loaded models; binds the ports. Create it inside a running event loop.

    Args:
        serving: what to serve, and where.

    Raises:
        OSError: a port cannot be bound; ``filename`` is its option.
    """

    def __init__(self, serving: ServerSettings) -> None:
        host, ports, budget = serving.host, serving.ports, MemoryBudget()
        models = {
            (served.name, served.version): Model(
                served.session, served.name, served.version, serving.threads,
                served.batch.images, serving.wait_ms / 1000,
            )
            for served in serving.models
        }  # fmt: skip
        for served in serving.models:  # the newest version is the default
            versions = serving.versions(served.name)
            models[served.name, served.version].metadata["versions"] = versions
            models[served.name, ""] = models[served.name, versions[-1]]
        self._models, self._stop_timeout = list(models.values()), serving.stop_timeout
        self._stopping, self._connections = Stopping(), set[Connection]()
        with _named("--port"):
            web = _socket(host, ports.rest)
        with _named("--metrics-port"):
            metrics = _socket(host, ports.metrics)
        with _named("--grpc-port"):
            address = f"{_bracketed(host)}:{ports.grpc}"
            self._grpc, grpc_port = grpc_server(
                models, serving.version, budget, self._stopping, address
            )
        self._sockets = [web, metrics]
        taken = [one.getsockname()[1] for one in self._sockets]
        self.address = ServerAddress(_bracketed(host), ServerPorts(taken[0], grpc_port, taken[1]))
        guard = Guard(
            rest.endpoints(models, serving.version, self._stopping), rest.metrics(), taken[1],
            _hosts(host), set(models), budget, self._stopping,
        )  # fmt: skip
        connection: Any = partial(Connection, self._stopping, self._connections)
        self._web = uvicorn.Server(
            uvicorn.Config(
                guard, http=connection, ws="none", lifespan="off", log_config=None, access_log=False,
                server_header=False, proxy_headers=False, timeout_graceful_shutdown=_CLOSE,
            )
        )  # fmt: skip
        self._signal: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self, ready: Callable[[ServerAddress], None]) -> int:
        """Serve until a signal, and return its number; ``ready`` is called with the addresses."""
        self._take_signals()
        await self._grpc.start()
        serving = asyncio.ensure_future(self._web.serve(self._sockets))
        while not self._web.started and not serving.done():
            await asyncio.sleep(_STEP)
        self._take_signals()  # again, since uvicorn replaces them when it starts
        if not self._signal.done():
            # Everything loaded so far stays; without this, the garbage collector would scan it again and
            # again.
            gc.collect()
            gc.freeze()
            ready(self.address)
        await asyncio.wait({serving, self._signal}, return_when=asyncio.FIRST_COMPLETED)
        await self._stopping.drain(
            self._stop_timeout, lambda: any(one.sending for one in self._connections)
        )
        await self._close(serving)
        return await self._signal

    async def _close(self, serving: asyncio.Future[None]) -> None:
        """Close every connection; all requests that arrived were answered or refused."""
        for model in self._models:
            model.abandon()
        for connection in list(self._connections):
            connection.end()
        self._web.should_exit = True
        closing = asyncio.ensure_future(self._grpc.stop(_CLOSE))
        await asyncio.wait({serving}, timeout=_CLOSE)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(closing, serving)

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def handle(number: int, _frame: object) -> None:
            loop.call_soon_threadsafe(self.stop, number)

        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                try:
                    loop.add_signal_handler(number, self.stop, int(number))
                except NotImplementedError:  # by the event loops of Windows
                    signal.signal(number, handle)

    def stop(self, number: int) -> None:
        """Stop as after a signal; after a second one, at once."""
        if not self._signal.done():
            self._signal.set_result(number)
        elif number in _AGAIN:
            self._stopping.hasten()


@contextlib.contextmanager
def _named(option: str) -> Iterator[None]:
    """Name the option of a port in errors."""
    try:
        yield
    except OSError as error:
        error.filename = option
        raise


def _socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=limits.REQUESTS)
    # Accepted connections inherit it. Without it, an answer waits 40 ms for the client's acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _hosts(host: str) -> Sequence[str]:
    """The accepted ``Host`` headers; any if the server is not just for this machine.

    Otherwise, a page of another site could reach a server on the loopback address by DNS rebinding.
    """
    with contextlib.suppress(ValueError):
        return _LOOPBACK_NAMES if ipaddress.ip_address(host).is_loopback else ()
    return _LOOPBACK_NAMES if host == "localhost" else ()
