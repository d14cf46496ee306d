"""The REST endpoints of the Open Inference Protocol, and the page of metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from capsedge.errors import UsageError
from capsedge.serving.client_limits import ACCESS, SHARE, Full, run_off_loop
from capsedge.serving.inference import Model, ModelFailed
from capsedge.serving.request_bodies import MalformedRequest, from_http
from capsedge.serving.responses import PLATFORM, response_bytes, to_http
from capsedge.serving.stopping import Stopping

EXTENSIONS = ["binary_tensor_data", "model_repository"]  # of the latter, only the index exists
_SMALL = 2**20  # largest answer in bytes that is sent in one piece
_JSON = ("application/json", "")  # content types of a request; without one, JSON is assumed
_BINARY = "application/octet-stream"  # content type of JSON with binary tensors after it
_LENGTH = "inference-header-content-length"  # header: the bytes of that JSON
_ID_CHARACTERS = 128  # maximum length of an id in a header

Models = Mapping[tuple[str, str], Model]


def endpoints(models: Models, version: str, stopping: Stopping) -> Starlette:
    """The application.

    Args:
        models: by name and version; the default version is also there as the empty one.
        stopping: whether the server is being stopped.
    """
    handlers = _Endpoints(models, version, stopping)
    paths = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    # Routes are tried in this order, so the most frequent comes first.
    routes = [Route(f"{path}/infer", handlers.infer, methods=["POST"]) for path in paths]
    for path in paths:
        routes += [Route(path, handlers.model), Route(f"{path}/ready", handlers.model_ready)]
    routes += [
        Route("/v2", handlers.server),
        Route("/v2/", handlers.server),
        Route("/v2/health/{what}", handlers.health),
        Route("/v2/repository/index", handlers.index, methods=["GET", "POST"]),
    ]
    return _application(routes)


def metrics() -> Starlette:
    """An application with the metrics for Prometheus."""
    return _application([Route("/metrics", _metrics)])


def _application(routes: list[Route]) -> Starlette:
    """An application whose refusals are JSON."""
    refusals: Mapping[Any, Any] = {HTTPException: _not_there, Exception: _failed}
    application = Starlette(routes=routes, exception_handlers=refusals)
    application.router.redirect_slashes = False
    return application


async def _metrics(_request: Request) -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


class _Endpoints:
    def __init__(self, models: Models, version: str, stopping: Stopping) -> None:
        self._models, self._version, self._stopping = models, version, stopping

    def _named(self, request: Request) -> Model:
        """The model named in the path, whose existence was checked before."""
        path = request.path_params
        return self._models[path["name"], path.get("version", "")]

    async def server(self, _request: Request) -> Response:
        about = {"name": PLATFORM, "version": self._version, "extensions": EXTENSIONS}
        return _document(about)

    async def health(self, request: Request) -> Response:
        what = request.path_params["what"]
        if what not in ("live", "ready"):
            raise HTTPException(404)
        healthy = what == "live" or self._stopping.ready
        return _document({what: healthy}, 200 if healthy else 503)

    async def index(self, _request: Request) -> Response:
        return _document(repository_index(self._models))

    async def model(self, request: Request) -> Response:
        return _document(self._named(request).metadata)

    async def model_ready(self, request: Request) -> Response:
        return _document({"name": self._named(request).name, "ready": True})

    async def infer(self, request: Request) -> Response:
        """Answer one request for an inference."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        binary = kind == _BINARY and _LENGTH in request.headers
        if kind not in _JSON and not kind.endswith("+json") and not binary:
            return _malformed(f"a body of type {kind[:80]!r} is not JSON", 415)
        access = request.scope[ACCESS]
        access.id = request.headers.get("x-request-id", "")[:_ID_CHARACTERS]
        body = b"".join([part async for part in request.stream()])
        try:
            length = _json_length(request, len(body))
            asked = await run_off_loop(len(body), from_http, body, length)
        except MalformedRequest as error:
            return _malformed(str(error))
        del body  # the rest waits for its turn, which may take long
        asked.id = asked.id or access.id
        try:
            answer = await self._named(request).infer(asked)
            request.scope[SHARE].take(response_bytes(answer))
        except UsageError as error:
            return _refusal(" ".join(str(error).splitlines()), 400)
        except ModelFailed as error:
            return _refusal(str(error), 500)
        except Full as error:
            return _refusal(str(error), 503)
        finally:
            access.id = asked.id or ""
        raw = asked.sent_raw(answer.outputs)
        parts, length = await run_off_loop(response_bytes(answer), to_http, answer, raw)
        del answer
        return _parts(parts, length)


def _json_length(request: Request, size: int) -> int | None:
    """The bytes of JSON in a body with binary tensors; None without them."""
    header = request.headers.get(_LENGTH)
    if header is None:
        return None
    digits = header.isascii() and header.isdigit() and len(header) <= 20
    if not digits or not 0 < int(header) <= size:
        raise MalformedRequest(
            f"the header Inference-Header-Content-Length is not from 1 to {size:,}"
        )
    return int(header)


def _parts(parts: list[bytes], length: int | None) -> Response:
    """An answer for a request, with the bytes of its JSON if binary tensors follow it."""
    kind, headers = (
        ("application/json", {}) if length is None else (_BINARY, {_LENGTH: str(length)})
    )
    size = sum(map(len, parts))
    if size <= _SMALL:
        return Response(b"".join(parts), media_type=kind, headers=headers)
    headers["content-length"] = str(size)
    return StreamingResponse(_each(parts), media_type=kind, headers=headers)


def repository_index(models: Models) -> list[dict[str, str]]:
    """Every model and version once, in the form of the model repository extension."""
    pairs = sorted({(model.name, model.version) for model in models.values()})
    return [{"name": n, "version": v, "state": "READY", "reason": ""} for n, v in pairs]


async def _each(parts: list[bytes]) -> AsyncIterator[bytes]:
    """Pieces that are released once sent."""
    parts.reverse()
    while parts:
        yield parts.pop()


def _document(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _refusal(why: str, status: int) -> Response:
    return _document({"error": why}, status)


def _malformed(why: str, status: int = 400) -> Response:
    return _refusal(f"This is not an inference request: {why}.", status)


async def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = error.headers or {}
    why = "There is nothing at this address."
    if error.status_code == 405:
        why = f"{request.method[:20]} is not supported here: use {headers['Allow']}."
    refusal = _refusal(why, error.status_code)
    refusal.headers.update(headers)
    return refusal


async def _failed(_request: Request, _error: Exception) -> Response:
    return _refusal("The server failed; its log says why.", 500)  # which gets the error afterwards
