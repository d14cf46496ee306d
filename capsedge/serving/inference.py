"""The REST endpoint of inference.

It reads requests and writes answers by itself: MLServer's makes objects of whatever a client sends before it
looks at it, and does so on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from mlserver.handlers import DataPlane
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from capsedge.serving.answer_bytes import size_of, to_json
from capsedge.serving.aside import aside
from capsedge.serving.guard import SHARE
from capsedge.serving.held import Full
from capsedge.serving.infer_request import Malformed, from_json

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
            payload = await aside(len(body), from_json, body)
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
        parts = await aside(size_of(answer), to_json, answer)
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
