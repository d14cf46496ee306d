"""The REST endpoint of inference.

It does what MLServer's does, without FastAPI's parsing of arguments and its second validation of the answer,
which for a small model cost more than the inference.
"""

from __future__ import annotations

from typing import Any

from mlserver.codecs.json import decode_from_bytelike_json_to_dict
from mlserver.handlers import DataPlane
from mlserver.rest.responses import Response
from mlserver.types import InferenceRequest, InferenceResponse
from pydantic import ValidationError
from starlette.requests import Request
from starlette.routing import Route

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
        try:
            document = decode_from_bytelike_json_to_dict(await request.body())
            payload = InferenceRequest.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in ("body", *first["loc"]))
            return _refusal(f"{place}: {first['msg']}")
        except ValueError as error:
            return _refusal(f"body: {error}")
        path = request.path_params
        answer = await self._data_plane.infer(
            payload, path["model_name"], path.get("model_version")
        )
        return Response(_document(answer))


def _refusal(why: str, status: int = 400) -> Response:
    return Response({"error": f"This is no inference request: {why}."}, status)


def _document(answer: InferenceResponse) -> dict[str, Any]:
    """An answer as JSON has it. Its tensors are lists already, which pydantic would copy value by value."""
    outputs = [
        {"name": o.name, "shape": o.shape, "datatype": o.datatype, "data": o.data.root}
        for o in answer.outputs
    ]
    return {**answer.model_dump(exclude={"outputs"}), "outputs": outputs}
