"""Limit what clients may send and what the server holds for them. Every HTTP request comes here first."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

from capsedge.serving.http_connection import CONNECTION, LATE
from capsedge.serving.monitoring import Access, logger
from capsedge.serving.stopping import REFUSED, RunningRequest, Stopping
from capsedge.spec import limits

# --- Bytes held for clients: bodies, messages and answers, over all connections ---

Message = TypeVar("Message")
_SLOW = 1.0  # seconds after which an arriving message gives up its place to another
_PATIENCE = 10.0  # seconds that a client waits for a place


class Full(Exception):
    """The server currently has no room for the request."""

    def __init__(self, why: str = "The server holds too many requests: try again.") -> None:
        super().__init__(why)


class MemoryBudget:
    """Counts the bytes. Belongs to one event loop.

    The messages of gRPC cannot be counted while they arrive, so they have slots of their own, as many as
    `limits.CONCURRENT_MESSAGES`. Each slot reserves twice the largest message, because grpc copies it on
    delivery. Everything else shares the rest of `limits.IN_FLIGHT_BYTES`.
    """

    limit = limits.IN_FLIGHT_BYTES - 2 * limits.CONCURRENT_MESSAGES * limits.REQUEST_BYTES

    def __init__(self) -> None:
        self.bytes = 0
        self._arriving: OrderedDict[asyncio.Future[Any], float] = OrderedDict()

    @contextmanager
    def share(self) -> Iterator[BudgetShare]:
        """Reserve a share for one request and its response; it is released at the end."""
        share = BudgetShare(self)
        try:
            yield share
        finally:
            share.give()

    async def arrive(self, receive: Callable[[], Awaitable[Message]]) -> Message:
        """Receive a gRPC message, once there is room for it.

        A message that takes over a second to arrive loses its place to the next in line.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE
        while len(self._arriving) >= limits.CONCURRENT_MESSAGES:
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


class BudgetShare:
    """Bytes of one request and its response."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget, self._bytes = budget, 0

    def take(self, count: int) -> None:
        """Count more bytes. Raises Full if the server holds too many."""
        if count and self._budget.bytes + count > self._budget.limit:
            raise Full
        self._budget.bytes += count
        self._bytes += count

    def give(self) -> None:
        """Release all of them."""
        self._budget.bytes -= self._bytes
        self._bytes = 0


# --- Before the endpoints: limits and open paths ---

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_SINGLE = (
    b"host", b"content-encoding", b"content-type", b"content-length", b"inference-header-content-length",
)  # fmt: skip
_PAUSE = 0.5  # seconds without a part after which a client waits for its answer
SHARE = "capsedge.share"  # scope key of the bytes that the server holds for the request
ACCESS = "capsedge.access"  # scope key of the request's log entry
RUNNING = "capsedge.running"  # scope key of the request as one that the server works on
_CROWDED = "The server has too many connections or requests: try again."
_HEALTH = ("/v2/health/live", "/v2/health/ready")  # answered until the end


class _Refused(Exception):
    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


class _Gone(Exception):
    """The client has disconnected before its request was complete, or does not read its response."""


class Guard:
    """Refuses requests that are too large, compressed, too many, too late, or for other hosts or models.

    Args:
        app: the endpoints that it guards.
        metrics: the unguarded endpoints on another port.
        metrics_port: that port.
        hosts: accepted ``Host`` headers; empty for any.
        known: name and version of each model that is served; an empty version is the default one.
        budget: counts what the server holds.
        stopping: whether the server is being stopped.
    """

    def __init__(
        self,
        app: Application,
        metrics: Application,
        metrics_port: int,
        hosts: Collection[str],
        known: Collection[tuple[str, str]],
        budget: MemoryBudget,
        stopping: Stopping,
    ) -> None:
        self._app, self._metrics, self._metrics_port = app, metrics, metrics_port
        self._hosts, self._known, self._budget = hosts, known, budget
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI request."""
        connection = scope["state"][CONNECTION]
        client = scope["client"][0] if scope["client"] else ""
        access = Access("http", scope["method"], scope["path"], client)

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                connection.answering = True
                access.status = str(message["status"])
                if self._stopping.refusing and connection.last:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            if message.get("more_body"):
                await _in_time(send, message)
            else:
                await send(message)

        admitted = connection.admitted() and not self._stopping.over
        try:
            if scope["server"][1] == self._metrics_port:
                await self._metrics(scope, receive, sending)
            else:
                with access, self._budget.share() as share, self._stopping.take() as taken:
                    more = {SHARE: share, ACCESS: access, RUNNING: taken}
                    refusal = _refusal(connection, admitted or scope["path"] in _HEALTH)
                    await self._serve({**scope, **more}, receive, sending, refusal)
        finally:
            connection.answered()

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, refusal: _Refused | None
    ) -> None:
        """Answer a request, whatever happens."""
        connection, taken = scope["state"][CONNECTION], scope[RUNNING]
        try:
            await self._respond(scope, receive, send, refusal)
            return
        except _Gone:
            return
        except asyncio.CancelledError:
            if not taken.dropped:
                raise
            status, why = (503, REFUSED) if taken.quiet_since is None else (408, LATE)
        except Exception as error:
            logger.exception(error)
            status, why = 500, "The server failed; its log says why."
        if not connection.answering:
            await _send_response(send, status, why)

    async def _respond(
        self, scope: Scope, receive: Receive, send: Send, refusal: _Refused | None
    ) -> None:
        share, taken = scope[SHARE], scope[RUNNING]
        parts = _parts(receive, taken)
        try:
            if refusal is not None:
                raise refusal
            self._check(scope)
            body = await self._body(parts, share)
        except _Refused as refusal:
            share.give()
            await _discard(parts)
            await _send_response(send, refusal.status, str(refusal))
        else:
            receive = _once([body], receive)
            del body  # the application releases it after reading it
            await self._app(scope, receive, send)

    async def _body(self, parts: AsyncIterator[bytes], share: BudgetShare) -> bytes:
        body = bytearray()
        async for part in parts:
            self._check_body(len(body) + len(part))
            try:
                share.take(len(part))
            except Full as error:
                raise _Refused(503, str(error)) from error
            body += part
        return bytes(body)

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        names = [name for name, _ in scope["headers"]]
        for name in _SINGLE:
            if names.count(name) > 1:
                raise _Refused(400, f"The header {name.decode()} is given twice.")
        if self._hosts and _host(headers.get(b"host", b"")) not in self._hosts:
            raise _Refused(
                421,
                "This server accepts requests from this machine only: use 127.0.0.1 or localhost.",
            )
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise _Refused(415, "Compressed requests are not supported.")
        length = headers.get(b"content-length", b"0")
        self._check_body(int(length[:20]) if length.isdigit() else 0)
        self._check_model(scope["path"])

    def _check_body(self, size: int) -> None:
        if size > limits.REQUEST_BYTES:
            raise _Refused(413, f"The body is over the limit of {limits.REQUEST_BYTES:,} bytes.")

    def _check_model(self, path: str) -> None:
        """Refuse unknown models before their requests are read."""
        parts = path.split("/")
        if parts[:3] != ["", "v2", "models"] or len(parts) < 4:
            return
        version = parts[5] if len(parts) > 5 and parts[4] == "versions" else ""
        if (parts[3], version) not in self._known:
            raise _Refused(404, unserved_model_message(parts[3], version))


def unserved_model_message(name: str, version: str) -> str:
    """The message for a model that is not served."""
    return f"There is no model {name[:80]!r}" + (
        f" of version {version[:80]!r}." if version else "."
    )


@lru_cache
def _host(header: bytes) -> str:
    try:
        return urlsplit(f"//{header.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


def _refusal(connection: Any, admitted: bool) -> _Refused | None:
    """Why a request is refused, whatever it asks for."""
    if not admitted:
        return _Refused(503, REFUSED)
    return _Refused(503, _CROWDED) if connection.crowded else None


async def _parts(receive: Receive, taken: RunningRequest) -> AsyncIterator[bytes]:
    """The parts of a request's body, until the client stops sending."""
    more = True
    while more:
        taken.listen()
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        more = bool(message.get("more_body"))
        taken.quiet_since = None
        yield message.get("body", b"")


async def _discard(parts: AsyncIterator[bytes]) -> None:
    """Read whatever a client still sends; otherwise the connection breaks and it never sees the answer."""
    left = 4 * limits.REQUEST_BYTES
    with contextlib.suppress(_Gone, StopAsyncIteration, asyncio.TimeoutError):
        while left > 0:
            left -= len(await asyncio.wait_for(anext(parts), _PAUSE))


def _once(body: list[bytes], receive: Receive) -> Receive:
    """The rest of the body as one message, then whatever the client sends."""

    async def read() -> MutableMapping[str, Any]:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        return await receive()

    return read


async def _in_time(send: Send, message: MutableMapping[str, Any]) -> None:
    """Send a part of an answer, if the client reads it in time."""
    try:
        await asyncio.wait_for(send(message), limits.REQUEST_SECONDS)
    except asyncio.TimeoutError:
        raise _Gone from None  # the connection closes in the middle of an answer


async def _send_response(send: Send, status: int, error: str) -> None:
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# --- Work on large requests, off the event loop ---

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
_SMALL = 2**14  # bytes that take a millisecond or two
# One thread: however many large requests arrive, only one at a time uses the memory needed to read it.
_READER = ThreadPoolExecutor(1, "capsedge-requests")


async def run_off_loop(
    size: int,
    function: Callable[Arguments, Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Call a function whose work grows with a size in bytes: at once if small, otherwise in a thread."""
    if size <= _SMALL:
        return function(*args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_READER, lambda: function(*args, **kwargs))
