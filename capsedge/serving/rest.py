"""Starlette routes of the Open Inference Protocol with their limits; uvicorn's connection.

It reads requests and writes answers by itself: MLServer's makes objects of whatever a client sends before it
looks at it, and does so on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, NoReturn

import httptools
from mlserver.handlers import DataPlane
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from capsedge.serving.client_limits import SHARE, Full, run_off_loop
from capsedge.serving.request_bodies import Malformed, from_json
from capsedge.serving.responses import size_of, to_json
from capsedge.spec import limits

# One HTTP connection, on uvicorn's protocol: limits on headers and time, and answers in one piece


_TOO_LONG = "The headers of the request are too long."


class Connection(HttpToolsProtocol):
    """A connection with a client.

    The parser is in C; what it does not limit is limited here: the request line, headers and trailers, the
    requests that are sent before an earlier one is answered, and the time that a request takes to arrive.
    Offers to go on in another protocol, which Java's client makes by default, are not taken.
    """

    parser: Any
    _unbounded = 0  # bytes since the last part of a body, all of which the parser keeps
    _headers = _header_bytes = 0  # of the request that arrives
    _deadline: asyncio.TimerHandle | None = None
    _refusal: tuple[int, str] = (400, "This is no HTTP request.")

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        super().connection_made(_Joining(transport, self.loop))
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_clock()
        super().connection_lost(exc)

    def _start_clock(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(limits.REQUEST_SECONDS, self._late)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._refuse(408, f"The request has not arrived after {limits.REQUEST_SECONDS} seconds.")

    def _refuse(self, status: int, why: str) -> None:
        """End the connection; with an answer, unless another one is on its way."""
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nconnection: close\r\n"
                f"content-type: text/plain; charset=utf-8\r\ncontent-length: {len(why)}\r\n\r\n"
            )
            self.transport.write(head.encode() + why.encode())
        self.transport.close()

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
                self._refuse(*self._refusal)
                return
        if self._unbounded > limits.HEADER_BYTES:
            self._refuse(431, _TOO_LONG)

    def on_message_begin(self) -> None:
        """Count from zero."""
        super().on_message_begin()
        self._headers = self._header_bytes = 0
        self._start_clock()

    def on_url(self, url: bytes) -> None:
        """Count the first line."""
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, or a trailer."""
        self._headers += 1
        if self._headers > limits.HEADERS:
            self._stop(431, f"The request has over {limits.HEADERS} headers.")
        self._count_header(len(name) + len(value) + 4)
        super().on_header(name, value)

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > limits.HEADER_BYTES:
            self._stop(431, _TOO_LONG)

    def _stop(self, status: int, why: str) -> NoReturn:
        """Stop the parser."""
        self._refusal = status, why
        raise ValueError(why)

    def on_headers_complete(self) -> None:
        """Start the request, or let it wait for those before it."""
        super().on_headers_complete()
        if len(self.pipeline) > limits.PIPELINED:
            self._stop(
                429, f"Over {limits.PIPELINED} requests wait for the answer to an earlier one."
            )

    def _should_upgrade(self) -> bool:
        """Whether a request with an offer is left to `_declined` once its headers are complete."""
        return True

    def _declined(self, rest: bytes) -> bytes:
        """A request once more without its offer, after which the parser would take its body for no HTTP."""
        headers = [pair for pair in self.headers if pair[0] != b"upgrade"]
        if len(headers) == len(self.headers):  # the method CONNECT
            self._refuse(400, "This is no proxy.")
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
        self._stop_clock()
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


# --- The REST endpoint of inference ---


_SMALL = 2**20  # bytes of an answer that is sent at once
_JSON = ("application/json", "")  # types of a request; without a type it is taken as JSON


class Inference:
    """Answers requests of the Open Inference Protocol.

    Args:
        data_plane: MLServer's, which counts requests and finds their models.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane

    def routes(self) -> list[Route]:
        """The paths of inference, for all models and versions."""
        models = "/v2/models/{model_name}"
        paths = (f"{models}/infer", f"{models}/versions/{{model_version}}/infer")
        return [Route(path, self.infer, methods=["POST"]) for path in paths]

    async def infer(self, request: Request) -> Response:
        """Answer one request."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _JSON and not kind.endswith("+json"):
            return _refusal(f"a body of type {kind[:80]!r} is no JSON", 415)
        body = b"".join([part async for part in request.stream()])
        try:
            payload = await run_off_loop(len(body), from_json, body)
        except Malformed as error:
            return _refusal(str(error))
        del body  # what is left of it waits for its turn, which may be long
        path = request.path_params
        answer = await self._data_plane.infer(
            payload, path["model_name"], path.get("model_version")
        )
        try:
            request.scope[SHARE].take(size_of(answer))
        except Full as error:
            return JSONResponse({"error": str(error)}, 503)
        parts = await run_off_loop(size_of(answer), to_json, answer)
        size = sum(map(len, parts))
        if size <= _SMALL:
            return Response(b"".join(parts), media_type="application/json")
        del answer
        length = {"content-length": str(size)}
        return StreamingResponse(_each(parts), media_type="application/json", headers=length)


async def _each(parts: list[bytes]) -> AsyncIterator[bytes]:
    """Pieces that are let go of when they are sent."""
    parts.reverse()
    while parts:
        yield parts.pop()


def _refusal(why: str, status: int = 400) -> Response:
    return JSONResponse({"error": f"This is no inference request: {why}."}, status)
