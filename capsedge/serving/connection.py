"""One HTTP connection, on uvicorn's protocol: a limit on its headers, and answers that leave in one piece."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from capsedge.runtime.files import limits


class Connection(HttpToolsProtocol):
    """A connection with a client.

    The parser is in C; what it does not limit is limited here: the request line, headers and trailers. Offers
    to go on in another protocol, which Java's client makes by default, are not taken.
    """

    parser: Any
    _unbounded = 0  # bytes since the last part of a body, all of which the parser keeps

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        super().connection_made(_Joining(transport, self.loop))

    def data_received(self, data: bytes) -> None:
        """Take what the client sends; a request whose headers never end closes the connection."""
        self._unset_keepalive_if_required()
        self._unbounded += len(data)
        while data:
            try:
                self.parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as upgrade:
                data = self._declined(data[upgrade.args[0] :])
            except httptools.HttpParserError:
                self.send_400_response("This is no HTTP request.")
                return
        if self._unbounded > limits.HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response("The headers of the request are too long.")

    def _should_upgrade(self) -> bool:
        """Whether a request with an offer is left to `_declined` once its headers are complete."""
        return True

    def _declined(self, rest: bytes) -> bytes:
        """A request once more without its offer, after which the parser would take its body for no HTTP."""
        headers = [pair for pair in self.headers if pair[0] != b"upgrade"]
        if len(headers) == len(self.headers):  # the method CONNECT
            self.send_400_response("This is no proxy.")
            return b""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % pair for pair in headers]
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*lines, b"", rest])

    def on_body(self, body: bytes) -> None:
        """Count from zero again: a body has a limit of its own."""
        self._unbounded = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Count the next request by itself."""
        self._unbounded = 0
        super().on_message_complete()


class _Joining:
    """A transport that sends what is written in one step of the event loop at once.

    uvicorn writes the headers of an answer and its body separately; as two segments they cost the server
    and the client one more system call and one more wake-up each.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data at the end of this step."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Send what is left, and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():  # the client may have gone since
            self._transport.write(b"".join(parts))
