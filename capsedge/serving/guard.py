"""What stands before MLServer's REST endpoints: limits, and the paths that are open."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from capsedge.runtime.files import limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# Of MLServer's paths. Not: the repository (loading and unloading), documentation that loads scripts from
# elsewhere, and text generation.
PATHS = frozenset(
    {
        "/v2", "/v2/health/live", "/v2/health/ready",
        *(f"/v2/models/{{model_name}}{version}{end}"
          for version in ("", "/versions/{model_version}") for end in ("", "/ready")),
    }
)  # fmt: skip
_BINARY = b"inference-header-content-length"  # of the protocol's extension for binary tensors


class _Refused(Exception):
    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


class Guard:
    """Refuses requests that are too large, compressed, for other hosts or for models that are not there.

    Args:
        app: the application behind it.
        hosts: names of the ``Host`` header; none for any.
        known: name and version of each model that is served; an empty version is the default one.
    """

    def __init__(
        self, app: Application, hosts: Collection[str], known: Collection[tuple[str, str]]
    ) -> None:
        self._app, self._hosts, self._known = app, hosts, known
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held, parts = 0, _parts(receive)
        try:
            self._check(scope)
            body = bytearray()
            async for part in parts:
                held += len(part)
                self._held += len(part)
                self._check_body(held)
                body += part
        except _Refused as refusal:
            self._held -= held
            await _discard(parts)
            await _answer(send, refusal.status, str(refusal))
            return
        try:
            await self._app(scope, _once(bytes(body), receive), send)
        finally:
            self._held -= held

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._hosts and _host(headers.get(b"host", b"")) not in self._hosts:
            raise _Refused(
                421, "This server answers for this machine only: use 127.0.0.1 or localhost."
            )
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise _Refused(415, "Compressed requests are not supported.")
        if _BINARY in headers:
            raise _Refused(
                400,
                "Binary tensors are not supported over HTTP: send JSON (tritonclient: binary_data=False), "
                "or use gRPC.",
            )
        length = headers.get(b"content-length", b"0")
        self._check_body(int(length) if length.isdigit() else 0)
        self._check_model(scope["path"])

    def _check_body(self, size: int) -> None:
        if size > limits.REQUEST_BYTES:
            raise _Refused(413, f"The body is over the limit of {limits.REQUEST_BYTES:,} bytes.")
        if self._held > limits.HELD_BYTES:
            raise _Refused(503, "The server holds too many requests: try again.")

    def _check_model(self, path: str) -> None:
        """Refuse unknown models before MLServer counts the request under their names, for ever."""
        parts = path.split("/")
        if parts[:3] != ["", "v2", "models"] or len(parts) < 4:
            return
        version = parts[5] if len(parts) > 5 and parts[4] == "versions" else ""
        if (parts[3], version) not in self._known:
            raise _Refused(404, missing(parts[3], version))


def missing(name: str, version: str) -> str:
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


async def _parts(receive: Receive) -> AsyncIterator[bytes]:
    """The parts of a request's body, as far as the client sends them."""
    more = True
    while more:
        message = await receive()
        more = bool(message.get("more_body"))
        yield message.get("body", b"")


async def _discard(parts: AsyncIterator[bytes]) -> None:
    """Read what a client still sends: otherwise the connection breaks, and it never sees the answer."""
    left = 4 * limits.REQUEST_BYTES
    async for part in parts:
        left -= len(part)
        if left < 0:
            return


def _once(body: bytes, receive: Receive) -> Receive:
    """The body as one message; after it, whatever the client sends."""
    left = [body]

    async def read() -> MutableMapping[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return read


async def _answer(send: Send, status: int, error: str) -> None:
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
