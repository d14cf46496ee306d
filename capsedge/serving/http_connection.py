"""Stand between an HTTP client and uvicorn: limits on headers, time and requests.

uvicorn accepts any `asyncio.Protocol` to serve a connection. This one parses the input with httptools, a
parser in C, and passes it on to uvicorn's own protocol, request by request.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from http import HTTPStatus
from typing import Any, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from capsedge.serving.stopping import Stopping
from capsedge.spec import limits

CONNECTION = "capsedge.connection"  # key of the state in a request's scope
LATE = "The server is stopping, and the request has not arrived."
_TOO_LONG = "The headers of the request are too long."


class Connection(asyncio.Protocol):
    """A connection with a client.

    This class limits what the parser does not: the request line, headers and trailers, pipelined requests,
    and the time that a request takes to arrive. Offers to upgrade to another protocol, which Java's client
    makes by default, are declined.

    Args:
        stopping: whether the server is being stopped.
        opened: all open connections, this one among them while it is.
        options: what uvicorn creates a protocol with.

    Attributes:
        answering: whether an answer has begun; the application sets it.
    """

    def __init__(self, stopping: Stopping, opened: set[Connection], **options: Any) -> None:
        self.answering = False
        self._stopping, self._opened = stopping, opened
        self._early: deque[bool] = (
            deque()
        )  # of unanswered requests: began before the server refuses them
        self._uvicorn = HttpToolsProtocol(
            **{**options, "app_state": {**options["app_state"], CONNECTION: self}}
        )
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._parts: list[bytes] = []  # parts of the data passed on
        self._waiting = 0  # unanswered requests
        self._complete = 0  # those that have arrived as a whole
        self._due: tuple[int, str] | None = None  # a refusal, once they are answered
        self._unbounded = 0  # bytes since the last part of a body, which the parser keeps
        self._deadline: asyncio.TimerHandle | None = None
        self._refusal: tuple[int, str] = (400, "This is no HTTP request.")
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._chunked = self._offers = False

    # --- From the transport ---

    def connection_made(self, transport: Any) -> None:
        self._opened.add(self)
        self._transport = _Joining(transport, self._loop)
        self._uvicorn.connection_made(self._transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self)
        self._stop_clock()
        self._uvicorn.connection_lost(exc)

    def pause_writing(self) -> None:
        self._uvicorn.pause_writing()

    def resume_writing(self) -> None:
        self._uvicorn.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Receive data from the client; a request whose headers never end closes the connection."""
        if self._due is not None:
            return
        self._unbounded += len(data)
        while data:
            try:
                self._parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as upgrade:
                data = self._declined(data[upgrade.args[0] :])
            except httptools.HttpParserError:
                self._refuse(*self._refusal)
                break
        if self._unbounded > limits.HEADER_BYTES:
            self._refuse(431, _TOO_LONG)
        if self._parts and not self._transport.is_closing():
            parts, self._parts = self._parts, []
            self._uvicorn.data_received(parts[0] if len(parts) == 1 else b"".join(parts))

    def _declined(self, rest: bytes) -> bytes:
        """The request without its upgrade offer, after which the parser would not treat the body as HTTP."""
        headers = [pair for pair in self._headers if pair[0].lower() != b"upgrade"]
        if len(headers) == len(self._headers):  # the method CONNECT
            self._refuse(400, "This is no proxy.")
            return b""
        head = _head(self._parser, self._url, headers)
        self._parser = httptools.HttpRequestParser(self)
        return head + rest

    # --- From the application ---

    def admitted(self) -> bool:
        """Whether the next request, in order, began before the server refused new ones."""
        return self._early.popleft()

    @property
    def crowded(self) -> bool:
        """Whether the server has as many connections or requests as it takes."""
        most = limits.REQUESTS
        return len(self._opened) >= most or len(self._uvicorn.tasks) > most

    @property
    def last(self) -> bool:
        """Whether no request waits for the answer to this one."""
        return self._waiting == 1

    @property
    def sending(self) -> bool:
        """Whether the client has yet to receive a part of an answer."""
        return bool(self._transport.get_write_buffer_size())

    def answered(self) -> None:
        """An answer is on its way to the client."""
        self.answering = False
        self._waiting -= 1
        self._complete -= 1
        if self._due is not None:
            self._refuse(*self._due)

    def end(self) -> None:
        """Refuse the head of a request that has not arrived, when the server ends."""
        if self._url and not self._waiting:
            self._refuse(408, LATE)

    def abort(self) -> None:
        """Close the connection, whatever the client has yet to receive."""
        self._transport.abort()

    # --- Refusals, and the clock ---

    def _start_clock(self) -> None:
        if self._deadline is None:
            self._deadline = self._loop.call_later(limits.REQUEST_SECONDS, self._late)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._refuse(408, f"The request has not arrived after {limits.REQUEST_SECONDS} seconds.")

    def _refuse(self, status: int, why: str) -> None:
        """Close the connection after earlier answers and, unless another is on its way, one of its own."""
        if self._transport.is_closing():
            return
        if self._complete > 0 and status != 429:  # the client takes it for the next answer
            self._due = status, why
            self._stop_clock()
            return
        if not self.answering:
            body = json.dumps({"error": why}).encode()
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nconnection: close\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            self._transport.write(head.encode() + body)
        self._transport.close()

    def _stop(self, status: int, why: str) -> NoReturn:
        """Stop the parser."""
        self._refusal = status, why
        raise ValueError(why)

    # --- From the parser ---

    def on_message_begin(self) -> None:
        self._begin()
        self._start_clock()
        self._begun_early = not self._stopping.refusing

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        self._headers.append((name, value))
        if len(self._headers) > limits.HEADERS:
            self._stop(431, f"The request has over {limits.HEADERS} headers.")
        self._count_header(len(name) + len(value) + 4)

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > limits.HEADER_BYTES:
            self._stop(431, _TOO_LONG)

    def on_headers_complete(self) -> None:
        self._offers = self._parser.should_upgrade()
        if self._offers:
            return
        self._waiting += 1
        if self._waiting > limits.PIPELINED + 1:
            why = f"Over {limits.PIPELINED} requests are waiting for an earlier response."
            self._stop(429, why)
        try:
            httptools.parse_url(self._url).path.decode("ascii")
        except (httptools.HttpParserError, UnicodeDecodeError, AttributeError):
            self._stop(400, "The address of the request is invalid.")
        self._chunked = any(name.lower() == b"transfer-encoding" for name, _ in self._headers)
        self._parts.append(_head(self._parser, self._url, self._headers))
        self._early.append(self._begun_early)

    def on_body(self, body: bytes) -> None:
        """Pass a part on; a body has its own limit."""
        self._unbounded = 0
        self._parts.append(b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body)

    def on_message_complete(self) -> None:
        """End the body, without trailers."""
        if self._offers:
            return
        self._unbounded = 0
        self._complete += 1
        self._url = b""
        self._stop_clock()
        if self._chunked:
            self._parts.append(b"0\r\n\r\n")


def _head(parser: Any, url: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    lines = [b"%b %b HTTP/%b" % (parser.get_method(), url, parser.get_http_version().encode())]
    lines += [b"%b: %b" % pair for pair in headers]
    return b"\r\n".join([*lines, b"", b""])


class _Joining:
    """A transport that joins everything written in one step of the event loop into one send.

    uvicorn writes the headers of an answer and its body separately; as two segments they cost server and
    client an extra system call and wake-up each.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():  # the client may have disconnected since
            self._transport.write(b"".join(parts))
